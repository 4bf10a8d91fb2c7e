"""A log manager and a cleaner without threads, for tests of compaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Any

from kbroker.log.cleaner.cleaner import LogCleaner
from kbroker.log.cleaner.config import Account
from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage.open_files import OpenFiles
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import BatchHeader, iter_batches
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.protocol.batches.records import Record, iter_records
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader
from tests.own_threads import own_threads
from tests.sim.offload import run_inline
from tests.sim.timers import START_MS, SimTimers

TOPIC = TopicPartition("table", 0)
TOPIC_ID = bytes(15) + b"\x09"
COMPACT = frozenset({"compact"})
DAY_MS = 86_400_000


class Bench:
    """One log directory with one compacted log and its cleaner; look() cleans what is due."""

    def __init__(
        self,
        folder: Path,
        *,
        offload: Callable[..., None] = run_inline,
        properties: dict[str, str] | None = None,
        open_files: OpenFiles | None = None,
        memory: Account | None = None,
        unpacking: AbstractContextManager[object] | None = None,
        **config: Any,
    ) -> None:
        self.folder = folder
        self.timers = SimTimers()
        self.offload = offload
        self.open_files = open_files
        self.memory = memory
        self.unpacking = unpacking
        self.properties = {"log.dirs": str(folder), "node.id": "1"} | (properties or {})
        self.config = LogConfig(
            **{"cleanup_policy": COMPACT, "min_cleanable_dirty_ratio": 0.0} | config
        )
        self.open()

    def open(self) -> None:
        broker = BrokerConfig.from_properties(self.properties)
        self.logs = LogManager(
            broker,
            now_ms=self.timers.now_ms,
            random=Random(1),
            threads=own_threads,
            open_files=self.open_files,
        )
        self.logs.lock()
        self.logs.load(lambda topic: self.config)
        self.log = self.logs.get_or_create(TOPIC, TOPIC_ID, self.config)
        self.cleaner = LogCleaner(
            self.logs,
            self.timers,
            broker,
            offload=self.offload,
            memory=self.memory,
            unpacking=self.unpacking,
        )
        self.cleaner.start()

    def stop(self, *, clean: bool = True) -> None:
        self.cleaner.request_stop()
        self.cleaner.finish_stop()
        self.logs.close(clean=clean)

    def append(self, batch: bytes | bytearray) -> None:
        """Append as a leader, which assigns the offsets."""
        append_as_leader(self.log, bytearray(batch), leader_epoch=0, now_ms=self.timers.now_ms())

    def replay(self, batch: bytes | bytearray) -> None:
        """Append as a follower, with the batch's own offsets."""
        self.log.append_as_follower(bytes(batch), now_ms=self.timers.now_ms())

    def roll(self) -> None:
        self.log.roll(self.timers.now_ms())

    def clean(self) -> None:
        """Mark all records as replicated and flushed; then clean the due logs."""
        say_flushed(self.log)
        self.log.on_high_watermark(self.log.log_end_offset)
        self.cleaner.look()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.log.directory.iterdir())


def say_flushed(log: PartitionLog) -> None:
    """Mark closed segments as flushed, which is required for cleaning; syncs nothing."""
    end = log.segments.active.base_offset
    flush = log.begin_flush(end)
    log.jobs.settle()  # the leader epochs are written
    flush.finish()


def batches_of(log: PartitionLog) -> Iterator[tuple[BatchHeader, bytes]]:
    """Every batch, in the order of a reader of the whole log."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        info = log.read(offset, max_bytes=1 << 20)
        if not isinstance(info.records, bytes):
            data = info.records.read()
            for position, header in iter_batches(data):
                yield header, data[position : position + header.size_bytes]
        assert info.end_offset > offset
        offset = info.end_offset


def records_of(log: PartitionLog) -> list[Record]:
    """Data records in the order a reader gets them."""
    return [
        record
        for header, batch in batches_of(log)
        if not header.is_control
        for record in iter_records(batch, header)
    ]


def batch(*items: tuple[str, str | None], timestamp: int = START_MS, **options: Any) -> bytearray:
    """Records of (key, value)."""
    return build_batch(
        [
            (timestamp + i, key.encode(), None if value is None else value.encode(), [])
            for i, (key, value) in enumerate(items)
        ],
        **options,
    )


def view(bench: Bench) -> list[tuple[int, str, str | None]]:
    return [
        (r.offset, (r.key or b"").decode(), None if r.value is None else r.value.decode())
        for r in records_of(bench.log)
    ]


def filled(bench: Bench) -> Bench:
    """Three segments: two closed, one active."""
    bench.append(batch(("a", "1"), ("b", "1"), ("c", "1")))
    bench.append(batch(("a", "2")))
    bench.roll()
    bench.append(batch(("b", None), ("d", "1")))
    bench.append(batch(("a", "3"), ("a", "4"), compression=Compression.ZSTD))
    bench.roll()
    bench.append(batch(("e", "1"), ("e", "2")))
    return bench


FILLED_CLEAN = [
    (2, "c", "1"),
    (4, "b", None),
    (5, "d", "1"),
    (7, "a", "4"),
    (8, "e", "1"),
    (9, "e", "2"),
]


def transaction(
    bench: Bench, producer_id: int, epoch: int, items: list[tuple[str, str]], *, commit: bool
) -> None:
    bench.append(
        batch(*items, producer_id=producer_id, producer_epoch=epoch, base_sequence=0,
              is_transactional=True)
    )  # fmt: skip
    end_transaction(bench, producer_id, epoch + 1, commit=commit)


def end_transaction(bench: Bench, producer_id: int, epoch: int, *, commit: bool) -> None:
    marker = build_end_transaction_marker(
        commit=commit, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0,
        timestamp_ms=bench.timers.now_ms(), base_offset=bench.log.log_end_offset,
        partition_leader_epoch=0,
    )  # fmt: skip
    bench.replay(marker)
