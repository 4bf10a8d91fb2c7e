"""The leader in each response, in versions with and without its endpoint."""

from __future__ import annotations

import pytest

from kbroker.protocol.codecs import codec
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.quorum import (
    AddRaftVoterResponse,
    BeginQuorumEpochResponse,
    EndQuorumEpochResponse,
    UpdateRaftVoterResponse,
    VoteResponse,
)
from kbroker.quorum.raft.effects import RaftResponse
from kbroker.quorum.raft.offsets import BOOTSTRAP_ID
from kbroker.quorum.raft.requests.messages import (
    LeaderView,
    epoch_response,
    fetch_response,
    fetch_snapshot_response,
    vote_response,
)
from kbroker.quorum.raft.requests.response_view import view_response
from kbroker.quorum.raft.voters.voter_set import VoterEndpoint

LEADER = LeaderView(7, 2, VoterEndpoint("CONTROLLER", "host", 9))
ERROR = ErrorCode.NOT_LEADER_OR_FOLLOWER


def responses(version: int, fetch_version: int) -> list[tuple[RaftResponse, int]]:
    """Each response in that version."""
    return [
        (vote_response(LEADER, ERROR, is_granted=False, version=version), version),
        (epoch_response(BeginQuorumEpochResponse, LEADER, ERROR, version=version), version),
        (epoch_response(EndQuorumEpochResponse, LEADER, ERROR, version=version), version),
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


def test_an_error_of_a_later_release_is_unknown() -> None:
    response = vote_response(LEADER, ERROR, is_granted=False, version=1)
    response.topics[0].partitions[0].error_code = 9999
    view = view_response(response, "L")
    assert view is not None
    assert view.error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_response_without_the_partition_says_nothing() -> None:
    assert view_response(VoteResponse(), "L") is None
    assert view_response(AddRaftVoterResponse(), "L") is None


def test_an_updated_voter_is_told_the_leader() -> None:
    leader = UpdateRaftVoterResponse.CurrentLeader(leader_id=2, leader_epoch=7, host="h", port=9)
    response = UpdateRaftVoterResponse(current_leader=leader)
    endpoints = (VoterEndpoint("L", "h", 9),)
    assert view_response(response, "L") == (ErrorCode.NONE, 7, 2, endpoints)
