"""A topic's whole life with any configuration, beside a neighbour with none, on a clock driven by
hand: whatever the settings are, there is no unexpected error, no loop without an end, and no effect
on the neighbour.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self

from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage.files import FileSlice
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, Offload
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.records import Record, iter_records
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.appends.append import PartitionAppendResult
from tests.replication.world import World, batch
from tests.sim.offload import run_inline
from tests.sim.timers import SimTimers

DAY_MS: Final = 86_400_000
ROUND_MS: Final = 21_000
"""In which retention, checkpoints and the cleaner have had their turn."""
NEIGHBOUR: Final = "neighbour"
MAX_CALLS: Final = 20_000
"""Of timers in one step: more of them is a loop without an end."""

REFUSALS: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_RECORD,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
"""What a topic may answer to a sound batch because of its configuration."""

LISTED: Final = (-1, -2, -3, -4, -5, 0, 1, 1 << 62, (1 << 63) - 1)


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A temporary folder, in memory where the system has a place for that: many lives make many
    files, and no machine crashes here.
    """
    shared = Path("/dev/shm")
    with TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


class BoundedTimers(SimTimers):
    """Timers of which one step may call only so many."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def call_later(self, delay_ms: float, callback: Callable[[], None]):  # type: ignore[no-untyped-def]  # of SimTimers
        def counted() -> None:
            self.calls += 1
            assert self.calls <= MAX_CALLS, "timers call each other for ever"
            callback()

        return super().call_later(delay_ms, counted)


class BoundedWorld(World):
    """Its cleaner, retention and flush run on `BoundedTimers`."""

    timers: BoundedTimers

    def __init__(self, folder: Path, **properties: str) -> None:
        defaults = {
            "log_index_size_max_bytes": "4096",
            "log_retention_check_interval_ms": "10000",
            "log_flush_offset_checkpoint_interval_ms": "20000",
            "log_flush_start_offset_checkpoint_interval_ms": "20000",
            "replica_high_watermark_checkpoint_interval_ms": "20000",
        }
        super().__init__(folder, partitions=0, **defaults | properties)

    def make_timers(self) -> BoundedTimers:
        return BoundedTimers()

    def open(self, offload: Offload = run_inline) -> None:
        super().open(offload)
        self.replicas.start()


class Complaints(logging.Handler):
    """Every ERROR line, and every one with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self.lines.append(self.format(record))

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        logging.getLogger().removeHandler(self)


class TopicLife:
    """One topic. `live` does everything once; `settings` are Kafka's names and texts."""

    def __init__(self, world: BoundedWorld, number: int, settings: Mapping[str, str]) -> None:
        self.world = world
        self.topic = f"life-{number}"
        self.topic_id = number.to_bytes(16, "big")
        self.key = TopicPartition(self.topic, 0)
        self.settings = dict(settings)
        self.accepted: list[bytes | None] = []
        self.is_complete = True  # nothing was retired or compacted so far
        self.partition_epoch = 0
        self.sequence = 0

    def live(self, *, alter: bool) -> None:
        """alter: the topic is created with defaults and gets the settings after some records."""
        with Complaints() as complaints:
            self.host({} if alter else self.settings)
            if alter:
                self.produce()
                self.configure(self.settings)
            self.produce()
            self.read()
            self.list_offsets()
            self.roll()
            self.produce()
            self.read()
            self.move_clock(ROUND_MS)
            self.read()
            self.move_clock(8 * DAY_MS)
            self.produce()
            self.roll()
            self.read()
            self.restart(clean=True)
            self.produce()
            self.restart(clean=False)
            self.read()
            self.delete_records()
            self.configure({})
            self.produce()
            self.configure(self.settings)
            self.roll()
            self.move_clock(2 * DAY_MS)
            self.list_offsets()
            self.read()
            self.delete()
        assert not complaints.lines, complaints.lines

    # what is done

    def host(self, settings: Mapping[str, str]) -> None:
        self.world.host(
            topic=self.topic, topic_id=self.topic_id, partition_epoch=self.partition_epoch,
            **_names(settings),
        )  # fmt: skip
        self.partition_epoch += 1
        self.check()

    def configure(self, settings: Mapping[str, str]) -> None:
        """As after IncrementalAlterConfigs."""
        self.world.configure_topic(self.topic, **_names(settings))
        self.is_complete = False  # retention and compaction may have been off until now
        self.check()

    def produce(self) -> None:
        """Plain, keyed, compressed, tombstones, an idempotent producer, with times of today, of
        none, of the beginning and of the end.
        """
        now_ms = self.world.timers.now_ms()
        for codec in Compression:
            for key in (None, b"k%d" % codec):
                value = b"%s %d" % (self.topic.encode(), len(self.accepted))
                self.send([(now_ms, key, value * 20, [])], [value * 20], compression=codec)
        for timestamp in (-1, 0, now_ms + DAY_MS, (1 << 63) - 1):
            self.send([(timestamp, b"when", b"%d" % timestamp, [])], [b"%d" % timestamp])
        self.send([(now_ms, b"k0", None, []), (now_ms, b"k1", None, [])], [None, None])
        value = b"%d" % self.sequence
        error = self.send(
            [(now_ms, b"once", value, [])], [value],
            producer_id=7, producer_epoch=0, base_sequence=self.sequence,
        )  # fmt: skip
        if not error:
            self.sequence += 1
        self.check()

    def send(
        self,
        records: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
        values: list[bytes | None],
        **options: object,
    ) -> ErrorCode:
        data = build_batch(records, **options)  # type: ignore[arg-type]  # the keywords of build_batch
        outcome = self.world.replicas.append(
            self.key, data, acks=-1, timeout_ms=1000, produce_version=11
        )
        if isinstance(outcome, Deferred):
            self.let_pass(2000)
            assert outcome.done
            outcome = outcome.value
        assert isinstance(outcome, PartitionAppendResult)
        assert outcome.error in REFUSALS, (outcome.error.name, options)
        if not outcome.error:
            self.accepted += values
        return outcome.error

    def read(self) -> None:
        """From the log's start to its end: batch after batch, whatever was accepted."""
        log = self.log
        offset, values = log.log_start_offset, list[bytes | None]()
        for _ in range(10_000):
            found = self.records_at(offset)
            if not found:
                break
            assert [r.offset for r in found] == sorted({r.offset for r in found})
            values += [record.value for record in found if record.offset >= offset]
            offset = self.next_offset
        assert offset == log.log_end_offset, "the reader got no further"
        if self.is_complete and log.log_start_offset == 0 and not log.config.compact:
            assert values == self.accepted
        self.check()

    def records_at(self, offset: int) -> list[Record]:
        """Of the batches of one read; `next_offset` is behind them."""
        log = self.log
        info = log.read(offset, max_bytes=1 << 16)
        data = info.records.read() if isinstance(info.records, FileSlice) else info.records
        found: list[Record] = []
        self.next_offset = max(offset, info.end_offset)
        for position, header in iter_batches(data):
            found += iter_records(memoryview(data)[position : position + header.size_bytes], header)
            self.next_offset = header.next_offset
        if not found and self.next_offset < log.log_end_offset and self.next_offset > offset:
            return self.records_at(self.next_offset)  # an emptied batch
        return found

    def list_offsets(self) -> None:
        for timestamp in (*LISTED, self.world.timers.now_ms()):
            answer = self.world.replicas.offset_of(self.key, timestamp)
            self.let_pass(0)
            found = answer.value
            assert not found.error, (timestamp, found)
            assert -1 <= found.offset <= self.log.log_end_offset
        self.check()

    def roll(self) -> None:
        """By age, as far as segment.ms goes; then by hand, so that there are closed segments."""
        self.let_pass(1000)
        self.send([(self.world.timers.now_ms(), b"roll", b"roll", [])], [b"roll"])
        self.log.roll(self.world.timers.now_ms())
        self.check()

    def move_clock(self, ms: int) -> None:
        """Retention, cleaning, flush and deletion have their turn."""
        self.world.timers.wall_jump_ms += ms
        self.let_pass(ROUND_MS)
        self.is_complete = False
        self.check()

    def restart(self, *, clean: bool) -> None:
        if clean:
            self.world.replicas.close()
        self.world.logs.close(clean=clean)
        self.world.timers.forget_all()
        self.world.open()
        self.world.host(topic=NEIGHBOUR, topic_id=bytes(15) + b"\1", partition_epoch=1)
        self.host(self.settings)

    def delete_records(self) -> None:
        for offset in (0, self.log.log_start_offset + 1, -1):
            try:
                self.world.replicas.delete_records(self.key, offset)
            except KafkaError as error:
                assert error.code in (ErrorCode.POLICY_VIOLATION, ErrorCode.OFFSET_OUT_OF_RANGE)
        self.let_pass(ROUND_MS)
        self.is_complete = False
        self.check()

    def delete(self) -> None:
        folder = self.log.directory
        delay_ms = self.log.config.file_delete_delay_ms
        self.world.remove(topic=self.topic)
        assert not folder.exists()
        self.world.timers.wall_jump_ms += min(delay_ms, DAY_MS)
        self.let_pass(2000)
        left = list(folder.parent.glob(f"{self.topic}-0.*"))
        assert not left or delay_ms > DAY_MS, left
        self.check()

    # what must hold all the time

    def let_pass(self, ms: int) -> None:
        self.world.timers.calls = 0
        self.world.timers.advance(ms)

    def check(self) -> None:
        """The neighbour is written and read; no disk, no log was given up."""
        world = self.world
        assert not world.logs.offline_directories
        assert not world.logs.offline_partitions
        assert not world.replicas._maintenance.cleaner.uncleanable
        key = TopicPartition(NEIGHBOUR, 0)
        now_ms = world.timers.now_ms()
        outcome = world.replicas.append(key, batch(timestamp=now_ms), acks=-1, timeout_ms=1000)
        assert isinstance(outcome, PartitionAppendResult) and not outcome.error
        log = world.logs.logs[key]
        assert log.read(log.log_end_offset - 1, max_bytes=1).records

    @property
    def log(self) -> PartitionLog:
        return self.world.logs.logs[self.key]


def _names(settings: Mapping[str, str]) -> dict[str, str]:
    return {name.replace(".", "_"): text for name, text in settings.items()}
