"""The short way into the log leaves what the long way leaves."""

from __future__ import annotations

import errno
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from kbroker.log import next_batch, partition_log
from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage import files
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.validator import AppendOrigin
from kbroker.model import TopicPartition
from kbroker.protocol.batch_builder import build_batch
from kbroker.protocol.batch_header import ATTRIBUTES_POSITION, CRC_POSITION
from kbroker.protocol.checksum import crc32c
from kbroker.protocol.compression import LARGEST_RATIO, Compression
from kbroker.protocol.control_records import build_end_transaction_marker
from kbroker.protocol.errors import KafkaError
from kbroker.settings.log_config import LogConfig

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(
    segment_bytes=6000, segment_index_bytes=4096, index_interval_bytes=300, max_message_bytes=2500
)
CONFIGS = (
    CONFIG,
    CONFIG,
    CONFIG,
    replace(CONFIG, message_timestamp_type="LogAppendTime"),
    replace(CONFIG, compression_type="lz4"),
    replace(CONFIG, cleanup_policy=frozenset({"compact"})),
    replace(CONFIG, message_timestamp_before_max_ms=1000),
    replace(CONFIG, validate_records=True),
    replace(CONFIG, segment_ms=1000),
    replace(CONFIG, segment_bytes=4000),
)


def open_log(folder: Path) -> PartitionLog:
    return PartitionLog.open(folder, TopicPartition("topic", 0), CONFIG, now_ms=NOW_MS)


def sign(batch: bytearray) -> None:
    """Give it the right CRC."""
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(memoryview(batch)[ATTRIBUTES_POSITION:]))


class Story:
    """A random history of one log, told the same way for the same seed."""

    def __init__(self, log: PartitionLog, seed: int) -> None:
        self.log = log
        self.random = Random(seed)
        first = self.random.choice((0, 0x7FFFFFFF - 9))
        self.next_sequence = {(7, 0): first, (8, 3): first}
        self.epoch_of = {7: 0, 8: 3}
        self.in_transaction: set[int] = set()
        self.sent: list[bytes] = []
        self.leader_epoch = 0
        self.now_ms = NOW_MS
        self.told: list[object] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.random.choices(
                (self.batch, self.again, self.broken, self.marker, self.turn),
                (60, 4, 8, 3, 2),
            )[0]
            step()

    def append(self, batch: bytearray, version: int | None = 12) -> bool:
        view = memoryview(batch)
        try:
            info = self.log.append_as_leader(
                view,
                leader_epoch=self.leader_epoch,
                now_ms=self.now_ms,
                produce_version=version,
            )
        except KafkaError as error:
            self.told.append((error.code, error.message))
            return False
        slots = [getattr(info, name) for name in info.__slots__]
        self.told.append((slots, bytes(view[:16])))
        return not info.duplicate

    def new_batch(self, producer: int, *, shift: int = 0, transactional: bool) -> bytearray:
        random = self.random
        self.now_ms += random.choice((0, 1, 40))
        count = random.choice((1, 1, 2, 5))
        values = random.choice((0, 10, 200, 400))
        key = None if random.random() < 0.2 else b"k"
        records = [(self.now_ms + n, key, bytes(values), []) for n in range(count)]
        epoch = self.epoch_of.get(producer, -1)
        sequence = -1
        if producer >= 0:
            sequence = (self.next_sequence.get((producer, epoch), 0) + shift) & 0x7FFFFFFF
        return build_batch(
            records,  # type: ignore[arg-type]  # tuples, as it takes them
            compression=random.choice(list(Compression)),
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )

    def batch(self) -> None:
        producer = self.random.choice((-1, 7, 7, 8, 8))
        wants = producer == 8 and (8 in self.in_transaction or self.random.random() < 0.3)
        batch = self.new_batch(producer, transactional=wants)
        self.sent = [*self.sent[-7:], bytes(batch)]
        count = struct.unpack_from(">i", batch, 57)[0]
        if self.append(batch, self.random.choice((12, 12, 12, 9, 7, 5, 3, None))):
            if producer >= 0:
                key = (producer, self.epoch_of[producer])
                self.next_sequence[key] = self.next_sequence.get(key, 0) + count
            if wants:
                self.in_transaction.add(producer)

    def again(self) -> None:
        if self.sent:
            self.append(bytearray(self.random.choice(self.sent)))

    def broken(self) -> None:
        random = self.random
        batch = self.new_batch(
            random.choice((-1, 7, 8)),
            shift=random.choice((0, 0, 1, -1)),
            transactional=random.random() < 0.3,
        )
        kind = random.randrange(11)
        if kind == 10:
            most = (len(batch) - 61) * LARGEST_RATIO[Compression(batch[22] & 7)] // 7
            claiming(batch, max(1, min(2**31 - 1, random.choice((most, most + 1, 3 * most)))))
        elif kind == 0:
            place = random.choice((random.randrange(21), random.randrange(len(batch))))
            batch[place] ^= 1 << random.randrange(8)
        elif kind == 1:  # any field, with a right CRC
            place = random.choice((22, 22, random.randrange(ATTRIBUTES_POSITION, 61)))
            batch[place] ^= 1 << random.randrange(8)
            sign(batch)
        elif kind == 6:
            struct.pack_into(">i", batch, 23, -1)
            struct.pack_into(">i", batch, 57, 0)
            sign(batch)
        elif kind == 7:
            batch = batch + b"more"
            sign(batch)
        elif kind == 8:
            batch[16] = random.choice((0, 1, 3, 255))
        elif kind == 9:
            batch[52] ^= random.choice((1, 2, 3))  # the producer's epoch
            sign(batch)
        elif kind == 2:
            batch = batch[: random.randrange(len(batch))]
        elif kind == 3:
            batch = batch + batch
        elif kind == 4:
            struct.pack_into(">q", batch, 35, self.now_ms + 3_600_000 + random.randrange(-2, 3))
            sign(batch)
        elif kind == 5:
            batch = build_batch([(self.now_ms, b"k", bytes(random.choice((2300, 2600))), [])])
        self.append(batch)

    def marker(self) -> None:
        if not self.in_transaction:
            return
        self.in_transaction.clear()
        version = self.random.choice((0, 2))
        self.epoch_of[8] += version // 2
        marker = build_end_transaction_marker(
            commit=self.random.random() < 0.5,
            producer_id=8,
            producer_epoch=self.epoch_of[8],
            coordinator_epoch=0,
            timestamp_ms=self.now_ms,
        )
        self.log.append_as_leader(
            marker,
            leader_epoch=self.leader_epoch,
            now_ms=self.now_ms,
            origin=AppendOrigin.COORDINATOR,
            transaction_version=version,
        )

    def turn(self) -> None:
        """Something else changes: leadership, an epoch, settings, the high watermark, the day."""
        random = self.random
        what = random.randrange(6)
        if what == 0:
            self.leader_epoch += 1
        elif what == 1:
            self.epoch_of[7] += 1
        elif what == 2:
            self.log.update_config(random.choice(CONFIGS))
        elif what == 3:
            self.log.on_high_watermark(random.randint(0, self.log.log_end_offset))
        elif what == 4:
            self.log.flush()
        else:
            self.now_ms += random.choice((86_400_000, 604_800_001))


def what_is_left(log: PartitionLog, folder: Path) -> dict[str, object]:
    """All a log knows, then, once it is closed, all its files."""
    left: dict[str, object] = {
        "end": log.log_end_offset,
        "start": log.log_start_offset,
        "unflushed": log.first_unflushed_ms,
        "unstable": log.first_unstable_offset,
        "map end": log.producers.map_end_offset,
        "producers": {
            state.producer_id: [getattr(state, name) for name in state.__slots__]
            for state in log.producers.active_producers.values()
        },
        "segments": [
            (
                segment.base_offset,
                segment.size,
                segment.bytes_since_index_entry,
                segment.max_timestamp,
                segment.first_timestamp,
                segment.offset_index.entries(),
                segment.time_index.entries(),
            )
            for segment in log.segments
        ],
    }
    log.close()
    for path in sorted(folder.iterdir()):
        left[path.name] = path.read_bytes()
    return left


@pytest.mark.parametrize("seed", range(40))
def test_the_short_way_leaves_what_the_long_way_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    taken: Counter[bool] = Counter()
    short = next_batch.append_next_batch

    def counted(*arguments: object, **options: object) -> int:
        offset = short(*arguments, **options)  # type: ignore[arg-type]  # passed on
        taken[offset >= 0] += 1
        return offset

    outcomes = []
    for name, way in (("short", counted), ("long", lambda *_, **__: -1)):
        monkeypatch.setattr(partition_log, "append_next_batch", way)
        folder = tmp_path / name / "topic-0"
        folder.parent.mkdir()
        log = open_log(folder)
        story = Story(log, seed)
        story.run(150)
        outcomes.append((story.told, what_is_left(log, folder)))
    assert outcomes[0] == outcomes[1]
    assert taken[True] and taken[False]


def test_a_batch_that_may_not_be_transactional_is_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    for sequence in range(3):
        batch = build_batch(
            [(NOW_MS, None, b"", [])],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        before = bytes(batch)
        found = next_batch.append_next_batch(log, batch, 12, 0, NOW_MS)
        assert (found, bytes(batch), log.log_end_offset) == (-1, before, sequence)
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
    batch = build_batch(
        [(NOW_MS, None, b"", [])], producer_id=7, producer_epoch=0, base_sequence=3,
        is_transactional=True,
    )  # fmt: skip
    assert next_batch.append_next_batch(log, batch, 12, 0, NOW_MS, transactional=True) == 3


@pytest.mark.parametrize("written", [0, 50])
def test_a_disk_that_fails_in_between_cuts_the_batch_off_and_ends_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    folder = tmp_path / "topic-0"
    log = open_log(folder)
    batch = build_batch([(NOW_MS, None, bytes(100), [])])
    log.append_as_leader(bytearray(batch), leader_epoch=0, now_ms=NOW_MS)
    real = os.pwrite

    def fail(fd: int, data: bytes | memoryview, position: int) -> int:
        real(fd, memoryview(data)[:written], position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "pwrite", fail)
        with pytest.raises(LogDirectoryError):
            next_batch.append_next_batch(log, bytearray(batch), 12, 0, NOW_MS)
    assert log.failure is not None
    assert log.log_end_offset == 1
    assert log.segments.active.size == len(batch)
    assert (folder / "00000000000000000000.log").stat().st_size == len(batch)
    assert next_batch.append_next_batch(log, bytearray(batch), 12, 0, NOW_MS) == -1
    with pytest.raises(LogDirectoryError):
        log.append_as_leader(bytearray(batch), leader_epoch=0, now_ms=NOW_MS)


def test_what_a_replica_took_over_does_not_open_the_way(tmp_path: Path) -> None:
    """A leader's log may hold what no client may send: a producer without an epoch."""
    log = open_log(tmp_path / "topic-0")
    for number in range(2):
        batch = build_batch(
            [(NOW_MS, None, b"", [])], producer_id=7, producer_epoch=-1, base_sequence=number,
            base_offset=number, partition_leader_epoch=0,
        )  # fmt: skip
        if not number:
            log.append_as_follower(batch, now_ms=NOW_MS)
    struct.pack_into(">q", batch, 0, 0)
    assert next_batch.append_next_batch(log, batch, 12, 0, NOW_MS) == -1
    with pytest.raises(KafkaError, match="sent epoch -1"):
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)


def test_bytes_that_may_not_be_changed_are_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    log.append_as_leader(build_batch([(NOW_MS, None, b"", [])]), leader_epoch=0, now_ms=NOW_MS)
    batch = bytes(build_batch([(NOW_MS, None, b"", [])]))
    view = memoryview(batch)
    assert next_batch.append_next_batch(log, view, 12, 0, NOW_MS) == -1
    assert log.append_as_leader(view, leader_epoch=0, now_ms=NOW_MS).base_offset == 1


def batch_at(timestamp: int) -> bytearray:
    """A batch of one record."""
    return build_batch([(timestamp, None, bytes(100), [])])


def claiming(batch: bytearray, count: int) -> bytearray:
    """The batch with another record count and the last offset delta that goes with it."""
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    sign(batch)
    return batch


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_that_claims_more_records_than_it_can_hold_is_left_alone(
    tmp_path: Path, codec: Compression
) -> None:
    log = open_log(tmp_path / "topic-0")
    log.append_as_leader(batch_at(NOW_MS), leader_epoch=0, now_ms=NOW_MS)
    for count in range(1, 4):
        honest = build_batch([(NOW_MS, None, None, [])] * count, compression=codec)
        end = log.log_end_offset
        assert next_batch.append_next_batch(log, honest, 12, 0, NOW_MS) == end
        most = (len(honest) - 61) * LARGEST_RATIO[codec] // 7
        for claimed in (most + 1, 2**31 - 1):
            lie = claiming(bytearray(honest), claimed)
            struct.pack_into(">q", lie, 0, 0)
            assert next_batch.append_next_batch(log, lie, 12, 0, NOW_MS) == -1
            with pytest.raises(KafkaError, match=f"{claimed} records in"):
                log.append_as_leader(lie, leader_epoch=0, now_ms=NOW_MS)
        assert (log.log_end_offset, len(log.segments)) == (end + count, 1)


DAY_MS = 86_400_000


def new_settings(log: PartitionLog) -> Iterator[bytearray]:
    yield from (batch_at(NOW_MS), batch_at(NOW_MS))
    log.update_config(replace(CONFIG, segment_ms=10))
    yield from (batch_at(NOW_MS + 10), batch_at(NOW_MS + 11))


def cut_to_nothing(log: PartitionLog) -> Iterator[bytearray]:
    yield from (batch_at(NOW_MS), batch_at(NOW_MS))
    log.truncate_to(0, now_ms=NOW_MS)
    yield from (batch_at(NOW_MS - days * DAY_MS) for days in (8, 2, 0))


def rolled_early(log: PartitionLog) -> Iterator[bytearray]:
    log.segments.active.roll_jitter_ms = 1000
    yield batch_at(NOW_MS - 7 * DAY_MS)
    yield batch_at(NOW_MS - 1000)
    yield batch_at(NOW_MS - 999)


def full_index(log: PartitionLog) -> Iterator[bytearray]:
    for number in range(9):
        yield batch_at(NOW_MS + number)


def far_offset(log: PartitionLog) -> Iterator[bytearray]:
    yield batch_at(NOW_MS)
    far = build_batch([(NOW_MS, None, bytes(100), [])], base_offset=0x7FFFFFFE)
    log.append_as_follower(far, now_ms=NOW_MS)
    yield from (batch_at(NOW_MS), batch_at(NOW_MS))


def no_timestamps(log: PartitionLog) -> Iterator[bytearray]:
    yield from (batch_at(-1), batch_at(-1), batch_at(NOW_MS), batch_at(-1))


@pytest.mark.parametrize(
    ("tell", "config", "rolls"),
    [
        (new_settings, CONFIG, 1),
        (cut_to_nothing, CONFIG, 1),
        (rolled_early, CONFIG, 1),
        (full_index, replace(CONFIG, index_interval_bytes=0, segment_index_bytes=60), 1),
        (far_offset, CONFIG, 1),
        (no_timestamps, CONFIG, 0),
    ],
)
def test_both_ways_roll_at_the_same_batch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tell: Callable[[PartitionLog], Iterator[bytearray]],
    config: LogConfig,
    rolls: int,
) -> None:
    """Why a segment ends, by hand: what is rare in the stories above."""
    outcomes = []
    for name in ("short", "long"):
        if name == "long":
            monkeypatch.setattr(partition_log, "append_next_batch", lambda *_, **__: -1)
        folder = tmp_path / name / "topic-0"
        folder.parent.mkdir()
        log = PartitionLog.open(folder, TopicPartition("topic", 0), config, now_ms=NOW_MS)
        for batch in tell(log):
            log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
        assert len(log.segments) == rolls + 1
        outcomes.append(what_is_left(log, folder))
    assert outcomes[0] == outcomes[1]
