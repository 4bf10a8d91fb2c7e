"""One node: each answer of Kafka's KafkaRaftClient to one request in each of its states."""

from __future__ import annotations

from random import Random
from typing import Any
from unittest.mock import ANY

from kbroker.model import ZERO_UUID
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.quorum.raft.effects import RaftRequest, ReadRecords, Respond
from kbroker.quorum.raft.election_state import ElectionState
from kbroker.quorum.raft.node import RaftNode
from kbroker.quorum.raft.offsets import OffsetAndEpoch, SnapshotId
from kbroker.quorum.raft.raft_config import RaftConfig
from kbroker.quorum.raft.raft_log import FetchPosition, PositionKind, RaftLog
from kbroker.quorum.raft.requests.messages import (
    METADATA_TOPIC_ID,
    begin_quorum_epoch_request,
    end_quorum_epoch_request,
    vote_request,
)
from kbroker.quorum.raft.requests.response_view import view_response
from kbroker.quorum.raft.states.control_state import ControlState
from kbroker.quorum.raft.states.epoch_states import (
    Candidate,
    EpochElection,
    EpochState,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Unattached,
)
from kbroker.quorum.raft.states.leader_state import LeaderState
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, Voter, VoterEndpoint, VoterSet
from tests.quorum.raft.decisions import Case, cases, directory_id, replica_key
from tests.quorum.raft.states.test_quorum_state import describe_state, expected_state

CLUSTER_IDS = {"same": "cluster", "other": "another", None: None}
FETCH_TIMEOUT_MS = 50_000
KAFKAS_TEST_LOG_BATCHES = 2
"""The log of Kafka's own tests, from which the file was made, answers a Fetch with two batches."""


def endpoint(node_id: int) -> VoterEndpoint:
    return VoterEndpoint("CONTROLLER", "host", 9000 + node_id)


def batches_of(case: Case) -> list[tuple[int, int, int]]:
    """(base offset, end offset, epoch) of each batch; the last one is the leader's own."""
    batches, offset = [], 0
    for epoch, count in case["log"]:
        batches.append((offset, offset + count, epoch))
        offset += count
    if offset < case["endOffset"]:
        batches.append((offset, case["endOffset"], case["lastFetchedEpoch"]))
    return batches


class KafkasTestLog(RaftLog):
    """The log of Kafka's own tests, with which the file was made. It differs from KafkaRaftLog (see
    raft-fetch-positions) in two answers: below all epochs it names epoch 0, and a log that begins
    at 0 sends no replica to a snapshot for its epoch.
    """

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        found = super().end_offset_for_epoch(epoch)
        is_below_all = found.offset == self.start_offset and self.earliest_snapshot_id is None
        return OffsetAndEpoch(found.offset, 0) if is_below_all else found

    def validate_position(self, offset: int, last_fetched_epoch: int) -> FetchPosition:
        found = super().validate_position(offset, last_fetched_epoch)
        if self.start_offset == 0 and found.kind is PositionKind.SNAPSHOT:
            end = super().end_offset_for_epoch(last_fetched_epoch)
            if end.offset == 0:
                end = OffsetAndEpoch(0, 0)
            return FetchPosition(PositionKind.DIVERGING, end)
        return found


def log_of(case: Case) -> RaftLog:
    log = KafkasTestLog()
    for base_offset, end_offset, epoch in batches_of(case):
        log.append(base_offset=base_offset, end_offset=end_offset, epoch=epoch)
    if case["snapshot"] is not None:
        log.add_snapshot(SnapshotId(*case["snapshot"]), 100)
    log.clean(case["logStartOffset"], list(log.snapshots))
    return log


def state_of(case: Case, voters: VoterSet, local: ReplicaKey) -> EpochState:
    before = case["before"]
    epoch, leader_id = before["epoch"], before["leaderId"]
    voted = None if before["votedKey"] is None else replica_key(before["votedKey"])
    match before["state"]:
        case "Unattached":
            return Unattached(epoch, leader_id, voted, 100)
        case "Prospective":
            leader = (endpoint(leader_id),) if leader_id >= 0 else ()
            return Prospective(epoch, leader_id, leader, voted, EpochElection(voters), 100)
        case "Candidate":
            return Candidate(epoch, local, EpochElection(voters), 100)
        case "Follower":
            fetched = case["entered"] == "Follower fetched"
            leader = (endpoint(leader_id),)
            return Follower(epoch, leader_id, leader, voted, FETCH_TIMEOUT_MS, fetched)
        case "Resigned":
            return Resigned(epoch, local.id, 100)
        case "Leader":
            state = LeaderState(
                local,
                voters,
                epoch_start_offset=sum(count for _, count in case["log"]),
                fetch_timeout_ms=FETCH_TIMEOUT_MS,
                now_ms=0,
            )
            state.local_end(case["endOffset"], voters)
            state.high_watermark = case["highWatermark"]
            return Leader(epoch, local.id, state)
        case unknown:
            raise AssertionError(unknown)


def directory_of(case: Case, voter_id: int) -> bytes:
    """The file tells the directory id of another voter only where it fetches."""
    asked = case["request"]
    if voter_id == case["local"]["id"]:
        return directory_id(case["local"]["directoryId"])
    if asked.get("replicaId") == voter_id:
        return (
            known
            if (known := directory_id(asked["replicaDirectoryId"])) != ZERO_UUID
            else bytes([voter_id]) * 16
        )
    return bytes([voter_id]) * 16


def node_of(case: Case) -> RaftNode:
    local = replica_key(case["local"])
    voters = VoterSet(
        Voter(each, directory_of(case, each), (endpoint(each),)) for each in case["voters"]
    )
    config = RaftConfig(
        local,
        "cluster",
        endpoints=(endpoint(local.id),),
        fetch_timeout_ms=FETCH_TIMEOUT_MS,
        election_backoff_max_ms=100,
    )
    node = RaftNode(
        config,
        log=log_of(case),
        control=ControlState(voters),
        election=ElectionState(),
        random=Random(1),
    )
    node.quorum.state = state_of(case, voters, local)
    return node


def request_of(case: Case) -> tuple[RaftRequest, int]:
    """The request and its version."""
    asked, local = case["request"], replica_key(case["local"])
    cluster_id = CLUSTER_IDS[asked["clusterId"]]
    match case["api"]:
        case "Vote":
            voter = asked["voterKey"]
            vote = vote_request(
                "",
                replica_key(asked["replicaKey"]),
                ReplicaKey(-1) if voter is None else replica_key(voter),
                epoch=asked["replicaEpoch"],
                log_end=OffsetAndEpoch(asked["lastOffset"], asked["lastOffsetEpoch"]),
                is_pre_vote=asked["preVote"],
            )
            vote.cluster_id = cluster_id
            return vote, 2
        case "BeginQuorumEpoch":
            voter, leader_id = asked["voterKey"], asked["leaderId"]
            endpoints = (endpoint(leader_id),) if asked["leaderEndpoints"] else ()
            begin = begin_quorum_epoch_request(
                "",
                leader_id,
                endpoints,
                ReplicaKey(-1) if voter is None else replica_key(voter),
                epoch=asked["leaderEpoch"],
            )
            begin.cluster_id = cluster_id
            return begin, 1
        case "EndQuorumEpoch":
            successors = [replica_key(each) for each in asked["preferredCandidates"]]
            end = end_quorum_epoch_request(
                "", asked["leaderId"], (), successors, epoch=asked["leaderEpoch"]
            )
            end.cluster_id = cluster_id
            return end, 1
        case "Fetch":
            return fetch_of(asked, cluster_id), 17
        case unknown:
            raise AssertionError(f"{unknown} to {local}")


def fetch_of(asked: Case, cluster_id: str | None) -> FetchRequest:
    partition = FetchRequest.FetchPartition(
        partition=0,
        current_leader_epoch=asked["currentLeaderEpoch"],
        fetch_offset=asked["fetchOffset"],
        last_fetched_epoch=asked["lastFetchedEpoch"],
        partition_max_bytes=1 << 20,
        replica_directory_id=directory_id(asked["replicaDirectoryId"]),
    )
    topic_id = METADATA_TOPIC_ID if asked["topicIdKnown"] else b"x" * 16
    return FetchRequest(
        cluster_id=cluster_id,
        replica_state=FetchRequest.ReplicaState(replica_id=asked["replicaId"]),
        max_wait_ms=asked["maxWaitMs"],
        topics=[FetchRequest.FetchTopic(topic_id=topic_id, partitions=[partition])],
    )


def records_read(case: Case, read: object) -> list[int] | None:
    """First and last offset of what Kafka's test log reads from there."""
    if not isinstance(read, ReadRecords):
        return None
    found = [each for each in batches_of(case) if each[1] > read.from_offset]
    return [found[0][0], found[:KAFKAS_TEST_LOG_BATCHES][-1][1] - 1]


def describe_response(case: Case, respond: Respond) -> dict[str, Any]:
    response = respond.response
    if response.error_code:
        return {"error": ErrorCode(response.error_code).name, "level": "top"}
    view = view_response(response, "CONTROLLER")
    assert view is not None
    found: dict[str, Any] = {
        "error": view.error.name,
        "level": "partition",
        "leaderId": view.leader_id,
        "leaderEpoch": view.epoch,
    }
    if case["api"] == "Vote":
        found["voteGranted"] = response.topics[0].partitions[0].vote_granted  # type: ignore[union-attr]  # a VoteResponse
    if isinstance(response, FetchResponse):
        partition = response.responses[0].partitions[0]
        end, snapshot = partition.diverging_epoch, partition.snapshot_id
        found |= {
            "divergingEpoch": [end.end_offset, end.epoch] if end.epoch >= 0 else None,
            "snapshotId": [snapshot.end_offset, snapshot.epoch] if snapshot.epoch >= 0 else None,
            "highWatermark": partition.high_watermark,
            "logStartOffset": partition.log_start_offset,
            "records": records_read(case, respond.read),
        }
    return found


def is_inside_a_batch(case: Case) -> bool:
    """Whether the leader's answer to a Fetch is about an offset inside a batch."""
    if case["api"] != "Fetch":
        return False
    offset = case["request"]["fetchOffset"]
    return any(base < offset < end for base, end, _ in batches_of(case))


def test_each_answer_of_kafkas_raft_client() -> None:
    lines = cases("raft-requests")
    assert len(lines) == 2500
    for number, case in lines:
        where = f"raft-requests line {number}: {case}"
        node = node_of(case)
        before = describe_state(node.quorum)
        assert before == expected_state(case["before"]), where
        request, version = request_of(case)
        effects = node.handle_request(
            7, request, listener_name="CONTROLLER", version=version, now_ms=0, wall_ms=0
        )
        (respond,) = [each for each in effects if isinstance(each, Respond)]
        assert respond.token == 7
        expected = case["response"]
        if expected["error"] == "NONE" and is_inside_a_batch(case):
            # for it Kafka's test log acknowledges the base offset of the batch, KafkaRaftLog (and
            # kbroker) the offset itself; no replica fetches from there
            expected = expected | {"highWatermark": ANY}
        assert describe_response(case, respond) == expected, where
        assert state_after(node) == expected_after(case, node), where


def state_after(node: RaftNode) -> dict[str, Any]:
    state = node.quorum.state
    remaining_ms = state.fetch_deadline_ms if isinstance(state, Follower) else None
    return describe_state(node.quorum) | {"remainingFetchMs": remaining_ms}


def expected_after(case: Case, node: RaftNode) -> dict[str, Any]:
    after = case["after"]
    expected = expected_state(after) | {"remainingFetchMs": after["remainingFetchMs"]}
    if after["remainingFetchMs"] == 0 and node.quorum.is_voter:
        # Kafka's client does what is due in its next round, this one in the same event
        expected |= {"state": "Prospective", "remainingFetchMs": None}
    return expected
