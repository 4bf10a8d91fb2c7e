"""Groups that change their protocol while members are in them: rolled forward and back, one member
at a time, with the clients of both protocols in one group meanwhile.
"""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator.group.classic.state import GroupState
from kbroker.coordinator.group.records import offset_commit_record
from kbroker.coordinator.group.service import GROUP_TOPIC
from kbroker.model import TopicPartition, Uuid
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import JoinGroupResponse, LeaveGroupRequest
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitRequest
from kbroker.protocol.messages.stored.group_records import OffsetCommitValue
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.compacted import compacted
from tests.coordinator.group.consumers import Consumer, ask
from tests.coordinator.group.members import PARTITION_COUNT, ClientMember
from tests.coordinator.simulation import Context, World

Any_Member = ClientMember | Consumer
LOG = TopicPartition(GROUP_TOPIC, 0)


def consumer(world: World, name: str, **fields: Any) -> Consumer:
    return Consumer(world, name, group_id="g", **fields)


def owned(member: Any_Member) -> set[int]:
    if isinstance(member, Consumer):
        return {partition for _, partition in member.owned}
    return set(member.partitions or ())


def settle(world: World, *members: Any_Member) -> None:
    """Poll until the partitions are distributed over all members, each with one."""
    for _ in range(60):
        world.timers.advance(1_000)
        for member in members:
            member.poll()
            check(members)
        shares = [owned(member) for member in members]
        if all(shares) and sum(map(len, shares)) == PARTITION_COUNT:
            return
    raise AssertionError([owned(member) for member in members])


def check(members: tuple[Any_Member, ...]) -> None:
    """No partition belongs to two members."""
    seen: set[int] = set()
    for member in members:
        assert not seen & owned(member), "two owners"
        seen |= owned(member)


def leave(member: Any_Member) -> None:
    member.leave()


def commit_one_offset(world: World, member: ClientMember) -> None:
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(
        name="events",
        partitions=[
            OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
        ],
    )
    request = OffsetCommitRequest(
        group_id="g",
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        generation_id_or_member_epoch=member.generation,
        topics=[topic],
    )
    answer: Any = world.answer(world.coordinator.offsets.commit(Context(8), request))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


def topic_id(world: World) -> Uuid:
    return world.topics.topics["events"].topic_id


def is_consumer_group(world: World) -> bool:
    shard = world.shard()
    is_consumer = "g" in shard.consumer.groups
    assert is_consumer is not ("g" in shard.classic.groups)
    assert is_consumer is ("g" in world.replayed().consumer.groups)
    assert is_consumer is not ("g" in world.replayed().classic.metadata)
    return is_consumer


class Hesitant(ClientMember):
    """Waits with the id that it was told to join with."""

    def _joined(self, response: JoinGroupResponse) -> None:
        if response.error_code != ErrorCode.MEMBER_ID_REQUIRED:
            super()._joined(response)
            return
        self.joining = False
        self.member_id = response.member_id


@pytest.mark.parametrize("has_offsets", [False, True])
def test_a_member_that_has_only_an_id_joins_the_group_that_became_another(
    has_offsets: bool,
) -> None:
    """Such a group is empty, and a joining member of either type may replace it; librdkafka does
    not survive a refusal.
    """
    world = World()
    if has_offsets:  # then the group is there before the join, and has no record
        world.shard().replay(offset_commit_record("g", "events", 0, OffsetCommitValue(offset=1)))
    old, new = Hesitant(world, "old", group="g"), consumer(world, "new")
    old.join()
    world.timers.advance(1)
    assert old.member_id
    assert world.shard().kind_of("g") is not world.shard().consumer
    new.poll()
    world.timers.advance(1)
    assert "g" in world.shard().consumer.groups
    assert "g" not in world.shard().classic.groups
    old.join()
    settle(world, old, new)
    assert is_consumer_group(world)


@pytest.mark.parametrize("reload", [False, True])
def test_a_group_is_rolled_forward_and_back(reload: bool) -> None:
    world = World()

    def pause() -> None:
        if reload:
            world.resign()
            world.lead()

    classic = [ClientMember(world, f"old{n}", group="g") for n in range(3)]
    settle(world, *classic)
    assert not is_consumer_group(world)
    members: list[Any_Member] = [*classic]
    for number, old in enumerate(classic):
        leave(old)
        members.remove(old)
        members.append(consumer(world, f"new{number}"))
        settle(world, *members)
        assert is_consumer_group(world)
        pause()
    for number, new in enumerate(list(members)):
        leave(new)
        members.remove(new)
        members.append(ClientMember(world, f"again{number}", group="g"))
        settle(world, *members)
        assert is_consumer_group(world) is (number < 2)
        pause()
    assert world.shard().classic.groups["g"].state is GroupState.STABLE


def test_the_epoch_goes_on_from_the_generation() -> None:
    world = World()
    old = ClientMember(world, "old", group="g")
    settle(world, old)
    generation = old.generation
    new = consumer(world, "new")
    new.poll()
    group = world.shard().consumer.groups["g"]
    assert (group.epoch, group.target_epoch) == (generation + 1, generation + 1)
    assert group.current(old.member_id).member_epoch == generation
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    settle(world, old, new)
    before = group.epoch
    leave(new)
    settle(world, old)
    assert old.generation == before + 1


def test_who_waits_for_a_rebalance_is_told_to_join_again() -> None:
    world = World(config=GroupCoordinatorConfig(group_initial_rebalance_delay_ms=3_000))
    old = ClientMember(world, "old", group="g")
    old.join()
    assert old.joining
    new = consumer(world, "new")
    new.poll()
    assert old.errors[-1] is ErrorCode.REBALANCE_IN_PROGRESS
    settle(world, old, new)


def test_records_are_those_of_both_ends_in_one_batch() -> None:
    world = World()
    old = ClientMember(world, "old", group="g")
    settle(world, old)
    partition = next(iter(world.log.batches))
    count = len(world.log.batches[partition])
    new = consumer(world, "new")
    new.poll()
    assert len(world.log.batches[partition]) == count + 1
    settle(world, old, new)
    count = len(world.log.batches[partition])
    leave(new)
    assert len(world.log.batches[partition]) == count + 1
    assert not is_consumer_group(world)


def test_a_member_that_never_fetches_its_assignment_is_given_up() -> None:
    world = World()
    new = consumer(world, "new")
    settle(world, new)
    old = ClientMember(world, "old", group="g", rebalance_timeout_ms=20_000)
    old.auto_sync = False
    old.join()
    group = world.shard().consumer.groups["g"]
    assert old.member_id in group.members
    for _ in range(25):
        world.timers.advance(1_000)
        new.poll()
        if old.member_id in group.members:
            old.heartbeat()
    assert group.members.keys() == {"new"}


def test_a_member_that_does_not_join_when_told_is_given_up() -> None:
    world = World()
    old = ClientMember(world, "old", group="g", rebalance_timeout_ms=20_000)
    settle(world, old)
    new = consumer(world, "new")
    new.poll()
    errors = []
    for _ in range(25):
        world.timers.advance(1_000)
        new.poll()
        errors.append(old.heartbeat())
    assert errors[0] is ErrorCode.REBALANCE_IN_PROGRESS
    assert errors[-1] is ErrorCode.UNKNOWN_MEMBER_ID
    settle(world, new)


def test_the_session_of_a_classic_member_is_its_own() -> None:
    world = World()
    old = ClientMember(world, "old", group="g", session_timeout_ms=8_000)
    settle(world, old)
    new = consumer(world, "new")
    settle(world, old, new)
    for _ in range(7):
        world.timers.advance(1_000)
        new.poll()
    assert old.member_id in world.shard().consumer.groups["g"].members
    world.timers.advance(1_000)
    assert old.member_id not in world.shard().consumer.groups["g"].members


def test_the_last_consumer_crashes_and_the_group_is_classic_again() -> None:
    world = World()
    old = ClientMember(world, "old", group="g", session_timeout_ms=50_000)
    settle(world, old)
    new = consumer(world, "new")
    settle(world, old, new)
    new.deaf = True
    world.timers.advance(46_000)
    assert not is_consumer_group(world)
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    settle(world, old)


def test_a_static_member_changes_its_protocol_and_keeps_its_partitions() -> None:
    world = World()
    olds = [ClientMember(world, f"old{n}", group="g", instance_id=f"i{n}") for n in range(2)]
    settle(world, *olds)
    kept = owned(olds[1])
    olds[1].crash()
    new = consumer(world, "new", instance_id="i1")
    settle(world, olds[0], new)
    group = world.shard().consumer.groups["g"]
    assert group.static_members == {"i0": olds[0].member_id, "i1": "new"}
    assert len(kept & owned(new)) >= len(kept) - 1
    new.deaf = True
    new.owned.clear()
    back = ClientMember(world, "back", group="g", instance_id="i1")
    settle(world, olds[0], back)
    assert not is_consumer_group(world)
    assert world.shard().classic.groups["g"].static_members.keys() == {"i0", "i1"}


def test_a_static_member_changes_its_protocol_in_the_middle_of_a_rebalance() -> None:
    """The members' assignments are not complete: all partitions are assigned again, although no
    member is new.
    """
    world = World()
    olds = [ClientMember(world, f"old{n}", group="g", instance_id=f"i{n}") for n in range(3)]
    settle(world, *olds)
    removed = LeaveGroupRequest.MemberIdentity(member_id=olds[2].member_id, group_instance_id="i2")
    world.coordinator.leave_group(Context(5), LeaveGroupRequest(group_id="g", members=[removed]))
    assert olds[0].heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    olds[1].crash()
    new = consumer(world, "new", instance_id="i1")
    settle(world, olds[0], new)
    assert world.shard().consumer.groups["g"].members.keys() == {olds[0].member_id, "new"}


@pytest.mark.parametrize("topics", [["events"], ["other"]], ids=["same topics", "other topics"])
def test_a_static_member_that_returns_as_a_classic_one_makes_the_group_classic(
    topics: list[str],
) -> None:
    """As in Kafka: Stable if its subscription is the former one, else a rebalance begins."""
    world = World()
    old = ClientMember(world, "old", group="g", instance_id="i0")
    new = consumer(world, "new", instance_id="i1")
    settle(world, old, new)
    commit_one_offset(world, old)
    back = ClientMember(world, "back", group="g", instance_id="i1")
    back.topics = topics
    back.auto_sync = False
    back.join()
    assert back.errors == [ErrorCode.NONE]
    assert not is_consumer_group(world)
    is_unchanged = topics == ["events"]
    state = GroupState.STABLE if is_unchanged else GroupState.PREPARING_REBALANCE
    assert world.shard().classic.groups["g"].state is state
    assert world.shard().classic.groups["g"].members.keys() == {old.member_id, back.member_id}


@pytest.mark.parametrize(
    ("policy", "upgrades", "joins", "downgrades"),
    [
        ("disabled", False, False, False),
        ("upgrade", True, True, False),
        ("downgrade", False, True, True),
        ("bidirectional", True, True, True),
    ],
)
def test_the_policy(policy: str, upgrades: bool, joins: bool, downgrades: bool) -> None:
    world = World(config=GroupCoordinatorConfig(group_consumer_migration_policy=policy))
    old = ClientMember(world, "old", group="g")
    settle(world, old)
    new = consumer(world, "new")
    new.poll()
    expected = ErrorCode.NONE if upgrades else ErrorCode.GROUP_ID_NOT_FOUND
    assert new.error is expected
    first = Consumer(world, "first", group_id="h")
    first.poll()
    second = ClientMember(world, "second", group="h")
    second.join()
    assert (second.errors[-1] is ErrorCode.NONE) is joins
    if not joins:
        assert second.errors == [ErrorCode.INCONSISTENT_GROUP_PROTOCOL]
        return
    leave(first)
    assert ("h" in world.shard().classic.groups) is downgrades


def test_groups_that_are_not_of_consumers_stay_classic() -> None:
    world = World(config=GroupCoordinatorConfig(group_consumer_max_size=1))
    olds = [ClientMember(world, f"old{n}", group="g") for n in range(2)]
    settle(world, *olds)
    new = consumer(world, "new")
    new.poll()
    assert new.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert not is_consumer_group(world)
    answer = ask(world, group_id="g", member_id="x", member_epoch=3)
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_log_that_refuses_the_change_leaves_the_group_as_it_was() -> None:
    world = World()
    old = ClientMember(world, "old", group="g")
    settle(world, old)
    world.log.errors.append(ErrorCode.NOT_ENOUGH_REPLICAS)
    new = consumer(world, "new")
    new.poll()
    assert new.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not is_consumer_group(world)
    settle(world, old)


def test_a_slow_log_changes_nothing_of_it() -> None:
    world = World()
    old = ClientMember(world, "old", group="g")
    settle(world, old)
    new = consumer(world, "new")
    world.log.delayed = True
    new.poll()
    old.poll()
    world.log.delayed = False
    world.log.commit()
    settle(world, old, new)
    world.log.delayed = True
    leave(new)
    assert old.heartbeat() in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
    world.log.delayed = False
    world.log.commit()
    settle(world, old)


def test_a_classic_member_commits_by_its_generation() -> None:
    world = World()
    old = ClientMember(world, "old", group="g")
    settle(world, old)
    new = consumer(world, "new")
    settle(world, old, new)
    group = world.shard().consumer.groups["g"]
    places = [(topic_id(world), min(owned(old)))]
    epoch = old.generation
    assert group.check_commit(old.member_id, epoch, 8, places) is ErrorCode.NONE
    assert group.check_commit(old.member_id, epoch + 1, 8, places) is ErrorCode.ILLEGAL_GENERATION
    elsewhere = [(topic_id(world), min(owned(new)))]
    assert (
        group.check_commit(old.member_id, epoch - 1, 8, elsewhere) is ErrorCode.ILLEGAL_GENERATION
    )
    assert group.check_fetch(old.member_id, epoch + 1) is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("reload", [False, True])
def test_what_a_member_has_not_given_back_outlives_two_changes(reload: bool) -> None:
    """The group becomes a classic one and again a consumer group before a member was heard of that
    is to give something back.
    """
    world = World()
    slow = ClientMember(world, "slow", group="g")
    first = consumer(world, "first")
    settle(world, slow, first)
    other = ClientMember(world, "other", group="g")
    other.join()  # takes from both, who have not heard of it
    world.timers.advance(1_000)
    first.poll()
    leave(first)
    assert not is_consumer_group(world)
    if reload:
        world.resign()
        world.lead()
    second = consumer(world, "second")
    for _ in range(5):
        world.timers.advance(1_000)
        second.poll()
        other.poll()
        check((slow, other, second))
    settle(world, slow, other, second)


class Cooperative(ClientMember):
    """Keeps what it has while it joins (KIP-429)."""

    def join(self) -> None:
        kept = self.partitions
        super().join()
        if self.partitions is None:  # still waiting
            self.partitions = kept


def test_cooperative_members_keep_theirs_while_a_rebalance_starts_anew() -> None:
    """The assignment of a generation is not there yet when the next one begins, and in that the
    group changes.
    """
    world = World(config=GroupCoordinatorConfig(group_initial_rebalance_delay_ms=0))
    olds = [Cooperative(world, f"old{n}", group="g") for n in range(2)]
    settle(world, *olds)
    for old in olds:
        old.auto_sync = False
    third = Cooperative(world, "third", group="g")
    third.auto_sync = False
    third.join()
    for old in olds:
        old.poll()
    assert world.shard().classic.groups["g"].state is GroupState.COMPLETING_REBALANCE
    fourth = Cooperative(world, "fourth", group="g")
    fourth.join()
    assert world.shard().classic.groups["g"].state is GroupState.PREPARING_REBALANCE
    new = consumer(world, "new")
    new.poll()
    for _ in range(3):
        world.timers.advance(1_000)
        new.poll()
        check((*olds, new))
    assert not owned(new) & (owned(olds[0]) | owned(olds[1]))
    assert owned(olds[0]) and owned(olds[1])


def test_the_last_consumer_comes_back_as_a_classic_member_before_it_got_its_share() -> None:
    """The other member has not revoked the partitions outside of its target; a rebalance makes it
    do so.
    """
    world = World()
    slow = ClientMember(world, "slow", group="g")
    settle(world, slow)
    new = consumer(world, "new", instance_id="i1")
    new.poll()
    assert not owned(new)
    back = ClientMember(world, "back", group="g", instance_id="i1")
    back.join()
    assert not is_consumer_group(world)
    for _ in range(5):
        world.timers.advance(1_000)
        back.poll()
        check((slow, back))
    settle(world, slow, back)


def test_a_group_that_settled_after_its_change_loads_as_stable() -> None:
    """Compaction leaves one classic record of it, which looks like the first."""
    world = World()
    old = ClientMember(world, "old", group="g")
    new = consumer(world, "new")
    settle(world, old)
    settle(world, old, new)
    leave(new)
    settle(world, old)
    assert world.shard().classic.groups["g"].state is GroupState.STABLE
    assert loaded_states(world) == [GroupState.STABLE] * 3


def test_a_group_that_changes_without_a_rebalance_loads_as_stable() -> None:
    """The last consumer, a static member, returns as a classic one and keeps its partitions."""
    world = World()
    olds = [ClientMember(world, f"old{n}", group="g", instance_id=f"i{n}") for n in range(2)]
    settle(world, *olds)
    olds[1].crash()
    new = consumer(world, "new", instance_id="i1")
    settle(world, olds[0], new)
    leave_epoch = -2
    new.leave(leave_epoch)
    back = ClientMember(world, "back", group="g", instance_id="i1")
    back.join()
    assert world.shard().classic.groups["g"].state is GroupState.STABLE
    assert loaded_states(world) == [GroupState.STABLE] * 3


def test_a_group_that_changes_with_a_rebalance_loads_as_rebalancing() -> None:
    """Only its record tells that its partitions are not shared by those who are left."""
    world = World()
    old = ClientMember(world, "old", group="g")
    settle(world, old)
    new = consumer(world, "new")
    settle(world, old, new)
    leave(new)
    assert loaded_states(world) == [GroupState.PREPARING_REBALANCE] * 3
    settle(world, old)
    assert owned(old) == set(range(PARTITION_COUNT))


def loaded_states(world: World) -> list[GroupState]:
    """Of the group, by a coordinator that loads the log: whole, compacted, without tombstones."""
    batches = world.log.batches[LOG]
    logs = [batches, *(compacted(batches, keep_tombstones=keep) for keep in (True, False))]
    return [world.with_log({LOG: log}).shard().classic.groups["g"].state for log in logs]
