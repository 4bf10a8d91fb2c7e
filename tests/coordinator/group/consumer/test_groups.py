"""Consumer groups step by step: epochs and answers are those that Kafka 4.3.1 gave to the same."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator.group.consumer.reconciliation import CurrentAssignment, MemberState
from kbroker.coordinator.group.consumer.records import MemberMetadata, current_record, member_record
from kbroker.coordinator.runtime.result import CoordinatorResult
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.consumer_groups import ConsumerGroupHeartbeatRequest
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.group.consumers import Consumer, ask, settle
from tests.coordinator.simulation import World


@pytest.fixture
def world() -> World:
    return World()


def say(world: World, member: str, epoch: int, *owned: int, **fields: Any) -> tuple[Any, ...]:
    """(error, member epoch, partitions or None) of a heartbeat; owned: partitions of other."""
    topic_id = world.topics.topics["other"].topic_id
    place = ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=list(owned))
    if epoch == 0:
        fields = {"rebalance_timeout_ms": 5_000, "subscribed_topic_names": ["other"], **fields}
        fields["topic_partitions"] = []
    elif owned:
        fields["topic_partitions"] = [place]
    answer = ask(world, member_id=member, member_epoch=epoch, **fields)
    given = answer.assignment
    partitions = (
        None if given is None else [n for t in given.topic_partitions for n in t.partitions]
    )
    return ErrorCode(answer.error_code).name, answer.member_epoch, partitions


def test_a_partition_is_given_on_when_it_was_given_back(world: World) -> None:
    assert say(world, "a", 0) == ("NONE", 2, [0, 1, 2])
    assert say(world, "b", 0) == ("NONE", 2, [])
    assert say(world, "a", 2, 0, 1, 2) == ("NONE", 2, None)  # within the assignment interval
    world.timers.advance(1_000)
    assert say(world, "a", 2, 0, 1, 2) == ("NONE", 2, [0, 1])
    assert say(world, "b", 2) == ("NONE", 3, None)
    assert say(world, "b", 3) == ("NONE", 3, None)
    assert world.shard().consumer.groups["c"].state() == "Reconciling"
    assert say(world, "a", 2, 0, 1) == ("NONE", 3, None)
    assert say(world, "b", 3) == ("NONE", 3, [2])
    assert world.shard().consumer.groups["c"].state() == "Stable"
    assert say(world, "a", 2, 0, 1) == ("NONE", 3, None)  # the answer was lost
    assert say(world, "a", 2) == ("FENCED_MEMBER_EPOCH", 0, None)
    assert say(world, "a", 2, 2) == ("FENCED_MEMBER_EPOCH", 0, None)
    assert say(world, "a", 0) == ("NONE", 3, [0, 1])


def test_who_does_not_give_back_in_time_is_removed(world: World) -> None:
    say(world, "a", 0)
    say(world, "b", 0)
    world.timers.advance(1_000)
    assert say(world, "a", 2, 0, 1, 2) == ("NONE", 2, [0, 1])
    world.timers.advance(5_000)
    assert say(world, "a", 2, 0, 1, 2) == ("UNKNOWN_MEMBER_ID", 0, None)
    assert say(world, "b", 2) == ("NONE", 4, [0, 1, 2])


def test_a_second_revocation_in_one_epoch_has_a_rebalance_timeout_of_its_own(
    world: World,
) -> None:
    say(world, "a", 0)
    say(world, "b", 0)
    world.timers.advance(1_000)
    assert say(world, "a", 2, 0, 1, 2) == ("NONE", 2, [0, 1])
    say(world, "c", 0)
    world.timers.advance(4_000)
    say(world, "c", 2)  # target of epoch 4: one partition each
    assert say(world, "a", 2, 0, 1) == ("NONE", 2, [0])  # gave back one, is to give back another
    world.timers.advance(4_999)
    assert say(world, "a", 2, 0, 1) == ("NONE", 2, None)
    assert "a" in world.shard().consumer.groups["c"].members
    world.timers.advance(1)
    assert "a" not in world.shard().consumer.groups["c"].members


def test_who_is_silent_is_removed_also_after_a_reload(world: World) -> None:
    say(world, "a", 0)
    world.timers.advance(40_000)
    world.resign()
    world.lead()
    assert say(world, "a", 2) == ("NONE", 2, None)
    world.timers.advance(44_999)
    assert world.shard().consumer.groups["c"].members
    world.timers.advance(1)
    assert world.shard().consumer.groups["c"].state() == "Empty"
    assert world.replayed().consumer.groups["c"].epoch == 3


def test_topics_that_come_and_grow_are_assigned(world: World) -> None:
    consumer = Consumer(
        world, "a", subscribed_topic_names=None, subscribed_topic_regex="(new|other).*"
    )
    consumer.poll()
    assert (consumer.epoch, len(consumer.owned)) == (1, 0)
    world.timers.advance(1)
    consumer.poll()
    assert (consumer.epoch, len(consumer.owned)) == (2, 3)
    world.topics.add("newer", 2)
    world.timers.advance(9_999)
    consumer.poll()
    world.timers.advance(1)
    assert (consumer.epoch, len(consumer.owned)) == (2, 3)  # refreshed 10 s ago, no more
    settle(world, [consumer])
    settle(world, [consumer])
    assert (consumer.epoch, len(consumer.owned)) == (3, 5)
    world.topics.remove("other")
    settle(world, [consumer])
    assert (consumer.epoch, len(consumer.owned)) == (4, 2)


def regex(world: World, member: str, epoch: int, pattern: str, *owned: int) -> tuple[Any, ...]:
    names = {"subscribed_topic_names": None} if epoch == 0 else {}
    return say(world, member, epoch, *owned, subscribed_topic_regex=pattern, **names)


def test_a_regular_expression_is_resolved_after_the_heartbeat(world: World) -> None:
    """As in Kafka: the first answer is of the epoch so far, the epoch rises with the result."""
    assert regex(world, "a", 0, "oth.*") == ("NONE", 1, [])
    world.timers.advance(1)
    assert say(world, "a", 1) == ("NONE", 2, [0, 1, 2])
    assert regex(world, "b", 0, "oth.*") == ("NONE", 2, [])  # resolved already: epoch 3
    assert world.shard().consumer.groups["c"].epoch == 3
    assert regex(world, "c", 0, "nothing.*") == ("NONE", 2, [])
    world.timers.advance(10_000)
    say(world, "c", 2)
    world.timers.advance(2)
    group = world.shard().consumer.groups["c"]
    assert (group.epoch, group.resolved) == (3, {"oth.*": {"other"}, "nothing.*": frozenset()})
    assert world.replayed().consumer.groups["c"].resolved == group.resolved


def test_another_regular_expression_withdraws_what_the_former_matched(world: World) -> None:
    regex(world, "a", 0, "oth.*")
    world.timers.advance(1)
    assert say(world, "a", 1) == ("NONE", 2, [0, 1, 2])
    assert regex(world, "a", 2, "ev.*", 0, 1, 2) == ("NONE", 2, [])
    assert world.shard().consumer.groups["c"].epoch == 2
    world.timers.advance(1_000)
    assert say(world, "a", 2, topic_partitions=[]) == ("NONE", 3, list(range(12)))


def test_a_regular_expression_that_is_refused_harms_no_member(world: World) -> None:
    """Such as one that another implementation has accepted and stored."""
    assert say(world, "a", 0) == ("NONE", 2, [0, 1, 2])
    host = world.coordinator.runtime.host(0)
    stored = MemberMetadata(
        instance_id=None, subscribed_topic_regex="(?<=o)ther", rebalance_timeout_ms=5_000
    )
    current = CurrentAssignment(2, 2)
    records = [member_record("c", "b", stored), current_record("c", "b", current)]
    world.coordinator.runtime.carry_out(host, [CoordinatorResult(records, None)])
    world.topics.add("newer", 1)
    for _ in range(3):
        world.timers.advance(11_000)
        assert say(world, "a", 2, subscribed_topic_names=["other"]) == ("NONE", 2, None)
        assert say(world, "b", 2) == ("NONE", 2, None)
    assert world.shard().consumer.groups["c"].resolved == {"(?<=o)ther": frozenset()}
    say(world, "new", 0)
    world.timers.advance(1_000)
    assert say(world, "a", 2, 0, 1, 2) == ("NONE", 2, [0, 1])


def test_topics_that_are_no_longer_subscribed_to_are_revoked_at_once(world: World) -> None:
    """Not with the next target assignment only, which is an interval away."""
    both = ["events", "other"]
    error, epoch, _ = say(world, "a", 0, subscribed_topic_names=both)
    assert (error, epoch) == ("NONE", 2)
    owned = world.shard().consumer.groups["c"].current("a").assigned
    assert sorted(map(len, owned.values())) == [3, 12]
    assert say(world, "a", 2, subscribed_topic_names=["other"]) == ("NONE", 2, [0, 1, 2])
    current = world.shard().consumer.groups["c"].current("a")
    assert (current.state, current.member_epoch) == (MemberState.UNREVOKED_PARTITIONS, 2)
    assert [len(partitions) for partitions in current.revoking.values()] == [12]
    assert say(world, "a", 2, 0, 1, 2) == ("NONE", 2, None)
    world.timers.advance(1_000)
    assert say(world, "a", 2, 0, 1, 2) == ("NONE", 3, None)


def test_limits() -> None:
    world = World(config=GroupCoordinatorConfig(group_consumer_max_size=1))
    assert say(world, "a", 0)[0] == "NONE"
    assert say(world, "b", 0)[0] == "GROUP_MAX_SIZE_REACHED"
    assert say(world, "a", 0)[0] == "NONE"


def test_an_empty_group_of_either_kind_gives_way() -> None:
    from tests.coordinator.group.members import ClientMember
    from tests.coordinator.group.members import settle as settle_classic

    world = World(config=GroupCoordinatorConfig(group_consumer_migration_policy="disabled"))
    say(world, "a", 0)
    classic = ClientMember(world, "old", group="c")
    classic.join()
    assert classic.errors == [ErrorCode.INCONSISTENT_GROUP_PROTOCOL]
    say(world, "a", -1)
    settle_classic(world, [classic])
    assert "c" not in world.replayed().consumer.groups
    assert say(world, "a", 0) == ("GROUP_ID_NOT_FOUND", 0, None)
    classic.leave()
    world.timers.advance(1)
    assert say(world, "a", 0) == ("NONE", 2, [0, 1, 2])
    assert "c" not in world.replayed().classic.groups


def test_a_group_has_settings_of_its_own(world: World) -> None:
    own = world.overrides.values
    own["c", "consumer.session.timeout.ms"] = 3_000
    own["c", "consumer.heartbeat.interval.ms"] = 1_000
    own["c", "consumer.assignment.interval.ms"] = 2_000
    joining = {"rebalance_timeout_ms": 5_000, "subscribed_topic_names": ["other"]}
    joining["topic_partitions"] = []
    answer = ask(world, member_id="a", member_epoch=0, **joining)
    assert answer.heartbeat_interval_ms == 1_000
    assert ask(world, group_id="d", member_id="a", **joining).heartbeat_interval_ms == 5_000
    group = world.shard().consumer.groups["c"]
    say(world, "b", 0)
    world.timers.advance(1_999)
    say(world, "b", 2)
    assert group.target_epoch == 2
    world.timers.advance(1)
    say(world, "b", 2)
    assert group.target_epoch == 3
    world.timers.advance(1_000)
    assert group.members.keys() == {"b"}
    assert world.shard().consumer.groups["d"].members.keys() == {"a"}


def owned_of_events(world: World, member: str) -> list[int]:
    topic_id = world.topics.topics["events"].topic_id
    return sorted(world.shard().consumer.groups["c"].current(member).assigned.get(topic_id, ()))


@pytest.mark.parametrize(
    "is_static", [False, True], ids=["a member", "a static member's successor"]
)
def test_another_assignor_takes_effect_with_the_next_assignment(
    world: World, is_static: bool
) -> None:
    """As in Kafka, only the member's record is written: a rolling restart that changes assignors
    causes no rebalance for each member.
    """
    static = {"instance_id": "i"} if is_static else {}
    joining: dict[str, Any] = {**static, "subscribed_topic_names": ["events"]}
    assert say(world, "a", 0, server_assignor="uniform", **joining)[:2] == ("NONE", 2)
    world.timers.advance(1_000)
    if is_static:
        assert say(world, "a", -2, **static)[0] == "NONE"
        assert say(world, "b", 0, server_assignor="range", **joining)[:2] == ("NONE", 2)
    else:
        assert say(world, "a", 2, server_assignor="range") == ("NONE", 2, None)
    group = world.shard().consumer.groups["c"]
    member = "b" if is_static else "a"
    assert (group.epoch, group.target_epoch) == (2, 2)
    assert world.replayed().consumer.groups["c"].members[member].server_assignor == "range"
    assert owned_of_events(world, member) == list(range(12))
    world.timers.advance(1_000)
    say(world, "0", 0, subscribed_topic_names=["events"], server_assignor="range")
    assert (group.epoch, group.target_epoch) == (3, 3)
    assert [sorted(*group.targets[each].values()) for each in ("0", member)] == [
        list(range(6)),
        list(range(6, 12)),
    ]
