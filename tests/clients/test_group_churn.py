"""A group of many clients that come, go and crash while the broker restarts: all records are read,
no partition is with two members at once, and the group settles within one rebalance timeout.

Each member is a process. What the clients say of their partitions is held against the log of the
group: a client that was put out of the group and has not heard of it is no member, and Kafka's
promise is about members.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_jobs.java import java_problem
from tests.clients.churn import (
    Churn,
    Command,
    Said,
    aiokafka,
    doubles_of,
    java_classic,
    java_consumer,
    kafka_python,
    librdkafka_classic,
    librdkafka_consumer,
)
from tests.clients.group_history import GroupHistory

pytestmark = pytest.mark.clients

CONSUMERS = [librdkafka_consumer(), java_consumer()]
RANGE = [
    librdkafka_classic("range"),
    aiokafka("range"),
    kafka_python("range"),
    java_classic("Range"),
]
COOPERATIVE = [librdkafka_classic("cooperative-sticky"), java_classic("CooperativeSticky")]
KINDS = {
    "consumer": CONSUMERS,
    "range": RANGE,
    "roundrobin": [
        librdkafka_classic("roundrobin"),
        aiokafka("roundrobin"),
        kafka_python("roundrobin"),
        java_classic("RoundRobin"),
    ],
    "sticky": [aiokafka("sticky"), kafka_python("sticky"), java_classic("Sticky")],
    "cooperative": COOPERATIVE,
    "mixed": [*CONSUMERS, *RANGE],
    "mixed-cooperative": [*CONSUMERS, *COOPERATIVE],
}


class Took:
    """The longest of each kind of wait, in seconds."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}

    def note(self, name: str, seconds: float) -> None:
        self.longest[name] = max(self.longest.get(name, 0.0), seconds)

    def __str__(self) -> str:
        return ", ".join(f"{name} {took:.1f} s" for name, took in sorted(self.longest.items()))


@contextmanager
def churning(folder: Path, kinds: Sequence[Command], seed: int) -> Iterator[tuple[Churn, Took]]:
    """Judges what happened in the block."""
    churn, took = Churn(folder, kinds, seed), Took()
    try:
        churn.start()
        yield churn, took
    finally:
        churn.end()
        (folder / "events.txt").write_text("\n".join(churn.events))
    wrong, excused = churn.judge()
    print(f"\nlongest: {took}; with two by no fault of the group: {excused}")
    assert not wrong, "\n".join([*churn.events, *wrong])


def run(folder: Path, kinds: Sequence[Command], *, size: int, rounds: int, seed: int) -> None:
    with churning(folder, kinds, seed) as (churn, took):
        for number in range(size):
            churn.join(kinds[number % len(kinds)])
        churn.produce()
        churn.cover()
        for number in range(rounds):
            churn.produce()
            is_crash = number % 3 == 1
            churn.replace_any(crash=is_crash)
            if number % 4 == 2:
                churn.restart()
            fault = "restart" if number % 4 == 2 else "crash" if is_crash else "leave"
            # Every other time the next fault comes while the group is still on its way.
            if number % 2 == 1 or number == rounds - 1:
                took.note(f"{fault} to settled", churn.settle())
            else:
                took.note(f"{fault} to covered", churn.cover())


def test_clients_of_python_come_and_go(tmp_path: Path) -> None:
    kinds = [librdkafka_consumer(), *RANGE[:3]]
    run(tmp_path, kinds, size=4, rounds=1, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")
@pytest.mark.parametrize("kinds", KINDS)
def test_ten_members(tmp_path: Path, kinds: str) -> None:
    """Classic members have to have a protocol in common, so there is more than one group."""
    run(tmp_path, KINDS[kinds], size=10, rounds=8, seed=7)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")
@pytest.mark.parametrize("assignor", ["Range", "CooperativeSticky"])
def test_java_consumers_are_rolled_to_the_consumer_protocol_and_back(
    tmp_path: Path, assignor: str
) -> None:
    """Online migration (KIP-848): one member after the other, while records flow."""
    classic, consumer = java_classic(assignor), java_consumer()
    with churning(tmp_path, [classic], seed=5) as (churn, took), churn.records_flow():
        for _ in range(3):
            churn.join(classic)
        churn.settle()
        assert churn.group_type() == "classic"
        for number, member in enumerate([*churn.members]):
            churn.replace(member, consumer, crash=False)
            took.note(f"forward {number + 1}", churn.settle())
            assert churn.group_type() == "consumer"
        for number, member in enumerate([*churn.members]):
            churn.replace(member, classic, crash=False)
            took.note(f"back {number + 1}", churn.settle())
            assert churn.group_type() == ("consumer" if number < 2 else "classic")


# -- the judgement itself -------------------------------------------------------------------------


def said(*lines: tuple[int, str, str, set[int] | None]) -> list[Said]:
    return [
        Said(at_ms, client_id, kind, None if places is None else frozenset(places))
        for at_ms, client_id, kind, places in lines
    ]


def test_what_is_given_and_given_back_in_one_millisecond_is_not_kept() -> None:
    both = [(1, "a", "assigned", {0}), (1, "a", "revoked", {0})]
    for lines in ([*both, (1, "b", "assigned", {0})], [(1, "b", "assigned", {0}), *both]):
        assert not doubles_of(said(*lines, (2, "b", "revoked", {0}), (2, "c", "assigned", {0})))
    swapped = [(2, "b", "assigned", {0}), (2, "a", "revoked", {0}), (2, "a", "assigned", {1})]
    assert not doubles_of(said((1, "a", "assigned", {0}), *swapped))
    assert doubles_of(said((1, "a", "assigned", {0}), (2, "a", "assigned", {1}), *swapped[:1]))


def test_a_partition_with_two_is_found() -> None:
    first = (1, "a", "assigned", {0, 1})
    assert not doubles_of(said(first, (2, "a", "revoked", {0, 1}), (2, "b", "assigned", {0})))
    assert not doubles_of(said(first, (2, "a", "ended", None), (3, "b", "assigned", {0, 1})))
    # heard late, but said in time
    assert not doubles_of(said(first, (5, "b", "assigned", {0}), (4, "a", "revoked", {0})))
    (double,) = doubles_of(said(first, (5, "b", "assigned", {0}), (6, "a", "revoked", {0})))
    assert (double.partition, double.client_id, double.other) == (0, "b", "a")
    assert not double.is_of_former_member(GroupHistory({"a": [1], "b": [3]}))
    assert not double.is_of_former_member(GroupHistory({"a": [6]}))
    assert double.is_of_former_member(GroupHistory({"a": [5]}))
