"""The follower: acknowledges synced records, truncates diverging ones, fetches snapshots."""

from __future__ import annotations

import pytest

from kbroker.model import InvariantError
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.quorum import FetchSnapshotRequest
from kbroker.quorum.raft.effects import InstallSnapshot, Send, Truncate
from kbroker.quorum.raft.offsets import OffsetAndEpoch, SnapshotId
from kbroker.quorum.raft.raft_log import FetchPosition, PositionKind
from kbroker.quorum.raft.requests.messages import LeaderView, fetch_response
from tests.quorum.raft.replicas import Replica, Replicas


def last_fetch(replica: Replica) -> Send:
    sends = [each for each in replica.effects if isinstance(each, Send)]
    return [each for each in sends if isinstance(each.request, FetchRequest)][-1]


def followers(world: Replicas, leader: Replica) -> list[Replica]:
    return [each for each in world.replicas.values() if each is not leader]


def test_a_voter_fetches_again_only_after_it_synced() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    one, two = followers(world, leader)
    one.holds_flushes = two.holds_flushes = True
    before = leader.node.quorum.high_watermark
    leader.propose(b"a")
    world.advance(1000)
    assert one.records == two.records == [b"a"]
    assert leader.node.quorum.high_watermark == before
    one.finish_flush()
    world.advance(10)
    assert leader.node.quorum.high_watermark == before + 1


def test_a_broker_does_not_wait_for_its_disk() -> None:
    world = Replicas(1, observers=(7,))
    world.elect()
    world[7].holds_flushes = True
    world[1].propose(b"a")
    world.advance(1000)
    world[1].propose(b"b")
    world.advance(1000)
    assert world[7].records == [b"a", b"b"]
    assert world[7].node.quorum.high_watermark == 5


def test_a_former_leader_goes_back_to_where_its_log_agrees() -> None:
    world = Replicas(1, 2, 3)
    old = world.elect()
    for other in (1, 2, 3):
        if other != old.id:
            world.cut |= {(old.id, other), (other, old.id)}
    old.propose(b"x")
    old.propose(b"y", b"z")
    world.advance(10_000)
    new = world.leader()
    new.propose(b"kept")
    world.cut.clear()
    world.advance(10_000)
    assert any(isinstance(each, Truncate) for each in old.effects)
    assert old.records == new.records == [b"kept"]
    assert old.node.quorum.log.end == new.node.quorum.log.end


def answer_last_fetch(follower: Replica, position: FetchPosition, high_watermark: int) -> None:
    send = last_fetch(follower)
    quorum = follower.node.quorum
    response = fetch_response(
        LeaderView(quorum.epoch, quorum.leader_id, None),
        ErrorCode.NONE,
        high_watermark=high_watermark,
        log_start_offset=0,
        position=position,
        version=18,
    )
    effects = follower.node.response_received(send.correlation_id, response, follower.world.now_ms)
    follower.do(effects)


@pytest.mark.parametrize("end", [OffsetAndEpoch(1, 1), OffsetAndEpoch(0, 0)])
def test_a_leader_without_a_committed_record_is_fatal(end: OffsetAndEpoch) -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    follower = followers(world, leader)[0]
    position = FetchPosition(PositionKind.DIVERGING, end)
    with pytest.raises(InvariantError, match="below the high watermark"):
        answer_last_fetch(follower, position, 0)


def with_snapshot(world: Replicas) -> tuple[Replica, SnapshotId]:
    """A leader whose log begins at a snapshot."""
    leader = world.elect()
    leader.propose(b"a", b"b")
    world.advance(1000)
    quorum = leader.node.quorum
    snapshot_id = SnapshotId(quorum.log.end_offset, quorum.epoch)
    data = bytes(range(256)) * 10_000
    leader.disk.snapshots[snapshot_id] = data
    leader.do(leader.node.snapshot_written(snapshot_id, len(data), world.now_ms))
    effects = leader.node.log_cleaned(snapshot_id.end_offset, [snapshot_id], world.now_ms)
    leader.do(effects)
    leader.disk.batches, leader.disk.start_offset = [], snapshot_id.end_offset
    return leader, snapshot_id


def test_an_empty_replica_is_brought_up_by_a_snapshot() -> None:
    world = Replicas(1, 2, 3)
    leader, snapshot_id = with_snapshot(world)
    lost = followers(world, leader)[0]
    lost.disk.batches, lost.disk.start_offset = [], 0
    world.restart(lost.id)
    world.advance(5000)
    replica = world[lost.id]
    assert replica.disk.snapshots[snapshot_id] == leader.disk.snapshots[snapshot_id]
    assert InstallSnapshot(snapshot_id) in replica.effects
    assert replica.node.quorum.log.end == leader.node.quorum.log.end
    assert replica.node.quorum.high_watermark == leader.node.quorum.high_watermark
    assert replica.node.quorum.voters == leader.node.quorum.voters
    leader.propose(b"c")
    world.advance(1000)
    assert replica.records == [b"c"]


def test_a_snapshot_replaces_uncommitted_records_of_a_later_epoch() -> None:
    world = Replicas(1, 2, 3)
    former = world.elect()
    former.propose(b"a", b"b")
    world.advance(1000)
    former.do(former.node.resign(former.node.quorum.epoch, world.now_ms))
    leader = world.elect()
    log, epoch = leader.node.quorum.log, leader.node.quorum.epoch
    snapshot_id = SnapshotId(*log.end_offset_for_epoch(former.node.quorum.log.last_epoch - 1))
    assert snapshot_id.epoch < epoch
    leader.disk.snapshots[snapshot_id] = b"snapshot"
    leader.do(leader.node.snapshot_written(snapshot_id, 8, world.now_ms))
    leader.do(leader.node.log_cleaned(snapshot_id.end_offset, [snapshot_id], world.now_ms))
    lost = followers(world, leader)[0]
    batch = build_batch([(0, None, b"lost", ())], base_offset=0, partition_leader_epoch=epoch)
    lost.disk.batches = [bytes(batch)]
    world.restart(lost.id)
    world.advance(5000)
    assert InstallSnapshot(snapshot_id) in world[lost.id].effects
    assert world[lost.id].node.quorum.log.end == log.end


def test_a_snapshot_that_was_deleted_meanwhile_is_asked_for_anew() -> None:
    world = Replicas(1, observers=(7,))
    leader, snapshot_id = with_snapshot(world)
    broker = world[7]
    broker.disk.batches = []
    world.restart(7)
    broker = world[7]
    later = SnapshotId(snapshot_id.end_offset, snapshot_id.epoch + 1)
    while not any(isinstance(each[1].request, FetchSnapshotRequest) for each in world.network):
        sender_id, send = world.network.popleft()
        world._request(world[send.destination.port - 9000], sender_id, send)
    leader.disk.snapshots[later] = leader.disk.snapshots.pop(snapshot_id)
    size_bytes = len(leader.disk.snapshots[later])
    leader.do(leader.node.snapshot_written(later, size_bytes, world.now_ms))
    leader.do(leader.node.log_cleaned(later.end_offset, [later], world.now_ms))
    world.advance(5000)
    assert InstallSnapshot(later) in broker.effects
    assert InstallSnapshot(snapshot_id) not in broker.effects


def test_a_damaged_snapshot_is_fetched_again() -> None:
    world = Replicas(1, observers=(7,))
    _, snapshot_id = with_snapshot(world)
    world[7].disk.batches = []
    world.restart(7)
    broker = world[7]
    while not world.finished:
        sender_id, send = world.network.popleft()
        world._request(world[send.destination.port - 9000], sender_id, send)
    world.finished.clear()
    broker.do(broker.node.snapshot_refused(snapshot_id, world.now_ms))
    world.advance(5000)
    assert InstallSnapshot(snapshot_id) in broker.effects


def test_a_batch_that_does_not_continue_the_log_is_not_appended() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    follower = followers(world, leader)[0]
    leader.propose(b"a")
    end = follower.node.quorum.log.end
    send = last_fetch(follower)
    response = FetchResponse(
        responses=[
            FetchResponse.FetchableTopicResponse(
                partitions=[
                    FetchResponse.PartitionData(
                        high_watermark=100,
                        current_leader=FetchResponse.LeaderIdAndEpoch(
                            leader_id=leader.id, leader_epoch=leader.node.quorum.epoch
                        ),
                        records=leader.disk.batches[0],
                    )
                ]
            )
        ]
    )
    high_watermark = follower.node.quorum.high_watermark
    follower.do(follower.node.response_received(send.correlation_id, response, world.now_ms))
    assert follower.node.quorum.log.end == end
    assert follower.node.quorum.high_watermark == high_watermark


def test_an_observer_that_knows_its_leader_by_id_only_finds_its_endpoint() -> None:
    world = Replicas(1, observers=(7,))
    leader = world.elect()
    world.bootstrap_voters = None
    world[7].disk.batches = []  # an observer does not sync what it fetches
    world.restart(7)
    assert world[7].state == "Unattached"
    assert world[7].node.quorum.leader_id == 1
    world.advance(1000)
    assert world[7].state == "Follower"
    assert world[7].node.quorum.log.end == leader.node.quorum.log.end


def test_an_observer_whose_leader_is_gone_finds_the_next_one() -> None:
    world = Replicas(1, 2, 3, observers=(7,))
    leader = world.elect()
    leader.is_down = True
    world.advance(20_000)
    alive = [each for each in (1, 2, 3) if each != leader.id and world[each].node.is_leader]
    assert world[7].node.quorum.leader_id == alive[0]
