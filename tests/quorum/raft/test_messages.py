"""The quorum's messages: the one partition they name, and what a response says of the leader."""

from __future__ import annotations

import pytest

from kbroker.protocol import codec
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.quorum import (
    AddRaftVoterResponse,
    FetchSnapshotRequest,
    VoteRequest,
    VoteResponse,
)
from kbroker.quorum.raft.effects import RaftResponse
from kbroker.quorum.raft.messages import (
    LeaderView,
    begin_quorum_epoch_response,
    end_quorum_epoch_response,
    fetch_response,
    fetch_snapshot_response,
    metadata_partition,
    snapshot_partition,
    view_response,
    vote_response,
)
from kbroker.quorum.raft.offsets import BOOTSTRAP_ID
from kbroker.quorum.raft.voter_set import VoterEndpoint

LEADER = LeaderView(7, 2, VoterEndpoint("CONTROLLER", "host", 9))
ERROR = ErrorCode.NOT_LEADER_OR_FOLLOWER


def responses(version: int, fetch_version: int) -> list[tuple[RaftResponse, int]]:
    """Each response in that version."""
    return [
        (vote_response(LEADER, ERROR, is_granted=False, version=version), version),
        (begin_quorum_epoch_response(LEADER, ERROR, version=version), version),
        (end_quorum_epoch_response(LEADER, ERROR, version=version), version),
        (
            fetch_response(
                LEADER,
                ERROR,
                high_watermark=None,
                log_start_offset=0,
                position=None,
                version=fetch_version,
            ),
            fetch_version,
        ),
        (
            fetch_snapshot_response(
                LEADER, ERROR, snapshot_id=BOOTSTRAP_ID, position=0, size_bytes=0, version=version
            ),
            version,
        ),
    ]


@pytest.mark.parametrize(
    ("version", "fetch_version", "has_endpoints"), [(1, 17, True), (0, 12, False)]
)
def test_each_response_tells_the_leader(
    version: int, fetch_version: int, has_endpoints: bool
) -> None:
    endpoints = (VoterEndpoint("L", "host", 9),) if has_endpoints else ()
    for response, its_version in responses(version, fetch_version):
        data = codec.encode(response, its_version)
        decoded, _ = codec.decode(type(response), data, its_version)
        assert view_response(decoded, "L") == (ERROR, 7, 2, endpoints)


def test_a_response_without_the_partition_says_nothing() -> None:
    assert view_response(VoteResponse(), "L") is None
    assert view_response(AddRaftVoterResponse(), "L") is None


def test_a_request_names_exactly_the_metadata_partition() -> None:
    def partition(name: str, index: int) -> VoteRequest.TopicData:
        data = VoteRequest.PartitionData(partition_index=index)
        return VoteRequest.TopicData(topic_name=name, partitions=[data])

    good = partition("__cluster_metadata", 0)
    assert metadata_partition([good]) is good.partitions[0]
    for wrong in (
        [],
        [good, good],
        [partition("other", 0)],
        [partition("__cluster_metadata", 1)],
        [VoteRequest.TopicData(topic_name="__cluster_metadata", partitions=[])],
    ):
        assert metadata_partition(wrong) is None
    assert snapshot_partition(FetchSnapshotRequest()) is None
