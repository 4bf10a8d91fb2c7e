"""Offsets that are pending in a transaction: which record decides, what removes them, and that a
group they belong to is of one type. Each is the same after a reload of the log, whole and
compacted.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.coordinator.group.offset_service import ITEMS_PER_STEP
from kbroker.coordinator.group.records import (
    group_metadata_record,
    group_tombstone,
    offset_commit_record,
)
from kbroker.coordinator.group.service import GROUP_TOPIC
from kbroker.coordinator.runtime.coordinator_log import Transactional
from kbroker.coordinator.runtime.result import CoordinatorResult
from kbroker.model import TopicPartition
from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.groups import DeleteGroupsRequest, DeleteGroupsResponse
from kbroker.protocol.messages.coordinators.offsets import (
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.protocol.messages.stored.group_records import GroupMetadataValue, OffsetCommitValue
from tests.coordinator.compacted import compacted
from tests.coordinator.group.commits import ask, commit, fetch
from tests.coordinator.group.offset_transactions import (
    PRODUCER_EPOCH,
    commit_in_transaction,
    end_transaction,
    resolved_commit,
)
from tests.coordinator.group.share.shares import Shares
from tests.coordinator.group.streams_members import StreamsThread
from tests.coordinator.group.streams_members import settle as settle_streams
from tests.coordinator.simulation import Context, World

E = ErrorCode
LOG = TopicPartition(GROUP_TOPIC, 0)


def reloads(world: World) -> list[World]:
    """The world, and those that load its log: whole, compacted, and without tombstones."""
    batches = world.log.batches.get(LOG, [])
    logs = [batches, *(compacted(batches, keep_tombstones=keep) for keep in (True, False))]
    return [world, *(world.with_log({LOG: log}) for log in logs)]


def groups(world: World) -> list[tuple[str, str]]:
    """(group id, type) as ListGroups has them."""
    response = at_once(world.coordinator.list_groups())
    return sorted((group.group_id, group.group_type) for group in response.groups)


def stable_error(world: World, partition: int = 0) -> ErrorCode:
    """What OffsetFetch with require_stable says of a partition."""
    wanted = OffsetFetchRequest.OffsetFetchRequestTopics(
        name="events", partition_indexes=[partition]
    )
    answer = ask(world, [wanted], require_stable=True)
    assert isinstance(answer, OffsetFetchResponse)
    return ErrorCode(answer.groups[0].topics[0].partitions[0].error_code)


@pytest.fixture
def world() -> World:
    return World()


# -- which record decides ------------------------------------------------------------------------


def test_a_commit_behind_the_pending_offset_wins(world: World) -> None:
    assert commit_in_transaction(world, {0: 100, 1: 101}) == {0: E.NONE, 1: E.NONE}
    commit(world, {0: 200})
    assert stable_error(world) is E.UNSTABLE_OFFSET_COMMIT
    end_transaction(world, commit=True)
    for one in reloads(world):
        assert fetch(one, 0, 1) == {0: (200, ""), 1: (101, "")}
        assert stable_error(one) is E.NONE


def test_a_pending_offset_behind_the_commit_wins(world: World) -> None:
    commit_in_transaction(world, {0: 100})
    commit(world, {0: 200})
    commit_in_transaction(world, {0: 300})
    end_transaction(world, commit=True)
    for one in reloads(world):
        assert fetch(one, 0) == {0: (300, "")}


@pytest.mark.parametrize("first", [7, 8])
def test_the_last_record_of_two_transactions_wins(world: World, first: int) -> None:
    commit_in_transaction(world, {0: 100, 1: 1}, producer_id=7)
    commit_in_transaction(world, {0: 200, 1: 2}, producer_id=8)
    commit_in_transaction(world, {1: 3}, producer_id=7)
    end_transaction(world, commit=True, producer_id=first)
    end_transaction(world, commit=True, producer_id=15 - first)
    for one in reloads(world):
        assert fetch(one, 0, 1) == {0: (200, ""), 1: (3, "")}


def test_an_abort_changes_nothing(world: World) -> None:
    commit(world, {0: 50})
    commit_in_transaction(world, {0: 100, 1: 101})
    for one in reloads(world):
        assert fetch(one, 0) == {0: (50, "")}
        assert stable_error(one) is E.UNSTABLE_OFFSET_COMMIT
    end_transaction(world, commit=False)
    for one in reloads(world):
        assert fetch(one, 0, 1) == {0: (50, ""), 1: (-1, "")}
        assert stable_error(one) is E.NONE


def test_a_transaction_that_is_open_at_the_reload_ends_as_it_would_have(world: World) -> None:
    commit_in_transaction(world, {0: 100, 1: 101, 2: 102})
    commit(world, {0: 200})
    delete_offset(world, 1)
    for one in reloads(world):
        assert stable_error(one) is E.UNSTABLE_OFFSET_COMMIT
        end_transaction(one, commit=True)
        assert fetch(one, 0, 1, 2) == {0: (200, ""), 1: (-1, ""), 2: (102, "")}


# -- what removes it -----------------------------------------------------------------------------


def delete_group(world: World) -> None:
    request = DeleteGroupsRequest(groups_names=["g"])
    response = world.coordinator.delete_groups(Context(2), request).value
    assert isinstance(response, DeleteGroupsResponse)
    assert response.results[0].error_code == E.NONE


def delete_offset(world: World, partition: int = 0, group: str = "g") -> None:
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic(
        name="events",
        partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=partition)],
    )
    request = OffsetDeleteRequest(group_id=group, topics=[topic])
    at_once(world.coordinator.offsets.delete(request))


def test_many_partitions_are_deleted_in_steps_and_each_once(world: World) -> None:
    commit(world, {0: 50})
    one = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic(name="events", partitions=[one] * 1000)
    steps = world.coordinator.offsets.delete(OffsetDeleteRequest(group_id="g", topics=[topic]))
    batches = len(world.log.batches[LOG])
    assert sum(1 for _ in steps) >= 1000 // ITEMS_PER_STEP
    (batch,) = world.log.batches[LOG][batches:]
    assert len(batch) < 200  # one tombstone
    assert fetch(world, 0) == {0: (-1, "")}


def test_topics_without_partitions_are_looked_at_in_steps(world: World) -> None:
    commit(world, {0: 50})
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic(name="events", partitions=[])
    request = OffsetDeleteRequest(group_id="g", topics=[topic] * 1000)
    assert sum(1 for _ in world.coordinator.offsets.delete(request)) >= 2 * (1000 // ITEMS_PER_STEP)


def delete_topic(world: World) -> None:
    world.coordinator.on_topics_deleted([world.topics.remove("events")])


@pytest.mark.parametrize("has_committed", [False, True])
@pytest.mark.parametrize("delete", [delete_group, delete_offset, delete_topic])
def test_what_deletes_an_offset_deletes_the_pending_one(
    world: World, delete: Callable[[World], None], has_committed: bool
) -> None:
    if has_committed:
        commit(world, {0: 50})
    commit_in_transaction(world, {0: 100})
    delete(world)
    if "events" not in world.topics.topics:
        world.topics.add("events", 1)
    assert stable_error(world) is E.NONE
    end_transaction(world, commit=True)
    for one in reloads(world):
        assert fetch(one, 0) == {0: (-1, "")}
        if delete is delete_group:
            assert groups(one) == []


def test_a_topic_that_is_deleted_before_the_transaction_was_asked_for_takes_no_offset(
    world: World,
) -> None:
    """Whether the group's partition belongs to the transaction may be known only later."""
    checked, request = resolved_commit(world, {0: 100})
    delete_topic(world)
    world.topics.add("events", 1)
    transaction = Transactional(7, PRODUCER_EPOCH)
    outcome = world.coordinator.offsets.commit_in_transaction(checked, request, transaction)
    assert isinstance(outcome.value, E)
    answer = world.answer(checked.answer(outcome.value))
    assert isinstance(answer, OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    end_transaction(world, commit=True)
    for one in reloads(world):
        assert fetch(one, 0) == {0: (-1, "")}


@pytest.mark.parametrize("is_pending", [False, True])
def test_a_topic_that_is_deleted_while_its_offsets_are_loaded(
    world: World, is_pending: bool
) -> None:
    write = commit_in_transaction if is_pending else commit
    write(world, {0: 100})
    world.resign()
    world.coordinator.on_leadership(0, world.epoch + 1)
    assert at_once(world.coordinator.list_groups()).error_code == (E.COORDINATOR_LOAD_IN_PROGRESS)
    delete_topic(world)
    world.timers.advance(0)
    end_transaction(world, commit=True)
    world.topics.add("events", 1)
    for one in reloads(world):
        assert fetch(one, 0) == {0: (-1, "")}


def test_offsets_committed_after_the_deletion_count(world: World) -> None:
    commit_in_transaction(world, {0: 100})
    delete_group(world)
    commit_in_transaction(world, {1: 101})
    end_transaction(world, commit=True)
    for one in reloads(world):
        assert fetch(one, 0, 1) == {0: (-1, ""), 1: (101, "")}
        assert groups(one) == [("g", "classic")]


def test_the_offset_of_a_recreated_topic_outlives_the_deletion_of_its_predecessor(
    world: World,
) -> None:
    commit(world, {1: 50})
    deleted = world.topics.remove("events")
    world.topics.add("events", 2)
    commit(world, {0: 7})
    world.coordinator.on_topics_deleted([deleted])
    for one in reloads(world):
        assert fetch(one, 0, 1) == {0: (7, ""), 1: (-1, "")}


# -- groups of other types -----------------------------------------------------------------------


def test_a_share_group_takes_no_offsets() -> None:
    shares = Shares()
    shares.join("m")
    assert commit(shares.world, {0: 1}, group="s") == {0: E.GROUP_ID_NOT_FOUND}
    assert commit_in_transaction(shares.world, {0: 1}, group="s") == {0: E.GROUP_ID_NOT_FOUND}
    end_transaction(shares.world, commit=True, group="s")
    with pytest.raises(KafkaError) as refused:
        delete_offset(shares.world, group="s")
    assert refused.value.code is E.GROUP_ID_NOT_FOUND
    for one in reloads(shares.world):
        assert groups(one) == [("s", "share")]
        assert not one.shard().offsets.has_group("s")
    shares.world.timers.advance(1_000)
    assert shares.ask(member_id="m", member_epoch=2).error_code == E.NONE


def write_offset(world: World, group_id: str, transaction: Transactional | None) -> None:
    """Write an offset that this version refuses."""
    host = world.coordinator.runtime.host(0)
    value = OffsetCommitValue(offset=5, metadata="", commit_timestamp=world.timers.now_ms())
    record = offset_commit_record(group_id, "events", 0, value)
    result = CoordinatorResult([record], E.NONE)
    written = world.coordinator.runtime.handle(host, result, transaction=transaction)
    assert written.value is E.NONE


@pytest.mark.parametrize("is_ended", [False, True])
@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_share_group_whose_log_has_offsets_goes_on(
    is_transactional: bool, is_ended: bool
) -> None:
    """An earlier version accepted the offsets; loading the log removes them."""
    shares = Shares()
    shares.join("m")
    transaction = Transactional(7, PRODUCER_EPOCH) if is_transactional else None
    write_offset(shares.world, "s", transaction)
    if is_transactional and is_ended:
        end_transaction(shares.world, commit=True, group="s")
    for one in reloads(shares.world)[1:]:
        assert groups(one) == [("s", "share")]
        assert not one.shard().offsets.has_group("s")
        end_transaction(one, commit=True, group="s")
        shares.take(one)
        one.timers.advance(1_000)
        assert shares.ask(member_id="m", member_epoch=2).error_code == E.NONE
        for again in reloads(one):
            assert groups(again) == [("s", "share")]
            assert not again.shard().offsets.has_group("s")


def test_a_classic_group_under_the_id_of_a_share_group_is_removed() -> None:
    """A client of an earlier version could join the group that its offsets had made."""
    shares = Shares()
    shares.join("m")
    write_offset(shares.world, "s", None)
    host = shares.world.coordinator.runtime.host(0)
    value = GroupMetadataValue(protocol_type="consumer", generation=3, protocol=None, leader=None)
    record = group_metadata_record("s", value)
    result = CoordinatorResult([record], E.NONE)
    assert shares.world.coordinator.runtime.handle(host, result).value is E.NONE
    for one in reloads(shares.world)[1:]:
        assert groups(one) == [("s", "share")]
        assert one.shard().classic.metadata == {}
        assert one.replayed().classic.metadata == {}


def test_a_group_that_ended_before_its_transaction_is_there_for_the_offsets(world: World) -> None:
    """An earlier version deleted a group without tombstones for its pending offsets."""
    commit_in_transaction(world, {0: 100})
    host = world.coordinator.runtime.host(0)
    result = CoordinatorResult([group_tombstone("g")], E.NONE)
    assert world.coordinator.runtime.handle(host, result).value is E.NONE
    for one in reloads(world):
        end_transaction(one, commit=True)
        assert groups(one) == [("g", "classic")]
        assert fetch(one, 0) == {0: (100, "")}
        assert one.shard().delete_group("g")[0] is E.NONE


def test_an_offset_before_the_first_record_of_a_share_group() -> None:
    """Compaction moves the group's records behind the offset."""
    world = World()
    write_offset(world, "s", None)
    batches = world.log.batches[LOG]
    shares = Shares()
    shares.join("m")
    joined = shares.world.log.batches[LOG]
    shares.take(world.with_log({LOG: [*batches, *_moved(joined, 1)]}))
    assert groups(shares.world) == [("s", "share")]
    assert shares.ask(member_id="m", member_epoch=2).error_code == E.NONE


def _moved(batches: list[bytes], offset: int) -> list[bytes]:
    """Kept as they are, but further on in the log."""
    return [
        (int.from_bytes(batch[:8], "big") + offset).to_bytes(8, "big") + batch[8:]
        for batch in batches
    ]


def test_a_streams_group_takes_the_offsets_of_its_members_only(world: World) -> None:
    thread = StreamsThread(world, "m")
    settle_streams(world, [thread])
    assert commit_in_transaction(world, {0: 1}, group="s", topic="other", generation=-1) == {
        0: E.NONE
    }
    refused = commit_in_transaction(
        world, {0: 1}, group="s", topic="other", generation=thread.epoch, member_id="n"
    )
    assert refused == {0: E.UNKNOWN_MEMBER_ID}
    end_transaction(world, commit=True, group="s")
    for one in reloads(world):
        assert groups(one) == [("s", "streams")]
        assert fetch(one, 0, topic="other", group="s") == {0: (1, "")}


def test_a_group_with_pending_offsets_does_not_expire(world: World) -> None:
    commit_in_transaction(world, {0: 100})
    world.timers.advance(8 * 86_400_000)
    assert groups(world) == [("g", "classic")]
    end_transaction(world, commit=False)
    world.timers.advance(3_600_000)
    for one in reloads(world):
        assert groups(one) == []
