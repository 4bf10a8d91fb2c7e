"""The data of one member of a classic group: its metadata, its vote, its entry in the record."""

from __future__ import annotations

from kbroker.coordinator.group.classic.member import Member
from kbroker.coordinator.group.membership.join import Protocols, said_bytes
from kbroker.coordinator.runtime.deadlines import Deadline


def member(protocols: Protocols, instance_id: str | None = None) -> Member:
    return Member(
        member_id="m",
        instance_id=instance_id,
        client_id="c",
        client_host="/h",
        session_timeout_ms=10,
        rebalance_timeout_ms=20,
        protocols=protocols,
        session=Deadline(lambda _: []),
    )


def test_metadata_of_a_protocol() -> None:
    made = member([("range", b"r"), ("rr", b"s")])
    assert made.metadata("rr") == b"s"
    assert made.metadata("sticky") == made.metadata(None) == b""


def test_the_vote_is_the_best_of_what_all_know() -> None:
    made = member([("sticky", b""), ("range", b""), ("rr", b"")])
    assert made.vote(frozenset({"rr", "range"})) == "range"
    assert made.vote(frozenset({"rr", "range", "sticky"})) == "sticky"


def test_the_record_has_what_was_said_for_the_chosen_protocol() -> None:
    made = member([("range", b"r"), ("rr", b"s")], instance_id="i")
    made.assignment = b"old"
    value = made.to_value("rr", b"new")
    assert (value.member_id, value.group_instance_id) == ("m", "i")
    assert (value.client_id, value.client_host) == ("c", "/h")
    assert (value.session_timeout, value.rebalance_timeout) == (10, 20)
    assert (value.subscription, value.assignment) == (b"s", b"new")
    assert made.to_value(None, b"").subscription == b""


def test_its_memory_is_that_of_what_it_said() -> None:
    made = member([("range", b"r" * 100)], instance_id="iii")
    assert made.size_bytes == said_bytes([("range", b"r" * 100)], "m", "c", "iii")
