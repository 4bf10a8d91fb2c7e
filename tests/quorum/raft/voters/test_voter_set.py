"""Voter sets: each outcome of Kafka's VoterSet, and the keys of voters."""

from __future__ import annotations

import pytest

from kbroker.model import ZERO_UUID
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, Voter, VoterEndpoint, VoterSet
from tests.quorum.raft.decisions import cases, directory_id, expected_rows, rows


def test_each_outcome_of_kafkas_voter_set() -> None:
    lines = cases("raft-voters")
    assert len(lines) == 500
    for number, case in lines:
        highest = case["maxKRaftVersions"]
        voters = VoterSet(
            Voter(row[0], directory_id(row[1]), supported_versions=(0, highest[str(row[0])]))
            for row in case["voters"]
        )
        key = ReplicaKey(case["key"][0], directory_id(case["key"][1]))
        voter = Voter(key.id, key.directory_id)
        outcome = {
            "isVoter": voters.is_voter(key),
            "isOnlyVoter": voters.is_only_voter(key),
            "addVoter": rows(voters.with_voter(voter)),
            "removeVoter": rows(voters.without_voter(key)),
            "updateVoter": rows(voters.with_updated_voter(voter)),
            "supportsVersion1": voters.supports(1),
        }
        expected = {name: case[name] for name in outcome}
        for name in ("addVoter", "removeVoter", "updateVoter"):
            expected[name] = expected_rows(case[name])
        assert outcome == expected, f"raft-voters line {number}: {case}"


def test_a_voter_is_its_id_and_its_directory() -> None:
    known = Voter(1, b"d" * 16)
    assert known.matches(ReplicaKey(1, b"d" * 16))
    assert not known.matches(ReplicaKey(1, b"e" * 16))
    assert not known.matches(ReplicaKey(1))
    assert not known.matches(ReplicaKey(2, b"d" * 16))
    unknown = Voter(1, ZERO_UUID)
    assert unknown.matches(ReplicaKey(1, b"e" * 16))


def test_an_endpoint_is_found_by_its_listener() -> None:
    endpoint = VoterEndpoint("B", "h", 2)
    voter = Voter(1, ZERO_UUID, (VoterEndpoint("A", "h", 1), endpoint))
    assert voter.endpoint("B") == endpoint
    assert voter.endpoint("C") is None


@pytest.mark.parametrize(("count", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half(count: int, majority: int) -> None:
    assert VoterSet(Voter(each, ZERO_UUID) for each in range(count)).majority == majority


def test_a_key_is_printed_with_its_directory() -> None:
    assert str(ReplicaKey(3)) == "3"
    assert str(ReplicaKey(3, bytes(15) + b"\x07")) == "3:AAAAAAAAAAAAAAAAAAAABw"
