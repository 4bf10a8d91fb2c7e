"""Changes of a partition: Kafka's own for thousands of states, and the rules of elections as a
table: KIP-966 with ELR, and the rule without it that the last member stays in the ISR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest

from kbroker.controller.partitions.partition_change import (
    RECOVERING,
    ChangeRules,
    Election,
    PartitionChangeBuilder,
)
from kbroker.metadata.delta import changed_partition
from kbroker.metadata.image import NO_LEADER, PartitionImage
from kbroker.metadata.records import record_version
from kbroker.model import uuid_from_string
from kbroker.protocol.messages.stored.metadata_records import PartitionChangeRecord
from tests.controller.decisions import (
    Case,
    change_fields,
    compare,
    partition_fields,
    partition_image,
    with_sets,
)

TOPIC_ID = b"t" * 16
D1 = b"1" * 16
LEVELS: Final = {"3.5-IV2": 11, "3.6-IV2": 14, "3.7-IV2": 17, "4.0-IV1": 23, "4.3-IV0": 30}
"""metadata.version by the names in the file."""

TARGETS: Final = {
    "targetIsr": "target_isr",
    "targetReplicas": "target_replicas",
    "targetAdding": "target_adding",
    "targetRemoving": "target_removing",
    "targetLeaderRecoveryState": "target_leader_recovery_state",
    "uncleanShutdownReplicas": "unclean_shutdown_replicas",
}
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


def test_kafkas_changes() -> None:
    def decide(case: Case) -> object:
        partition = partition_image(case["partition"])
        acceptable, default = case["acceptableLeaders"], uuid_from_string(case["defaultDir"])
        rules = ChangeRules(
            is_acceptable_leader=lambda replica: replica in acceptable,
            default_directory=lambda _: default,
            metadata_version=LEVELS[case["metadataVersion"]],
            min_insync_replicas=case["minISR"],
            elr_enabled=case["eligibleLeaderReplicasEnabled"],
            use_last_known_leader=case["useLastKnownLeaderInBalancedRecovery"],
        )
        builder = PartitionChangeBuilder(TOPIC_ID, 0, partition, rules)
        builder.election = Election[case["election"]]
        for name, value in case["ask"].items():
            if name == "setDirectory":
                builder.set_directory(value["broker"], uuid_from_string(value["directory"]))
            else:
                setattr(builder, TARGETS[name], value)
        record = builder.build()
        if record is None:
            return None
        version = record_version(record, rules.metadata_version)
        after = partition_fields(changed_partition(partition, record))
        return change_fields(record), version, after

    def expected(case: Case) -> object:
        if case["record"] is None:
            return None
        return with_sets(case["record"]), case["recordVersion"], with_sets(case["after"])

    compare("partition-changes", 5000, decide, expected)


def change(
    old: PartitionImage,
    *,
    leaving: int = -1,
    unclean: bool = False,
    dead: Sequence[int] = (),
    elr: bool = True,
    min_insync: int = 2,
    level: int = 30,
) -> dict[str, Any]:
    """The fields that a change sets; those that stay as they are left out."""
    rules = ChangeRules(
        is_acceptable_leader=lambda replica: replica not in (leaving, *dead),
        default_directory=lambda _: D1,
        metadata_version=level,
        min_insync_replicas=min(min_insync, len(old.replicas)),
        elr_enabled=elr,
    )
    builder = PartitionChangeBuilder(TOPIC_ID, 4, old, rules)
    builder.target_isr = tuple(replica for replica in old.isr if replica != leaving)
    if unclean:
        builder.unclean_shutdown_replicas = (leaving,)
    record = builder.build()
    if record is None:
        return NO_CHANGE
    assert (record.topic_id, record.partition_id) == (TOPIC_ID, 4)
    fields = {name: getattr(record, name) for name in RESULTS}
    return {name: value for name, value in fields.items() if value != UNTOUCHED[name]}


def test_what_a_record_without_changes_looks_like() -> None:
    """`change` relies on it."""
    record = PartitionChangeRecord()
    assert {name: getattr(record, name) for name in RESULTS} == UNTOUCHED


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
            {"isr": [1, 2]},
            id="a follower leaves: the leader epoch stays",
        ),
        pytest.param(
            partition([1, 2, 3], 1),
            {"leaving": 3, "level": 11},
            {"leader": 1, "isr": [1, 2]},
            id="below 3.6-IV0 the leader is named, for a new leader epoch",
        ),
        pytest.param(
            partition([1, 2], NO_LEADER),
            {},
            {"leader": 1},
            id="a member of the ISR is back: it leads",
        ),
        pytest.param(
            partition([1, 2], NO_LEADER), {"dead": [1, 2]}, NO_CHANGE, id="none may lead yet"
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
            {"isr": [1], "eligible_leader_replicas": [2]},
            id="a replica that leaves an ISR below min.insync.replicas is eligible",
        ),
        pytest.param(
            partition([1, 2], 1),
            {"leaving": 2, "min_insync": 1},
            {"isr": [1]},
            id="not where the ISR suffices",
        ),
        pytest.param(
            partition([1, 2], 1),
            {"dead": [1, 2]},
            {"leader": NO_LEADER, "last_known_elr": [1]},
            id="no member of the ISR may lead: the last leader is noted",
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
            {"leader": 2, "isr": [2], "eligible_leader_replicas": []},
            id="a replica that may have lost its tail is not eligible",
        ),
        pytest.param(
            partition([1, 2], 1, elr=[3], last_known=[3]),
            {},
            {"eligible_leader_replicas": []},
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
    assert change(partition([1, 2], 1), dead=[1, 2], elr=False) == {"leader": NO_LEADER}
    assert change(partition([1], NO_LEADER), elr=False) == {"leader": 1}
