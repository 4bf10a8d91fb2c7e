"""What a share fetch finds to deliver, what is wrong with the others, and what it acquires."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar, cast

import pytest
from msgspec.structs import replace

from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.share_partition_state import SharePlace, StateFound
from kbroker.replication.manager import ReplicaManager
from kbroker.settings.views.share_groups import ShareGroupConfig
from kbroker.share.delivery import Delivery, Failures, ReadLimits
from kbroker.share.open_partitions import OpenSharePartition
from kbroker.share.partitions import SharePartitions
from kbroker.share.persister import SharePersister
from kbroker.share.read_batches import Readable, ReadBatches
from kbroker.share.session import ShareSession, ShareSessions
from tests.share.test_skips import (
    ABORTED_PRODUCER,
    OTHER_PRODUCER,
    PLACE,
    Aborted,
    FakePersister,
    FakeReplica,
    FakeReplicas,
    batch,
)
from tests.sim.offload import run_inline
from tests.sim.timers import SimTimers

T = TypeVar("T")
LIMITS = ReadLimits(0, 1, 1 << 20, 500, 500, False)


class ScriptedReplica(FakeReplica):
    error = ErrorCode.NONE

    def check_leader(self) -> ErrorCode:
        return self.error


class ScriptedPersister(FakePersister):
    error = ErrorCode.NONE

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        if self.error:
            return Deferred.of(StateFound(self.error, start_offset=-1, state_epoch=0, batches=[]))
        return super().read(key, leader_epoch)


def finished(steps: Generator[Any, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(T, end.value)


class World:
    """A session of one partition; six records, the first two of an aborted transaction."""

    def __init__(self, **config: object) -> None:
        timers = SimTimers()
        producers = [ABORTED_PRODUCER] * 2 + [OTHER_PRODUCER] * 4
        self.replica = ScriptedReplica([batch(i, one) for i, one in enumerate(producers)])
        self.replica.log.aborted = [Aborted(0, ABORTED_PRODUCER)]
        self.replicas = FakeReplicas(self.replica, timers)
        self.persister = ScriptedPersister()
        replicas = cast(ReplicaManager, self.replicas)
        settings = replace(ShareGroupConfig(), **config)  # type: ignore[arg-type]  # of a test
        persister = cast(SharePersister, self.persister)
        self.partitions = SharePartitions(replicas, persister, timers, lambda _: settings)
        self.delivery = Delivery(replicas, self.partitions, lambda _: settings, run_inline)
        self.session = self.join("m")

    def join(self, member: str) -> ShareSession:
        session = ShareSessions(1).begin(("g", member), "connection")
        session.partitions[PLACE] = None
        return session

    def look(self, limits: ReadLimits = LIMITS) -> tuple[list[Readable], Failures]:
        return finished(self.delivery.look(self.session, limits))

    def read(self, readable: Readable, max_records: int = 500) -> ReadBatches:
        failed: Failures = {}
        batches = finished(self.delivery.read(self.session, readable, max_records, failed))
        assert batches is not None and not failed
        return batches


def offsets(world: World, readable: Readable, *, most: int = 500) -> list[tuple[int, int]]:
    data = world.delivery.acquire(world.session, world.read(readable, most), LIMITS, most)
    assert data is not None and data.partition_index == PLACE[1]
    return [(one.first_offset, one.last_offset) for one in data.acquired_records]


def test_a_look_acquires_nothing() -> None:
    world = World()
    (first,), failed = world.look()
    (again,), _ = world.look()
    assert failed == {}
    assert (first.offset, first.end_offset) == (again.offset, again.end_offset) == (0, 6)
    assert first.size_bytes == sum(map(len, world.replica.batches))
    assert offsets(world, again) == [(0, 5)]
    assert world.look() == ([], {})


def test_another_member_gets_what_is_left() -> None:
    world = World()
    (readable,), _ = world.look()
    limits = LIMITS._replace(is_strict=True)
    data = world.delivery.acquire(world.session, world.read(readable, 2), limits, max_records=2)
    assert data is not None and data.acquired_records[0].last_offset == 1
    world.session = world.join("n")
    (left,), _ = world.look()
    assert offsets(world, left) == [(2, 5)]


def test_read_committed_leaves_out_aborted_records() -> None:
    world = World(reads_committed=True)
    (readable,), _ = world.look()
    assert offsets(world, readable) == [(2, 5)]


@pytest.mark.parametrize(("reads_committed", "end_offset"), [(True, 3), (False, 5)])
def test_how_far_is_read(reads_committed: bool, end_offset: int) -> None:
    world = World(reads_committed=reads_committed)
    world.replica.last_stable_offset, world.replica.high_watermark = 3, 5
    (readable,), _ = world.look()
    assert readable.end_offset == end_offset
    world.replica.last_stable_offset = world.replica.high_watermark = 0
    assert world.look() == ([], {})


@pytest.mark.parametrize("is_open", [True, False])
def test_a_replica_that_does_not_lead_any_more(is_open: bool) -> None:
    world = World()
    if is_open:
        world.look()
    world.replica.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    found, failed = world.look()
    assert found == []
    assert failed[PLACE].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert failed[PLACE].records == b""


def test_a_state_that_cannot_be_read_is_that_partitions_error() -> None:
    world = World()
    world.persister.error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    found, failed = world.look()
    assert found == [] and failed[PLACE].error_code != ErrorCode.NONE


def test_a_log_that_begins_later() -> None:
    world = World()
    world.look()
    world.replica.log.log_start_offset = 4
    (readable,), _ = world.look()
    assert readable.offset == 4
    assert offsets(world, readable) == [(4, 5)]


def test_opening_is_told_of_while_the_state_is_read() -> None:
    world = World()
    state: Deferred[StateFound] = Deferred()
    world.persister.read = lambda key, leader_epoch: state  # type: ignore[method-assign]  # a stand-in
    opening = finished(world.delivery.open(world.session))
    assert not opening.done
    assert world.delivery.wait_on(world.session) == []
    assert world.look() == ([], {}), "not an error: it is being opened"
    state.resolve(StateFound(ErrorCode.NONE, start_offset=2, state_epoch=1, batches=[]))
    opened = opening.value[PLACE]
    assert isinstance(opened, OpenSharePartition)
    assert world.delivery.wait_on(world.session) == [opened]
    assert finished(world.delivery.open(world.session)).value == {}, "it is open already"
    (readable,), _ = world.look()
    assert readable.offset == 2


def test_skipped_records_are_noticed_though_nothing_was_acquired() -> None:
    world = World(reads_committed=True)
    limits = LIMITS._replace(max_bytes=2 * len(world.replica.batches[0]))
    found, _ = world.look(limits)
    assert not world.delivery.has_skipped(world.session, found)
    assert world.delivery.acquire(world.session, world.read(found[0]), limits, 500) is None
    assert world.delivery.has_skipped(world.session, found)


def test_no_more_than_the_locks_allow() -> None:
    world = World(group_share_partition_max_record_locks=3)
    (readable,), _ = world.look()
    assert offsets(world, readable) == [(0, 2)]
    assert world.look() == ([], {})
