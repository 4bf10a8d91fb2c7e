"""What a reader of committed records makes of fetches from every offset, with limits of every size,
over transactions that overlap and lie across segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from kbroker.log.validator import AppendOrigin
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.control_records import (
    ControlType,
    build_end_transaction_marker,
    control_type,
)
from kbroker.protocol.batches.records import iter_records
from kbroker.replication.appends.append import PartitionAppendResult
from tests.replication.world import (
    NOW_MS,
    TOPIC,
    World,
    batch,
    fetch_request,
    partitions_of,
    record_bytes,
)

KEY = TopicPartition(TOPIC, 0)
PRODUCERS = range(7, 11)


class History:
    """Batches of several producers, and which offsets a reader of committed records is to see."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.open: dict[int, list[int]] = {}
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.visible: set[int] = set()

    def write(self) -> None:
        random, producer = self.random, self.random.choice(PRODUCERS)
        match random.random():
            case chance if chance < 0.5:
                count = random.randint(1, 4)
                sequence = self.sequences[producer]
                self.sequences[producer] += count
                added = self.append(
                    batch(
                        count,
                        producer_id=producer,
                        producer_epoch=0,
                        base_sequence=sequence,
                        is_transactional=True,
                    )
                )
                self.open.setdefault(producer, []).extend(added)
            case chance if chance < 0.6:
                self.visible.update(self.append(batch(random.randint(1, 3))))
            case chance if chance < 0.75:
                log = self.world.logs.logs[KEY]
                if log.segments.active.size:
                    log.roll(NOW_MS)
            case _:
                self.end(producer, commit=random.random() < 0.5)

    def end(self, producer: int, *, commit: bool) -> None:
        marker = build_end_transaction_marker(
            commit=commit,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=NOW_MS,
        )
        self.append(marker, AppendOrigin.COORDINATOR)
        offsets = self.open.pop(producer, [])
        if commit:
            self.visible.update(offsets)

    def append(self, data: bytearray, origin: AppendOrigin = AppendOrigin.CLIENT) -> range:
        outcome = self.world.replicas.append(KEY, data, acks=1, timeout_ms=1000, origin=origin)
        assert isinstance(outcome, PartitionAppendResult)
        assert outcome.error == 0
        return range(outcome.base_offset, outcome.last_offset + 1)

    @property
    def stable(self) -> int:
        end = self.world.logs.logs[KEY].log_end_offset
        return min((offsets[0] for offsets in self.open.values()), default=end)


def read(world: World, offset: int, max_bytes: int) -> Iterator[int]:
    """The offsets of the records that a client hands on, fetch after fetch, as Kafka's own does."""
    while True:
        request = fetch_request({0: offset}, read_committed=True, partition_max_bytes=max_bytes)
        found = partitions_of(world.fetch_now(request))[0]
        raw = record_bytes(found)
        if not raw:
            assert offset == found.last_stable_offset
            return
        waiting = sorted(
            (entry.first_offset, entry.producer_id) for entry in found.aborted_transactions or ()
        )
        aborted: set[int] = set()
        for position, header in iter_batches(raw):
            records = list(iter_records(raw[position : position + header.size_bytes], header))
            while waiting and waiting[0][0] <= header.last_offset:
                aborted.add(waiting.pop(0)[1])
            if header.is_control:
                if control_type(records[0]) is ControlType.ABORT:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                yield from (record.offset for record in records if record.offset >= offset)
            following = header.next_offset
        offset = following


@pytest.mark.parametrize("seed", range(8))
def test_aborted_records_are_nowhere_read(world: World, seed: int) -> None:
    history = History(world, Random(seed))
    for _ in range(60):
        history.write()
    assert len(world.logs.logs[KEY].segments) > 3
    for producer in list(history.open)[1:]:
        history.end(producer, commit=False)
    stable = history.stable
    for max_bytes in (1, 400, 1 << 20):
        for offset in range(stable + 1):
            wanted = [one for one in sorted(history.visible) if offset <= one < stable]
            assert list(read(world, offset, max_bytes)) == wanted


def test_the_guard_changes_with_markers_of_the_producer_and_with_the_leader(world: World) -> None:
    history = History(world, Random(1))
    replicas = world.replicas
    fresh = replicas.verification_guard(KEY, 7)
    assert fresh is not None and not replicas.has_open_transaction(KEY, 7, 0)
    options = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
    history.append(batch(base_sequence=0, **options))
    assert replicas.verification_guard(KEY, 7) == fresh
    assert replicas.has_open_transaction(KEY, 7, 0)
    history.end(8, commit=True)
    assert replicas.verification_guard(KEY, 7) == fresh, "another producer's marker"
    history.end(7, commit=False)
    ended = replicas.verification_guard(KEY, 7)
    history.end(7, commit=False)
    guards = {fresh, ended, replicas.verification_guard(KEY, 7)}
    assert len(guards) == 3
    world.host(epoch=5, partition_epoch=1)
    assert replicas.verification_guard(KEY, 7) not in guards
    assert replicas.verification_guard(TopicPartition(TOPIC, 9), 7) is None
