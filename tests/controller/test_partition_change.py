"""Who leads a partition when a broker leaves or returns, as a table: KIP-966 with ELR, and the rule
without it that the last member stays in the ISR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kbroker.controller.partition_change import (
    RECOVERING,
    changes_for,
    is_acceptable,
    partition_change,
)
from kbroker.metadata.image import (
    ELIGIBLE_LEADER_REPLICAS,
    NO_LEADER,
    BrokerRegistration,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from kbroker.metadata.layered_map import LayeredMap

TOPIC_ID = b"t" * 16
D1, D2 = b"1" * 16, b"2" * 16
NO_CHANGE: dict[str, Any] = {}
RESULTS = ("leader", "isr", "eligible_leader_replicas", "last_known_elr", "leader_recovery_state")
UNTOUCHED = {
    "leader": -2,
    "isr": None,
    "eligible_leader_replicas": None,
    "last_known_elr": None,
    "leader_recovery_state": -1,
}


def partition(
    isr: Sequence[int],
    leader: int,
    *,
    replicas: Sequence[int] = (1, 2, 3),
    elr: Sequence[int] = (),
    last_known: Sequence[int] = (),
) -> PartitionImage:
    return PartitionImage(
        replicas=tuple(replicas),
        directories=(D1,) * len(replicas),
        isr=tuple(isr),
        leader=leader,
        elr=tuple(elr),
        last_known_elr=tuple(last_known),
    )


def change(
    old: PartitionImage,
    *,
    leaving: int = -1,
    unclean: bool = False,
    dead: Sequence[int] = (),
    elr: bool = True,
    min_insync: int = 2,
) -> dict[str, Any]:
    """The fields that a change sets; those that stay as they are left out."""
    record = partition_change(
        TopicImage("t", TOPIC_ID, {4: old}),
        4,
        leaving=leaving,
        unclean=unclean,
        acceptable=lambda replica: replica not in dead,
        min_insync_replicas=min_insync,
        elr_enabled=elr,
    )
    if record is None:
        return NO_CHANGE
    assert (record.topic_id, record.partition_id) == (TOPIC_ID, 4)
    fields = {name: getattr(record, name) for name in RESULTS}
    return {name: value for name, value in fields.items() if value != UNTOUCHED[name]}


def test_what_a_record_without_changes_looks_like() -> None:
    """`change` relies on it."""
    record = partition_change(
        TopicImage("t", TOPIC_ID, {0: partition([1, 2], 1)}),
        0,
        leaving=2,
        acceptable=lambda _: True,
        min_insync_replicas=1,
        elr_enabled=False,
    )
    assert record is not None
    assert record.leader_recovery_state == UNTOUCHED["leader_recovery_state"]
    assert record.eligible_leader_replicas is None and record.last_known_elr is None


@pytest.mark.parametrize("elr", [True, False])
@pytest.mark.parametrize(
    ("old", "options", "expected"),
    [
        pytest.param(partition([1, 2, 3], 1), {}, NO_CHANGE, id="nothing to do"),
        pytest.param(
            partition([1, 2, 3], 1),
            {"leaving": 9},
            NO_CHANGE,
            id="a broker without a replica leaves",
        ),
        pytest.param(
            partition([1, 2, 3], 1),
            {"leaving": 1},
            {"leader": 2, "isr": [2, 3]},
            id="the leader leaves: the next replica in the ISR",
        ),
        pytest.param(
            partition([3, 2, 1], 1),
            {"leaving": 1, "dead": [2]},
            {"leader": 3, "isr": [3, 2]},
            id="replicas that may not lead are passed over",
        ),
        pytest.param(
            partition([3, 2, 1], 1),
            {"leaving": 1},
            {"leader": 2, "isr": [3, 2]},
            id="by the order of the replicas, not of the ISR",
        ),
        pytest.param(
            partition([1, 2, 3], 1),
            {"leaving": 3},
            {"leader": 1, "isr": [1, 2]},
            id="a follower leaves: the leader is named, for a new leader epoch",
        ),
        pytest.param(
            partition([1, 2], NO_LEADER),
            {},
            {"leader": 1},
            id="a member of the ISR is back: it leads",
        ),
        pytest.param(
            partition([1, 2], NO_LEADER), {"dead": [1, 2]}, NO_CHANGE, id="nobody may lead yet"
        ),
        pytest.param(
            partition([1, 2], 1), {"dead": [1, 2]}, {"leader": NO_LEADER}, id="nobody may lead now"
        ),
    ],
)
def test_the_leader_of_an_isr_that_suffices(
    old: PartitionImage, options: dict[str, Any], expected: dict[str, Any], elr: bool
) -> None:
    assert change(old, elr=elr, **options) == expected


@pytest.mark.parametrize(
    ("old", "options", "expected"),
    [
        pytest.param(
            partition([1, 2], 1),
            {"leaving": 2},
            {"leader": 1, "isr": [1], "eligible_leader_replicas": [2]},
            id="below min.insync.replicas who leaves the ISR is eligible",
        ),
        pytest.param(
            partition([1, 2], 1),
            {"leaving": 2, "min_insync": 1},
            {"leader": 1, "isr": [1]},
            id="not where the ISR suffices",
        ),
        pytest.param(
            partition([1], 1, replicas=[1], elr=()),
            {"leaving": 1},
            {
                "leader": NO_LEADER,
                "isr": [],
                "eligible_leader_replicas": [1],
                "last_known_elr": [1],
            },
            id="the last one leaves: an empty ISR, and the last leader is noted",
        ),
        pytest.param(
            partition([1], 1, elr=[2]),
            {"leaving": 1},
            {"leader": 2, "isr": [2], "eligible_leader_replicas": [1]},
            id="a replica of the ELR takes over",
        ),
        pytest.param(
            partition([1], 1, elr=[2]),
            {"leaving": 1, "unclean": True},
            {
                "leader": 2,
                "isr": [2],
                "eligible_leader_replicas": [],
                "last_known_elr": [1],
            },
            id="who may have lost its tail is not eligible, only last known",
        ),
        pytest.param(
            partition([1, 2], 1, elr=[3], last_known=[3]),
            {},
            {"eligible_leader_replicas": [], "last_known_elr": []},
            id="an ISR that suffices needs no ELR",
        ),
        pytest.param(
            partition([], NO_LEADER, elr=(), last_known=[2]),
            {},
            {"leader": 2, "isr": [2], "leader_recovery_state": RECOVERING, "last_known_elr": []},
            id="the last known leader alone may lead, as recovering",
        ),
        pytest.param(
            partition([], NO_LEADER, elr=(), last_known=[2]),
            {"dead": [2]},
            NO_CHANGE,
            id="not while it is away",
        ),
        pytest.param(
            partition([], NO_LEADER, elr=(), last_known=[2, 3]),
            {},
            NO_CHANGE,
            id="not where two are last known",
        ),
        pytest.param(
            partition([], NO_LEADER, elr=[3], last_known=[2]),
            {"dead": [3]},
            NO_CHANGE,
            id="not while an eligible replica may come back",
        ),
    ],
)
def test_eligible_leader_replicas(
    old: PartitionImage, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert change(old, **options) == expected


def test_min_insync_replicas_is_bounded_by_the_number_of_replicas() -> None:
    old = partition([1], 1, replicas=[1], elr=())
    assert change(old, min_insync=3) == NO_CHANGE


def test_without_elr_the_last_member_stays() -> None:
    assert change(partition([1], 1), leaving=1, elr=False) == {"leader": NO_LEADER}
    assert change(partition([1], NO_LEADER), elr=False) == {"leader": 1}


def broker(number: int, **options: Any) -> BrokerRegistration:
    return BrokerRegistration(number, 0, bytes(16), {}, **{"fenced": False, **options})


@pytest.mark.parametrize(
    ("registered", "expected"),
    [
        pytest.param(broker(1), True, id="directories unknown"),
        pytest.param(broker(1, log_dirs=(D1,)), True, id="its directory is online"),
        pytest.param(broker(1, log_dirs=(D2,)), False, id="its directory is not"),
        pytest.param(broker(1, fenced=True), False, id="fenced"),
        pytest.param(broker(1, in_controlled_shutdown=True), False, id="shutting down"),
        pytest.param(broker(2), False, id="not registered"),
    ],
)
def test_who_may_lead(registered: BrokerRegistration, expected: bool) -> None:
    image = MetadataImage(brokers={registered.id: registered})
    assert is_acceptable(image, partition([1], 1, replicas=[3, 1]), 1) is expected


def test_changes_of_concerned_partitions_by_the_topics_names() -> None:
    topics = {
        name: TopicImage(
            name, name.encode() * 16, {0: partition([1, 2], 1), 1: partition([2, 1], 2)}
        )
        for name in ("b", "a")
    }
    image = MetadataImage(
        topics=LayeredMap(topics),
        brokers={number: broker(number) for number in (1, 2)},
        features={ELIGIBLE_LEADER_REPLICAS: 1},
    )
    minimum = {"a": 1, "b": 2}

    def changes(image: MetadataImage) -> list[tuple[Any, ...]]:
        return [
            (each.topic_id[:1], each.partition_id, each.leader, each.eligible_leader_replicas)
            for each in changes_for(
                image,
                leaving=1,
                concerned=lambda one: one.leader == 1,
                min_insync_replicas=minimum.__getitem__,
            )
        ]

    assert changes(image) == [(b"a", 0, 2, None), (b"b", 0, 2, [1])]
    assert changes(replace(image, features={})) == [(b"a", 0, 2, None), (b"b", 0, 2, None)]
