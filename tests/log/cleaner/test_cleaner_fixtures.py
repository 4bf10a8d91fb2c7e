"""Three compacted topics of a Kafka 4.3.1: the input is rebuilt, cleaned here, and compared with
Kafka's result byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kbroker.log.storage.checkpoint import read_offsets
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.records import Record, iter_records
from tests.log.cleaner.cleaning import Bench

Unpack = Callable[[str], Path]
DELETE_RETENTION_MS = 86_400_000
KINDS = (".log", ".index", ".timeindex", ".txnindex")


def batches_in(folder: Path) -> dict[int, bytes]:
    """Kafka's result, by last offset."""
    found = {}
    for path in sorted(folder.glob("*.log")):
        data = path.read_bytes()
        for position, header in iter_batches(data):
            found[header.last_offset] = data[position : position + header.size_bytes]
    return found


def bases_of(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def bench_of(folder: Path, batches: list[bytes], bases: list[int], now_ms: int) -> Bench:
    bench = Bench(
        folder,
        segment_bytes=4096,
        segment_index_bytes=4096,
        index_interval_bytes=512,
        delete_retention_ms=DELETE_RETENTION_MS,
        segment_ms=1 << 62,
    )
    bench.timers.wall_jump_ms = now_ms - bench.timers.now_ms()
    for batch in batches:
        if bench.log.log_end_offset in bases:
            bench.roll()
        bench.replay(batch)
    return bench


def files(folder: Path, bases: list[int]) -> dict[str, bytes]:
    """The closed segments."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.suffix in KINDS and int(path.stem) in bases[:-1]
    }


def rounds(kept: dict[int, bytes], codec: Compression, first_ms: int) -> list[bytes]:
    """The producer's twelve rounds over ten keys; the last key only in the first three of them."""
    (header, *_) = [h for data in kept.values() for _, h in iter_batches(data)]
    batches = []
    offset = 0
    for number in range(12):
        keys = range(10 if number < 3 else 9)
        records = [
            Record(
                offset + key,
                first_ms + 1000 * (offset + key),
                b"key%d" % key,
                None if (number, key) == (11, 7) else b"value-%d-%d-" % (key, number) * 6,
            )
            for key in keys
        ]
        batches.append(
            bytes(
                build_batch(
                    records,
                    base_offset=offset,
                    partition_leader_epoch=0,
                    compression=codec,
                    producer_id=header.producer_id,
                    producer_epoch=0,
                    base_sequence=offset,
                )
            )
        )
        offset += len(keys)
    assert offset == 111
    return batches + [data for last, data in sorted(kept.items()) if last > 110]


def horizon_of(kept: dict[int, bytes]) -> int:
    (horizon,) = {
        header.base_timestamp
        for data in kept.values()
        for _, header in iter_batches(data)
        if header.has_delete_horizon
    }
    return horizon


def test_compact(tmp_path: Path, unpack: Unpack) -> None:
    kafka = unpack("data-clean") / "compact-0"
    kept = batches_in(kafka)
    now_ms = horizon_of(kept) - DELETE_RETENTION_MS
    bases = bases_of(kafka)
    bench = bench_of(
        tmp_path / "ours", rounds(kept, Compression.NONE, 1_700_000_344_000), bases, now_ms
    )
    bench.clean()
    assert files(bench.log.directory, bases) == files(kafka, bases)
    topic = TopicPartition("compact", 0)
    assert (
        read_offsets(tmp_path / "ours" / "cleaner-offset-checkpoint")[bench.log.topic_partition]
        == read_offsets(kafka.parent / "cleaner-offset-checkpoint")[topic]
        == 159
    )


def test_compact_gzip(tmp_path: Path, unpack: Unpack) -> None:
    kafka = unpack("data-clean") / "compact-gzip-0"
    kept = batches_in(kafka)
    now_ms = horizon_of(kept) - DELETE_RETENTION_MS
    bases = bases_of(kafka)
    first = next(iter_records(kept[110]))
    bench = bench_of(
        tmp_path / "ours", rounds(kept, Compression.GZIP, first.timestamp - 102_000), bases, now_ms
    )
    bench.clean()

    def content(folder: Path) -> list[tuple[object, ...]]:
        data = (folder / f"{0:020d}.log").read_bytes()
        return [
            (
                header.base_offset, header.last_offset, header.attributes, header.base_timestamp,
                header.max_timestamp, header.base_sequence, header.producer_id,
                list(iter_records(data[position : position + header.size_bytes], header)),
            )
            for position, header in iter_batches(data)
        ]  # fmt: skip

    assert content(bench.log.directory) == content(kafka)
    # but for the codec's own bytes, which differ between Java and zlib
    time_index = f"{0:020d}.timeindex"
    ours, theirs = bench.log.directory / time_index, kafka / time_index
    assert ours.read_bytes() == theirs.read_bytes()


def test_compact_transactions(tmp_path: Path, unpack: Unpack) -> None:
    kafka = unpack("data-clean") / "compact-txn-0"
    kept = batches_in(kafka)
    bases = bases_of(kafka)
    batches = []
    for number in range(40):
        data = build_batch(
            [
                Record(
                    4 * number + key, 1_700_000_686_000 + 1000 * (3 * number + key),
                    b"key%d" % key, b"n%d" % number * 20,
                )
                for key in range(3)
            ],
            base_offset=4 * number, partition_leader_epoch=0, producer_id=16,
            producer_epoch=number, base_sequence=0, is_transactional=True,
        )  # fmt: skip
        batches += [bytes(data), kept[4 * number + 3]]
    bench = bench_of(tmp_path / "ours", batches, bases, 1_795_246_815_000)
    bench.clean()
    assert files(bench.log.directory, bases) == files(kafka, bases)
