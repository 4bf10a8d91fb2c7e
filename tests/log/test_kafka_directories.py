"""Every partition that Kafka 4.3.1 left behind, opened as a log: records, offsets, indexes, aborted
transactions and producers are those of Kafka's own dump beside it.

What the files hold byte for byte is test_dump's, what a broker makes of a killed Kafka's folder is
test_recovery's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import read_offsets
from kbroker.log.storage.segment import Segment
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.records import iter_records
from tests.log.recovery.test_recovery import kafka_config

Unpack = Callable[..., Path]
EARLY_MS = 1_700_000_000_000
"""Before any record: no producer is forgotten."""
COUNTS = {"clean": (23, 1462, 21), "recovered": (24, 1531, 21)}
"""Folders, records in them, snapshots."""

RECORD = re.compile(r"\| offset: (\d+) \w+: (-?\d+) keySize: (-?\d+) valueSize: (-?\d+) ")
PAIR = re.compile(r"\w+: (\d+) \w+: (\d+)$")
ABORTED = re.compile(
    r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)"
)
PRODUCER = re.compile(
    r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) currentTxnFirstOffset: "
    r"OptionalLong(?:\.empty|\[(\d+)\]) .*lastSequence: (-?\d+) lastOffset: (-?\d+) "
)


def said(path: Path, pattern: re.Pattern[str]) -> list[tuple[int, ...]]:
    """The numbers in Kafka's dump of a file; None of an empty optional is -1."""
    if not path.exists():
        return []  # of an empty index
    found = map(pattern.match, path.read_text(errors="replace").split("\n"))
    return [tuple(int(text or -1) for text in match.groups()) for match in found if match]


def records_of(log: PartitionLog) -> Iterator[tuple[int, ...]]:
    """As a reader of the whole log meets them."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        info = log.read(offset, max_bytes=1 << 20)
        data = info.records if isinstance(info.records, bytes) else info.records.read()
        for position, header in iter_batches(data):
            for record in iter_records(data[position : position + header.size_bytes], header):
                sizes = (-1 if v is None else len(v) for v in (record.key, record.value))
                if record.offset >= offset:
                    yield record.offset, record.timestamp, *sizes
        assert info.end_offset > offset
        offset = info.end_offset


def check(log: PartitionLog, dump: Path) -> tuple[int, bool]:
    """Returns how many records there are, and whether there is a snapshot of the producers."""

    def dumped(segment: Segment, kind: str, pattern: re.Pattern[str]) -> list[tuple[int, ...]]:
        return said(dump / f"{names.offset_name(segment.base_offset, kind)}.txt", pattern)

    whole = [numbers for each in log.segments for numbers in dumped(each, names.LOG, RECORD)]
    wanted = [numbers for numbers in whole if numbers[0] >= log.log_start_offset]
    assert list(records_of(log)) == wanted
    for segment in log.segments:
        # of a preallocated index the tool shows the first entry: no batch at 0 has one
        entries = [entry for entry in dumped(segment, names.INDEX, PAIR) if entry[1] > 0]
        assert segment.offset_index.entries() == entries
        assert segment.time_index.entries() == dumped(segment, names.TIME_INDEX, PAIR)
        aborted = segment.transaction_index.entries() if segment.transaction_index.exists else []
        assert [
            (each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset)
            for each in aborted
        ] == dumped(segment, names.TRANSACTION_INDEX, ABORTED)
    snapshot = dump / f"{names.offset_name(log.log_end_offset, names.SNAPSHOT)}.txt"
    if snapshot.exists():  # not for the folder that was deleted while in use
        assert sorted(
            (
                state.producer_id, state.producer_epoch, state.coordinator_epoch,
                -1 if state.transaction_first_offset is None else state.transaction_first_offset,
                state.last_sequence, state.last_offset,
            )
            for state in log.producers.active_producers.values()
            if state.batches
        ) == sorted(said(snapshot, PRODUCER))  # fmt: skip
    return len(wanted), snapshot.exists()


@pytest.mark.parametrize("life", ["clean", "recovered"])
def test_each_is_read_as_kafka_reads_it(unpack: Unpack, life: str) -> None:
    data, dumps = unpack(f"data-{life}", large=True), unpack(f"dump-{life}")
    points = read_offsets(data / names.RECOVERY_POINTS)
    starts = read_offsets(data / names.LOG_START_OFFSETS)
    found = []
    for folder in sorted(path for path in data.iterdir() if path.is_dir()):
        topic, _, partition = re.sub(r"\.[0-9a-f]{32}-\w+$", "", folder.name).rpartition("-")
        key = TopicPartition(topic, int(partition))
        log = PartitionLog.open(
            folder,
            key,
            kafka_config(topic),
            clean_shutdown=True,
            recovery_point=points.get(key, 0),
            log_start_offset=starts.get(key, 0),
            now_ms=EARLY_MS,
        )
        found.append(check(log, dumps / folder.name))
        log.release()
    snapshots = sum(has_snapshot for _, has_snapshot in found)
    assert (len(found), sum(count for count, _ in found), snapshots) == COUNTS[life]
