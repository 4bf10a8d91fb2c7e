"""Random histories of a log: the first branch of an append leaves what the other branch leaves."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import astuple, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kbroker.log.appending import AppendableLog
from kbroker.log.partition_log import PartitionLog
from kbroker.log.results import Appended, Refused
from kbroker.log.validator import AppendOrigin
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import ATTRIBUTES_POSITION
from kbroker.protocol.batches.compression import LARGEST_RATIO, Compression
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from tests.log.appends import append_as_leader, request_of
from tests.log.first_branch import CONFIG, NOW_MS, claiming, open_log, sign, what_is_left

CONFIGS = (
    CONFIG,
    CONFIG,
    CONFIG,
    replace(CONFIG, message_timestamp_type="LogAppendTime"),
    replace(CONFIG, compression_type="lz4"),
    replace(CONFIG, compression_type="uncompressed"),
    replace(CONFIG, flush_messages=1 << 40),
    replace(CONFIG, cleanup_policy=frozenset({"compact"})),
    replace(CONFIG, message_timestamp_before_max_ms=1000),
    replace(CONFIG, validate_records=True),
    replace(CONFIG, segment_ms=1000),
    replace(CONFIG, segment_bytes=4000),
)


class Story:
    """A random history of one log, told the same way for the same seed."""

    def __init__(self, log: PartitionLog, seed: int, *, is_short: bool) -> None:
        self.log = log
        self.is_short = is_short
        self.append_count = 0
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
                (self.batch, self.again, self.broken, self.marker, self.turn, self.coordinator),
                (60, 4, 8, 3, 2, 15),
            )[0]
            step()

    def append(
        self,
        batch: bytearray,
        version: int | None = 12,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> bool:
        view = memoryview(batch)
        request = request_of(self.now_ms, produce_version=version, origin=origin)
        request.is_plain = request.is_plain and self.is_short
        info = self.log.append(view, self.leader_epoch, request)
        self.append_count += 1
        if isinstance(info, Refused):
            self.told.append((info.error, info.error_message))
            return False
        assert isinstance(info, Appended)
        self.told.append((astuple(info), type(info), bytes(view[:16])))
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

    def coordinator(self) -> None:
        """A batch of a coordinator, whose records and sequences are not checked."""
        random = self.random
        producer = random.choice((-1, -1, -1, 7, 8))
        wants = producer == 8 and 8 in self.in_transaction
        shift = random.choice((0, 0, 5))
        batch = self.new_batch(producer, shift=shift, transactional=wants)
        if random.random() < 0.2:
            batch[random.choice((22, len(batch) - 1))] ^= 1 << random.randrange(8)
            if random.random() < 0.5:
                sign(batch)
        count = struct.unpack_from(">i", batch, 57)[0]
        taken = self.append(batch, None, AppendOrigin.COORDINATOR)
        if taken and producer >= 0 and not batch[22] & 0x20:
            key = (producer, self.epoch_of[producer])
            self.next_sequence[key] = self.next_sequence.get(key, 0) + shift + count
            if batch[22] & 0x10:
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
        self.append_count += 1
        append_as_leader(
            self.log,
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


@pytest.mark.parametrize("seed", range(40))
def test_the_short_way_leaves_what_the_long_way_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    long = AppendableLog._append_any
    long_count = 0

    def counted(log: PartitionLog, *arguments: Any) -> Any:
        nonlocal long_count
        long_count += 1
        return long(log, *arguments)

    monkeypatch.setattr(AppendableLog, "_append_any", counted)
    taken: Counter[bool] = Counter()
    outcomes = []
    for name in ("long", "short"):
        no_origin = object() if name == "long" else AppendOrigin.COORDINATOR
        monkeypatch.setattr("kbroker.log.appending._COORDINATOR", no_origin)
        long_count = 0
        folder = tmp_path / name / "topic-0"
        folder.parent.mkdir()
        log = open_log(folder)
        story = Story(log, seed, is_short=name == "short")
        story.run(150)
        taken = Counter({True: story.append_count - long_count, False: long_count})
        assert taken[True] == 0 or name == "short"
        outcomes.append((story.told, what_is_left(log, folder)))
    assert outcomes[0] == outcomes[1]
    assert taken[True] and taken[False]
