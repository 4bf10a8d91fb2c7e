"""`--initial-controllers`, with the messages of Kafka's DynamicVoter."""

from __future__ import annotations

import pytest

from kbroker.model import StartupError, uuid_from_string
from kbroker.quorum.formatting.initial_voters import parse_initial_voters
from kbroker.quorum.raft.voters.voter_set import Voter, VoterEndpoint

A, B = "JEXY6aqzQY-32P5TStzaFg", "MvDxzVmcRsaTz33bUuRU6A"


def test_voters_by_id() -> None:
    assert parse_initial_voters(f" 10@[::1]:8083:{B},,0@example.com:8082:{A} ", "CTL") == (
        Voter(0, uuid_from_string(A), (VoterEndpoint("CTL", "example.com", 8082),)),
        Voter(10, uuid_from_string(B), (VoterEndpoint("CTL", "::1", 8083),)),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "No voters given"),
        (",", "No voters given"),
        (f"a:1:{A}", "No @ found"),
        (f"@a:1:{A}", "Invalid @ at beginning"),
        (f"x@a:1:{A}", "Failed to parse node id"),
        (f"-1@a:1:{A}", "Failed to parse node id"),
        ("1@", "No hostname found after node id"),
        ("1@a", "No colon following hostname"),
        ("1@[::1:1", "no right bracket was found"),
        (f"1@[::1]1:{A}", "Port section must start with a colon"),
        ("1@a:1", "No colon following port"),
        (f"1@a:x:{A}", "Failed to parse port"),
        (f"1@a:65536:{A}", "Invalid port 65536"),
        ("1@a:1:short", "Failed to parse directory ID"),
        ("1@a:1:AAAAAAAAAAAAAAAAAAAAAA", "Invalid reserved directory ID"),
        (f"1@a:1:{A},1@b:2:{B}", "Node id 1 was specified more than once"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(StartupError) as caught:
        parse_initial_voters(text, "CONTROLLER")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
