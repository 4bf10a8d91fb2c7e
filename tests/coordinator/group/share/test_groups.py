"""Share groups: assignments, epochs, the states of their partitions, and a simulation by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from kbroker.coordinator.group.share.group import ShareGroup
from kbroker.coordinator.group.share_service import ShareGroupCoordinator
from kbroker.model import InvariantError, TopicIdPartition, TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.groups import DeleteGroupsRequest, DeleteGroupsResponse
from kbroker.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kbroker.protocol.pieces import PIECE_ITEMS
from kbroker.protocol.share_partition_state import SharePlace, StateFound, StateSummary, StateWrite
from kbroker.server.slicing.sliced import at_once
from tests.coordinator.simulation import LOG_ERRORS, Context, World


class FakePersister:
    """States in a dict. errors: of the next requests; delayed: answers wait for `answer`."""

    def __init__(self) -> None:
        self.offsets: dict[SharePlace, int] = {}
        self.errors: list[ErrorCode] = []
        self.delayed = False
        self.waiting: list[Callable[[], None]] = []

    def initialize(
        self, group_id: str, state_epoch: int, start_offsets: Mapping[TopicIdPartition, int]
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        def make(place: TopicIdPartition) -> None:
            self.offsets[SharePlace(group_id, place)] = start_offsets[place]

        return self._each(list(start_offsets), make)

    def delete(
        self, group_id: str, places: Sequence[TopicIdPartition]
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        return self._each(places, lambda place: self.offsets.pop(SharePlace(group_id, place), None))

    def _each(
        self, places: Sequence[TopicIdPartition], action: Callable[[TopicIdPartition], object]
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        result: Deferred[Mapping[TopicIdPartition, ErrorCode]] = Deferred()
        error = self.errors.pop(0) if self.errors else ErrorCode.NONE

        def answer() -> None:
            if error is ErrorCode.NONE:
                for place in places:
                    action(place)
            result.resolve(dict.fromkeys(places, error))

        if self.delayed:
            self.waiting.append(answer)
        else:
            answer()
        return result

    def answer(self) -> None:
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            one()

    def summarize(
        self, group_id: str, places: Sequence[TopicIdPartition]
    ) -> Deferred[Mapping[TopicIdPartition, StateSummary]]:
        return Deferred.of(
            {
                place: StateSummary(
                    ErrorCode.NONE, self.offsets.get(SharePlace(group_id, place), -1), 0, 0
                )
                for place in places
            }
        )

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        raise NotImplementedError  # groups do not read states

    def write(self, key: SharePlace, write: StateWrite) -> Deferred[ErrorCode]:
        raise NotImplementedError  # nor write them


class Shares:
    """A world with share groups."""

    def __init__(self, seed: int = 1) -> None:
        self.take(World(seed=seed))

    def take(self, world: World) -> None:
        """Coordinate the groups of that world."""
        self.world = world
        self.persister = FakePersister()
        self.coordinator = ShareGroupCoordinator(
            self.world.coordinator,
            self.persister,
            timers=self.world.timers,
            topics=lambda: self.world.topics,
            end_offset=lambda partition: 100,
        )

    def group(self, group_id: str = "s") -> ShareGroup:
        return self.world.shard().share.groups[group_id]

    def ask(self, **fields: Any) -> ShareGroupHeartbeatResponse:
        request = ShareGroupHeartbeatRequest(**{"group_id": "s", **fields})
        try:
            answer = self.coordinator.heartbeat(Context(1), request)
        except KafkaError as error:
            return ShareGroupHeartbeatResponse(error_code=error.code)
        if not answer.done:
            return ShareGroupHeartbeatResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)
        return answer.value

    def join(self, member_id: str, *topics: str) -> ShareGroupHeartbeatResponse:
        names = list(topics) or ["other"]
        return self.ask(member_id=member_id, member_epoch=0, subscribed_topic_names=names)


def partitions_of(response: ShareGroupHeartbeatResponse) -> list[int]:
    assert response.assignment is not None
    return [n for topic in response.assignment.topic_partitions for n in topic.partitions]


def test_partitions_are_assigned_once_they_have_a_state() -> None:
    shares = Shares()
    first = shares.join("m")
    assert (first.member_epoch, partitions_of(first)) == (2, [])
    again = shares.ask(member_id="m", member_epoch=2)  # too early for another assignment
    assert (again.member_epoch, again.assignment) == (2, None)
    shares.world.timers.advance(1_000)
    later = shares.ask(member_id="m", member_epoch=2)
    assert (later.member_epoch, partitions_of(later)) == (3, [0, 1, 2])
    assert shares.ask(member_id="m", member_epoch=3).assignment is None
    assert len(shares.persister.offsets) == 3


def test_topics_that_are_no_longer_subscribed_to_are_withdrawn_at_once() -> None:
    """Not with the next target assignment only, which is an interval away."""
    shares = Shares()
    shares.join("m", "events", "other")
    shares.world.timers.advance(1_000)
    later = shares.ask(member_id="m", member_epoch=2)
    assert (later.member_epoch, len(partitions_of(later))) == (3, 15)
    fewer = shares.ask(member_id="m", member_epoch=3, subscribed_topic_names=["other"])
    assert (fewer.member_epoch, partitions_of(fewer)) == (3, [0, 1, 2])
    assert shares.group().epoch == 4
    shares.world.timers.advance(1_000)
    last = shares.ask(member_id="m", member_epoch=3)
    assert (last.member_epoch, last.assignment) == (4, None)


def test_states_that_could_not_be_made_are_tried_again() -> None:
    shares = Shares()
    shares.persister.errors.append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    shares.join("m")
    shares.world.timers.advance(10_000)
    shares.ask(member_id="m", member_epoch=2)
    assert not shares.persister.offsets
    shares.world.timers.advance(25_000)
    shares.ask(member_id="m", member_epoch=2)
    shares.ask(member_id="m", member_epoch=2)
    assert len(shares.persister.offsets) == 3
    assert shares.group().states.initializing == {}


def test_epochs_are_checked() -> None:
    shares = Shares()
    shares.join("m")
    shares.world.timers.advance(1_000)
    shares.ask(member_id="m", member_epoch=2)
    assert shares.ask(member_id="m", member_epoch=2).member_epoch == 3  # it missed the answer
    for epoch in (1, 4):
        refused = shares.ask(member_id="m", member_epoch=epoch)
        assert refused.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    stranger = shares.ask(member_id="n", member_epoch=3)
    assert stranger.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    unknown = shares.ask(group_id="t", member_id="m", member_epoch=3)
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    "fields",
    [
        {"member_id": ""},
        {"group_id": ""},
        {"rack_id": ""},
        {"member_epoch": -2},
        {"subscribed_topic_names": []},
        {"subscribed_topic_names": None},
    ],
)
def test_requests_that_cannot_be(fields: dict[str, Any]) -> None:
    good = {"member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["other"]}
    assert Shares().ask(**{**good, **fields}).error_code == ErrorCode.INVALID_REQUEST


def test_who_is_silent_is_given_up() -> None:
    shares = Shares()
    shares.join("m")
    shares.join("n")
    for _ in range(5):
        shares.world.timers.advance(10_000)
        shares.ask(member_id="n", member_epoch=shares.group().current("n").member_epoch)
    assert list(shares.group().members) == ["n"]
    shares.world.timers.advance(50_000)
    assert shares.group().state() == "Empty"


def settle(shares: Shares) -> None:
    shares.join("m")
    shares.world.timers.advance(1_000)
    shares.ask(member_id="m", member_epoch=2)


def test_offsets_of_a_group_without_members() -> None:
    shares = Shares()
    settle(shares)
    alter = AlterShareGroupOffsetsRequest(
        group_id="s",
        topics=[
            AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic(
                topic_name="other",
                partitions=[
                    AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition(
                        partition_index=index, start_offset=40
                    )
                    for index in (0, 9)
                ],
            )
        ],
    )
    with pytest.raises(KafkaError) as refused:
        at_once(shares.coordinator.alter_offsets(Context(0), alter))
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    shares.ask(member_id="m", member_epoch=-1)
    altered = at_once(shares.coordinator.alter_offsets(Context(0), alter))
    assert isinstance(altered, Deferred)
    assert isinstance(altered.value, AlterShareGroupOffsetsResponse)
    codes = [one.error_code for one in altered.value.responses[0].partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert offsets(shares) == {0: (40, 60), 1: (-1, -1), 2: (-1, -1)}
    delete = DeleteShareGroupOffsetsRequest(
        group_id="s",
        topics=[
            DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic(topic_name=name)
            for name in ("other", "events")
        ],
    )
    deleted = at_once(shares.coordinator.delete_offsets(Context(0), delete))
    assert isinstance(deleted, Deferred)
    assert isinstance(deleted.value, DeleteShareGroupOffsetsResponse)
    assert [one.error_code for one in deleted.value.responses] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert not shares.persister.offsets
    assert offsets(shares) == {}


def offsets(shares: Shares) -> dict[int, tuple[int, int]]:
    """(start offset, lag) by partition."""
    return {
        one.partition_index: (one.start_offset, one.lag)
        for found, _ in shares.coordinator.describe_all_offsets("s")
        for topic in found.value.groups[0].topics
        for one in topic.partitions
    }


def test_all_offsets_of_a_group_are_described_in_pieces() -> None:
    """A request of some bytes names any number of them."""
    shares = Shares()
    settle(shares)
    count = 3 * PIECE_ITEMS
    group = shares.world.shard().share.groups["s"]
    ((topic_id, _),) = group.states.initialized.items()
    initialized = {topic_id: frozenset(range(count)), bytes(15) + b"x": frozenset[int]()}
    group.states = replace(group.states, initialized=initialized)
    asked: list[int] = []
    summarize = shares.persister.summarize

    def counted(group_id: str, places: Sequence[TopicIdPartition]) -> Any:
        asked.append(len(places))
        return summarize(group_id, places)

    shares.persister.summarize = counted  # type: ignore[method-assign]  # counted
    pieces = shares.coordinator.describe_all_offsets("s")
    assert asked == []
    first, continued = next(pieces)
    assert (asked, continued) == ([PIECE_ITEMS], 0)
    rest = list(pieces)
    assert asked == [PIECE_ITEMS] * 3
    assert [each for _, each in rest] == [1, 1, 0]
    responses = [first.value, *(outcome.value for outcome, _ in rest)]
    described = [topic for response in responses for topic in response.groups[0].topics]
    assert [one.partition_index for topic in described for one in topic.partitions] == list(
        range(count)
    )
    assert [(topic.topic_id, len(topic.partitions)) for topic in described] == [
        *[(topic_id, PIECE_ITEMS)] * 3,
        (bytes(15) + b"x", 0),
    ]


def delete_group(shares: Shares) -> int:
    request = DeleteGroupsRequest(groups_names=["s"])
    answer = shares.world.coordinator.delete_groups(Context(2), request)
    response = answer.value
    assert isinstance(response, DeleteGroupsResponse)
    return response.results[0].error_code


def test_a_group_ends_with_the_states_of_its_partitions() -> None:
    shares = Shares()
    settle(shares)
    assert delete_group(shares) == ErrorCode.NON_EMPTY_GROUP
    shares.ask(member_id="m", member_epoch=-1)
    shares.persister.errors.append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert delete_group(shares) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert shares.group().states.deleting
    assert delete_group(shares) == ErrorCode.NONE
    assert not shares.persister.offsets
    assert not shares.world.shard().share.groups
    assert not shares.world.replayed().share.groups


def delete_offsets(shares: Shares) -> int:
    topic = DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic(topic_name="other")
    request = DeleteShareGroupOffsetsRequest(group_id="s", topics=[topic])
    answer = at_once(shares.coordinator.delete_offsets(Context(0), request))
    response = answer.value
    assert isinstance(response, DeleteShareGroupOffsetsResponse)
    return response.responses[0].error_code


def read_again(shares: Shares) -> list[int]:
    """What a member gets that joins and sends heartbeats."""
    epoch = shares.join("n").member_epoch
    for _ in range(3):
        shares.world.timers.advance(2_000)
        epoch = shares.ask(member_id="n", member_epoch=epoch).member_epoch
    assert shares.group().states.deleting == frozenset()
    return sorted(
        partition
        for partitions in shares.group().current("n").assigned.values()
        for partition in partitions
    )


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize("delete", [delete_group, delete_offsets])
def test_a_deletion_that_failed_blocks_no_topic(
    delete: Callable[[Shares], int], reload: bool
) -> None:
    shares = Shares()
    settle(shares)
    shares.ask(member_id="m", member_epoch=-1)
    shares.persister.errors.append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert delete(shares) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    if reload:
        shares.world.resign()
        shares.world.lead()
    assert shares.group().states.deleting
    assert read_again(shares) == [0, 1, 2]
    assert len(shares.persister.offsets) == 3


def test_the_deletion_of_offsets_that_failed_is_asked_for_again() -> None:
    shares = Shares()
    settle(shares)
    shares.ask(member_id="m", member_epoch=-1)
    shares.persister.errors.append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert delete_offsets(shares) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert delete_offsets(shares) == ErrorCode.NONE
    assert not shares.persister.offsets
    assert shares.group().states.is_empty()


@pytest.mark.parametrize("delete", [delete_group, delete_offsets])
def test_a_member_joins_while_states_are_deleted(delete: Callable[[Shares], int]) -> None:
    """The member gets new states when the deletion is over; DeleteGroups then fails."""
    shares = Shares()
    settle(shares)
    shares.ask(member_id="m", member_epoch=-1)
    shares.persister.delayed = True
    with pytest.raises(InvariantError):
        delete(shares)  # no answer yet
    shares.persister.delayed = False
    epoch = shares.join("n").member_epoch
    assert len(shares.persister.offsets) == 3
    shares.persister.answer()
    assert not shares.persister.offsets
    shares.ask(member_id="n", member_epoch=epoch)
    assert read_again(shares) == [0, 1, 2]
    assert len(shares.persister.offsets) == 3


def test_topics_that_go_take_their_states_with_them() -> None:
    shares = Shares()
    settle(shares)
    deleted = shares.world.topics.remove("other")
    shares.world.coordinator.on_topics_deleted([deleted])
    assert shares.group().states.is_empty()
    shares.world.timers.advance(1_000)
    answer = shares.ask(member_id="m", member_epoch=3)
    assert (answer.member_epoch, partitions_of(answer)) == (4, [])


# -- a simulation --------------------------------------------------------------------------------

ATTRIBUTES = (
    "currents",
    "epoch",
    "members",
    "metadata_hash",
    "states",
    "target_epoch",
    "targets",
)


class Simulation:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.shares = Shares(seed)
        self.members: dict[str, int] = {}
        self.epoch = 0
        self.committed = 0
        self.count = 0

    def run(self) -> None:
        steps: Mapping[Callable[[], None], int] = {
            self.join: 3,
            self.beat: 30,
            self.leave: 1,
            self.crash: 1,
            self.pass_time: 15,
            self.reload: 1,
            self.change_topics: 1,
            self.slow_states: 2,
            self.failing_states: 1,
            self.slow_log: 4,
            self.failing_log: 1,
            self.jump_clock: 1,
            self.pass_much_time: 1,
        }
        for _ in range(100):
            self.random.choices(list(steps), list(steps.values()))[0]()
            self.check()
        log, persister = self.shares.world.log, self.shares.persister
        log.delayed = persister.delayed = False
        persister.errors.clear()
        log.errors = []
        self.shares.world.timers.advance(0)
        for _ in range(3):
            log.commit()
            persister.answer()
        for _ in range(50):
            self.shares.world.timers.advance(3_000)
            self.beat()
        self.check()
        self.check_settled()
        check_history(self.shares.world)
        check_cut(self.shares.world, self.random.randint(0, self.shares.world.log_length()))

    def join(self) -> None:
        if len(self.members) < 6:
            self.count += 1
            self.members[f"m{self.count}"] = 0
            self.beat(f"m{self.count}")

    def beat(self, *names: str) -> None:
        for name in names or list(self.members):
            topics = ["other", "new0"] if int(name[1:]) % 2 else ["other"]
            if self.members[name] == 0:
                answer = self.shares.join(name, *topics)
            else:
                answer = self.shares.ask(member_id=name, member_epoch=self.members[name])
            if answer.error_code == ErrorCode.NONE:
                assert answer.member_epoch >= self.members[name]
                self.members[name] = answer.member_epoch
            elif answer.error_code != ErrorCode.REQUEST_TIMED_OUT:
                self.members[name] = 0

    def leave(self) -> None:
        if self.members:
            name = self.random.choice(list(self.members))
            del self.members[name]
            self.shares.ask(member_id=name, member_epoch=-1)

    def crash(self) -> None:
        if self.members:
            del self.members[self.random.choice(list(self.members))]

    def pass_time(self) -> None:
        self.shares.world.timers.advance(self.random.choice([100, 1_000, 5_000]))

    def reload(self) -> None:
        self.shares.world.log.commit()
        self.shares.world.resign()
        self.shares.world.lead()

    def pass_much_time(self) -> None:
        self.shares.world.timers.advance(self.random.randrange(60_000))

    def jump_clock(self) -> None:
        self.shares.world.timers.jump(self.random)

    def failing_log(self) -> None:
        self.shares.world.log.errors = [self.random.choice(LOG_ERRORS)]

    def change_topics(self) -> None:
        topics = self.shares.world.topics
        if "new0" in topics.topics:
            self.shares.world.coordinator.on_topics_deleted([topics.remove("new0")])
        else:
            topics.add("new0", self.random.randrange(1, 5))

    def slow_states(self) -> None:
        persister = self.shares.persister
        persister.delayed = not persister.delayed
        if not persister.delayed:
            persister.answer()

    def failing_states(self) -> None:
        self.shares.persister.errors.append(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def slow_log(self) -> None:
        log = self.shares.world.log
        if log.delayed and self.random.random() < 0.5:
            self.shares.world.fail_over(self.random)
            self.epoch = self.committed
            return
        log.delayed = not log.delayed
        if not log.delayed:
            log.commit()

    def check(self) -> None:
        shard = self.shares.world.shard()
        replayed = self.shares.world.replayed().share.groups
        assert replayed.keys() == shard.share.groups.keys()
        for name, group in shard.share.groups.items():
            assert group.epoch >= self.epoch, "a group epoch went back"
            self.epoch = group.epoch
            if not self.shares.world.log.waiting:
                self.committed = self.epoch
            assert group.target_epoch <= group.epoch
            assert group.currents.keys() == group.members.keys()
            assert group.targets.keys() <= group.members.keys()
            for attribute in ATTRIBUTES:
                assert getattr(replayed[name], attribute) == getattr(group, attribute), attribute
            for target in group.targets.values():
                for topic_id, partitions in target.items():
                    made = group.states.initialized.get(topic_id)
                    assert made is None or partitions <= made, "assigned without a state"

    def check_settled(self) -> None:
        if not self.members:
            return
        group, topics = self.shares.group(), self.shares.world.topics.topics
        assert group.members.keys() == self.members.keys()
        wanted = {
            (topics[name].topic_id, partition)
            for name in group.subscribed_names()
            if name in topics
            for partition in topics[name].partitions
        }
        assigned = {
            (topic_id, partition)
            for current in group.currents.values()
            for topic_id, partitions in current.assigned.items()
            for partition in partitions
        }
        assert assigned == wanted
        assert all(current.assigned for current in group.currents.values())


def check_history(world: World) -> None:
    """Whatever record the log ends with: no epoch goes back from there."""
    newest: dict[str, int] = {}
    for shard in world.growing():
        groups = shard.share.groups
        for name, group in groups.items():
            assert group.target_epoch <= group.epoch
            assert group.epoch >= newest.get(name, 0), "a group epoch went back"
        newest = {name: group.epoch for name, group in groups.items()}


def check_cut(world: World, end: int) -> None:
    """Whatever record the log ends with, a coordinator goes on from there: who was in the group is
    given up, who comes reads everything.
    """
    shares = Shares()
    shares.take(world.cut(end))
    epoch = 0
    for _ in range(60):
        shares.world.timers.advance(1_000)
        answer = shares.ask(
            member_id="late", member_epoch=epoch, subscribed_topic_names=["other", "new0"]
        )
        assert answer.member_epoch >= epoch
        epoch = answer.member_epoch
    group = shares.group()
    assert group.members.keys() == {"late"}
    topics = shares.world.topics.topics
    assert group.currents["late"].assigned == {
        topics[name].topic_id: frozenset(topics[name].partitions)
        for name in ("other", "new0")
        if name in topics
    }


@pytest.mark.parametrize("seed", range(30))
def test_simulated_share_groups(seed: int) -> None:
    Simulation(seed).run()


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_thousands_of_simulated_share_groups(block: int) -> None:
    for seed in range(1_000 + block * 100, 1_100 + block * 100):
        try:
            Simulation(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_end_offsets_are_of_named_partitions() -> None:
    """The lag is asked for by topic name, as clients know it."""
    asked: list[TopicPartition] = []
    shares = Shares()

    def end_offset(partition: TopicPartition) -> int | None:
        asked.append(partition)
        return None

    shares.coordinator._end_offset = end_offset
    settle(shares)
    for key in list(shares.persister.offsets):
        shares.persister.offsets[key] = 7
    assert offsets(shares)[0] == (7, -1)
    assert TopicPartition("other", 0) in asked
