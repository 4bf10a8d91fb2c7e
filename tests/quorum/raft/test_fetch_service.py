"""The leader's answers: parked fetches, snapshots in pieces, and the description of the quorum."""

from __future__ import annotations

import pytest

from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from kbroker.quorum.raft.effects import RaftRequest, ReadRecords, Respond
from kbroker.quorum.raft.offsets import BOOTSTRAP_ID, SnapshotId
from kbroker.quorum.raft.requests.messages import METADATA_TOPIC_ID
from tests.quorum.raft.replicas import LISTENER, WALL_MS, Replica, Replicas, directory_of

TOKEN = -1


def ask(replica: Replica, request: RaftRequest, version: int) -> None:
    now_ms = replica.world.now_ms
    effects = replica.node.handle_request(
        TOKEN,
        request,
        listener_name=LISTENER,
        version=version,
        now_ms=now_ms,
        wall_ms=WALL_MS + now_ms,
    )
    replica.do(effects)


def fetch(
    leader: Replica,
    offset: int,
    *,
    max_wait_ms: int = 500,
    high_watermark: int | None = None,
    version: int = 18,
) -> None:
    quorum = leader.node.quorum
    partition = FetchRequest.FetchPartition(
        current_leader_epoch=quorum.epoch,
        fetch_offset=offset,
        last_fetched_epoch=quorum.log.last_epoch,
        replica_directory_id=directory_of(8),
    )
    if high_watermark is not None:
        partition.high_watermark = high_watermark
    request = FetchRequest(
        replica_state=FetchRequest.ReplicaState(replica_id=8),
        max_wait_ms=max_wait_ms,
        topics=[FetchRequest.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
    )
    ask(leader, request, version)


def answer(replica: Replica) -> FetchResponse.PartitionData | None:
    response = replica.world.responses.pop(TOKEN, None)
    if response is None:
        return None
    assert isinstance(response, FetchResponse)
    return response.responses[0].partitions[0]


def test_a_parked_fetch_is_answered_by_an_append() -> None:
    leader = Replicas(1)[1]
    fetch(leader, leader.node.quorum.log.end_offset)
    assert answer(leader) is None
    leader.propose(b"a")
    found = answer(leader)
    assert found is not None
    assert found.records == leader.disk.batches[-1]


def test_a_parked_fetch_is_answered_empty_after_its_max_wait() -> None:
    world = Replicas(1)
    fetch(world[1], 3)
    world.advance(499)
    assert answer(world[1]) is None
    world.advance(1)
    found = answer(world[1])
    assert found is not None
    assert (found.error_code, found.records) == (ErrorCode.NONE, b"")


def test_a_parked_fetch_learns_a_higher_high_watermark() -> None:
    leader = Replicas(1)[1]
    leader.holds_flushes = True
    leader.propose(b"a")
    end_offset = leader.node.quorum.log.end_offset
    fetch(leader, end_offset, high_watermark=3)
    assert answer(leader) is None
    leader.finish_flush()
    found = answer(leader)
    assert found is not None
    assert found.high_watermark == end_offset
    fetch(leader, end_offset, high_watermark=3)
    assert answer(leader) is not None


def test_a_parked_fetch_of_an_old_version_learns_that_the_high_watermark_moved() -> None:
    leader = Replicas(1)[1]
    leader.holds_flushes = True
    leader.propose(b"a")
    end_offset = leader.node.quorum.log.end_offset
    fetch(leader, end_offset, version=17)  # it does not state the fetcher's high watermark
    assert answer(leader) is None
    leader.finish_flush()
    found = answer(leader)
    assert found is not None
    assert found.high_watermark == end_offset


def test_the_size_of_an_answer_is_that_of_the_request() -> None:
    leader = Replicas(1)[1]
    fetch(leader, 1)  # Kafka's replicas leave the partition's max bytes at 0
    (read,) = [each.read for each in leader.effects if isinstance(each, Respond)]
    assert read == ReadRecords(1, 1 << 20)


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("resign", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("shutdown", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("isolated", ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_a_parked_fetch_fails_when_the_leader_gives_up(how: str, error: ErrorCode) -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    if how == "isolated":
        world.cut |= {(other, leader.id) for other in (1, 2, 3)}
        world.advance(2900)
    fetch(leader, leader.node.quorum.log.end_offset, max_wait_ms=100_000)
    assert answer(leader) is None
    if how == "resign":
        leader.do(leader.node.resign(leader.node.quorum.epoch, world.now_ms))
    elif how == "shutdown":
        leader.do(leader.node.shutdown(100, world.now_ms))
    else:
        world.advance(200)
    found = answer(leader)
    assert found is not None
    assert found.error_code == error


def test_a_fetch_that_was_abandoned_is_not_answered() -> None:
    leader = Replicas(1)[1]
    fetch(leader, 3)
    leader.node.request_abandoned(TOKEN)
    leader.propose(b"a")
    assert answer(leader) is None


def fetch_snapshot(leader: Replica, snapshot_id: SnapshotId, position: int) -> tuple[int, bytes]:
    """(error, bytes)."""
    partition = FetchSnapshotRequest.PartitionSnapshot(
        current_leader_epoch=leader.node.quorum.epoch,
        snapshot_id=FetchSnapshotRequest.SnapshotId(
            end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch
        ),
        position=position,
    )
    topic = FetchSnapshotRequest.TopicSnapshot(name="__cluster_metadata", partitions=[partition])
    ask(leader, FetchSnapshotRequest(replica_id=8, max_bytes=4, topics=[topic]), 1)
    response = leader.world.responses.pop(TOKEN)
    assert isinstance(response, FetchSnapshotResponse)
    found = response.topics[0].partitions[0]
    return found.error_code, bytes(found.unaligned_records or b"")  # type: ignore[arg-type]  # bytes, put in by `Replicas.answer`


def test_a_snapshot_is_answered_in_pieces() -> None:
    leader = Replicas(1)[1]
    snapshot_id = SnapshotId(3, 1)
    leader.disk.snapshots[snapshot_id] = b"0123456789"
    leader.do(leader.node.snapshot_written(snapshot_id, 10, 0))
    assert fetch_snapshot(leader, snapshot_id, 0) == (ErrorCode.NONE, b"0123")
    assert fetch_snapshot(leader, snapshot_id, 8) == (ErrorCode.NONE, b"89")
    for position in (-1, 10, 11):
        found = fetch_snapshot(leader, snapshot_id, position)
        assert found == (ErrorCode.POSITION_OUT_OF_RANGE, b"")
    for unknown in (BOOTSTRAP_ID, SnapshotId(3, 2)):
        assert fetch_snapshot(leader, unknown, 0) == (ErrorCode.SNAPSHOT_NOT_FOUND, b"")


def describe(replica: Replica, topic: str = "__cluster_metadata") -> DescribeQuorumResponse:
    partition = DescribeQuorumRequest.PartitionData(partition_index=0)
    data = DescribeQuorumRequest.TopicData(topic_name=topic, partitions=[partition])
    ask(replica, DescribeQuorumRequest(topics=[data]), 2)
    response = replica.world.responses.pop(TOKEN)
    assert isinstance(response, DescribeQuorumResponse)
    return response


def test_the_quorum_is_described_by_its_leader() -> None:
    world = Replicas(1, 2, 3, observers=(7,))
    leader = world.elect()
    response = describe(leader)
    found = response.topics[0].partitions[0]
    assert (found.leader_id, found.leader_epoch) == (leader.id, leader.node.quorum.epoch)
    assert found.high_watermark == leader.node.quorum.high_watermark
    assert [each.replica_id for each in found.current_voters] == [1, 2, 3]
    assert [each.replica_id for each in found.observers] == [7]
    assert {each.log_end_offset for each in found.current_voters} == {found.high_watermark}
    now_ms = WALL_MS + world.now_ms
    for each in found.current_voters:
        assert now_ms - 1000 <= each.last_fetch_timestamp <= now_ms
        assert each.replica_directory_id == directory_of(each.replica_id)
    assert [node.node_id for node in response.nodes] == [1, 2, 3]


def test_others_do_not_describe_it() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    other = next(each for each in world.replicas.values() if each is not leader)
    error = describe(other).topics[0].partitions[0].error_code
    assert error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    error = describe(leader, "other").topics[0].partitions[0].error_code
    assert error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(4, 19))
def test_a_fetch_of_any_version_has_a_response_of_that_version(version: int) -> None:
    leader = Replicas(1, 2, 3).elect()
    partition = FetchRequest.FetchPartition(partition=0)
    topic = FetchRequest.FetchTopic(
        topic="__cluster_metadata", topic_id=METADATA_TOPIC_ID, partitions=[partition]
    )
    ask(leader, FetchRequest(topics=[topic], max_wait_ms=0), version)
    response = leader.world.responses.pop(TOKEN)
    assert isinstance(response, FetchResponse)
    again, _ = decode(FetchResponse, encode(response, version), version)
    assert again.responses[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST
