"""Share groups: assignments, epochs, and the states of their partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from kbroker.model import InvariantError, TopicIdPartition, TopicPartition
from kbroker.ports import Deferred, at_once
from kbroker.protocol.codecs.pieces import PIECE_ITEMS
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.groups import DeleteGroupsRequest, DeleteGroupsResponse
from kbroker.protocol.messages.coordinators.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from tests.coordinator.group.share.shares import Shares, partitions_of, settle
from tests.coordinator.simulation import Context


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


def test_end_offsets_are_of_named_partitions() -> None:
    """The lag is asked for by topic name, as clients know it."""
    shares = Shares()
    settle(shares)
    for key in list(shares.persister.offsets):
        shares.persister.offsets[key] = 7
    shares.ends.errors[TopicPartition("other", 1)] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert offsets(shares) == {0: (7, 93), 1: (0, -1), 2: (7, 93)}
    assert shares.ends.asked == [TopicPartition("other", index) for index in range(3)]
