"""Commits and fetches of offsets: who may, what is kept, when it ends."""

from __future__ import annotations

import pytest

from kbroker.coordinator.group.offsets.steps import OFFSETS_PER_STEP
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_header import BatchHeader, iter_batches
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.group.commits import Partition, Topic, ask, commit, fetch, fetch_all
from tests.coordinator.group.members import ClientMember, settle
from tests.coordinator.simulation import Context, World

HOUR_MS = 3_600_000


@pytest.fixture
def world() -> World:
    return World()


def stable_member(world: World) -> ClientMember:
    member = ClientMember(world, "a")
    member.join()
    settle(world, [member])
    return member


def test_simple_consumer_commits_and_reads_back(world: World) -> None:
    assert commit(world, {0: 5, 3: 9}, metadata="why") == {0: ErrorCode.NONE, 3: ErrorCode.NONE}
    assert fetch(world, 0, 3, 4) == {0: (5, "why"), 3: (9, "why"), 4: (-1, "")}
    assert fetch(world, 0, group="unknown") == {0: (-1, "")}
    assert fetch_all(world) == {("events", 0): 5, ("events", 3): 9}
    described, _ = world.shard().classic.describe("g")
    assert (described.group_state, described.protocol_type) == ("Empty", "")


def test_of_a_partition_named_again_the_last_offset_is_written(world: World) -> None:
    """One request of 1 MB names a partition 45,000 times; each was a record."""
    kind = OffsetCommitRequest
    partitions = [
        kind.OffsetCommitRequestPartition(
            partition_index=index % 2,
            committed_offset=index,
            committed_metadata="x" * 5000 if index == 999 else "",
        )
        for index in range(1000)
    ]
    request = kind(
        group_id="g", topics=[kind.OffsetCommitRequestTopic(name="events", partitions=partitions)]
    )
    written = sum(header.record_count for header in written_headers(world))
    response = world.answer(world.coordinator.offsets.commit(Context(8), request))
    assert isinstance(response, OffsetCommitResponse)
    codes = [each.error_code for each in response.topics[0].partitions]
    assert codes == [0] * 999 + [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert fetch_all(world) == {("events", 0): 998, ("events", 1): 997}
    assert sum(header.record_count for header in written_headers(world)) - written == 2


def written_headers(world: World) -> list[BatchHeader]:
    return [
        header
        for batches in world.log.batches.values()
        for batch in batches
        for _, header in iter_batches(batch)
    ]


def test_null_metadata_is_empty(world: World) -> None:
    commit(world, {0: 5}, metadata=None)
    assert fetch(world, 0) == {0: (5, "")}


def test_one_batch_per_commit(world: World) -> None:
    commit(world, {index: index for index in range(12)})
    (batches,) = world.log.batches.values()
    assert len(batches) == 1


def test_member_commits_in_its_generation(world: World) -> None:
    member = stable_member(world)
    ours = {"generation": member.generation, "member_id": member.member_id}
    assert commit(world, {0: 1}, generation=member.generation, member_id=member.member_id) == {
        0: ErrorCode.NONE
    }
    table = [
        ({**ours, "generation": 9}, ErrorCode.ILLEGAL_GENERATION),
        ({**ours, "member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": -1, "member_id": ""}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({**ours, "instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    for arguments, error in table:
        assert commit(world, {0: 2}, **arguments) == {0: error}  # type: ignore[arg-type]  # a table
    assert fetch(world, 0) == {0: (1, "")}


def test_commit_while_the_assignment_is_awaited(world: World) -> None:
    member = ClientMember(world, "a")
    member.auto_sync = False
    member.join()
    world.timers.advance(3_000)
    result = commit(world, {0: 1}, generation=member.generation, member_id=member.member_id)
    assert result == {0: ErrorCode.REBALANCE_IN_PROGRESS}


def test_commit_during_a_rebalance_is_accepted_and_keeps_the_session(world: World) -> None:
    member = stable_member(world)
    ClientMember(world, "b").join()
    for _ in range(6):
        world.timers.advance(4_000)
        result = commit(world, {0: 1}, generation=member.generation, member_id=member.member_id)
        assert result == {0: ErrorCode.NONE}


@pytest.mark.parametrize(
    ("version", "error"),
    [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)],
)
def test_member_of_a_group_that_does_not_exist(
    world: World, version: int, error: ErrorCode
) -> None:
    assert commit(world, {0: 1}, generation=4, member_id="m", version=version) == {0: error}


def test_unknown_topics_and_partitions_do_not_hold_up_the_others(world: World) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(world, {0: 1, 99: 1}) == {0: ErrorCode.NONE, 99: unknown}
    assert commit(world, {0: 1}, topic="nowhere") == {0: unknown}
    assert fetch(world, 0, 99) == {0: (1, ""), 99: (-1, "")}


def test_too_large_metadata_refuses_its_partition_only(world: World) -> None:
    limit = world.config.offset_metadata_max_bytes
    assert commit(world, {0: 1}, metadata="x" * limit) == {0: ErrorCode.NONE}
    too_large = commit(world, {1: 1}, metadata="x" * (limit + 1))
    assert too_large == {1: ErrorCode.OFFSET_METADATA_TOO_LARGE}


def test_topics_by_id(world: World) -> None:
    events = world.topics.topics["events"]
    by_id = commit(world, {0: 7}, topic="", topic_id=events.topic_id, version=10)
    assert by_id == {0: ErrorCode.NONE}
    assert fetch(world, 0) == {0: (7, "")}
    unknown = commit(world, {0: 7}, topic="", topic_id=bytes(15) + b"\x09", version=10)
    assert unknown == {0: ErrorCode.UNKNOWN_TOPIC_ID}
    wanted = [
        OffsetFetchRequest.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
        for topic_id in (events.topic_id, bytes(15) + b"\x09")
    ]
    answer = ask(world, wanted, version=10)
    assert isinstance(answer, OffsetFetchResponse)
    found = [topic.partitions[0] for topic in answer.groups[0].topics]
    assert [(p.committed_offset, p.error_code) for p in found] == [
        (7, ErrorCode.NONE),
        (-1, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert found[0].committed_leader_epoch == 3


def test_unknown_topics_are_listed_last_in_a_fetch_and_first_in_a_commit(world: World) -> None:
    """Whatever their order in the request. As in Kafka."""
    known, other = (world.topics.topics[name].topic_id for name in ("events", "other"))
    unknown = [bytes([number]) * 16 for number in (8, 9)]
    ids = [unknown[0], known, unknown[1], other]
    assert commit(world, {1: 7}, version=10, topic_id=known) == {1: ErrorCode.NONE}
    asked = [
        OffsetFetchRequest.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[1])
        for topic_id in ids
    ]
    answer = ask(world, asked, version=10)
    assert isinstance(answer, OffsetFetchResponse)
    found = answer.groups[0].topics
    assert [topic.topic_id for topic in found] == [known, other, *unknown]
    assert [topic.partitions[0].error_code for topic in found] == [0, 0, 100, 100]
    assert [topic.partitions[0].committed_offset for topic in found] == [7, -1, -1, -1]

    topics = [
        Topic(topic_id=topic_id, partitions=[Partition(partition_index=n) for n in (1, 99, 2)])
        for topic_id in (known, unknown[0], other)
    ]
    topics[2].partitions.pop(1)
    request = OffsetCommitRequest(group_id="g", topics=topics)
    response = world.answer(world.coordinator.offsets.commit(Context(10), request))
    assert isinstance(response, OffsetCommitResponse)
    assert [
        (topic.topic_id, [(one.partition_index, one.error_code) for one in topic.partitions])
        for topic in response.topics
    ] == [
        (known, [(99, 3), (1, 0), (2, 0)]),
        (unknown[0], [(1, 100), (99, 100), (2, 100)]),
        (other, [(1, 0), (2, 0)]),
    ]
    request.topics = topics[::-1]
    response = world.answer(world.coordinator.offsets.commit(Context(10), request))
    assert isinstance(response, OffsetCommitResponse)
    assert [topic.topic_id for topic in response.topics] == [unknown[0], known, other]


def test_offset_of_an_earlier_topic_of_that_name_is_not_given_by_id(world: World) -> None:
    commit(world, {0: 7})
    world.topics.remove("events")
    again = world.topics.add("events", 1)
    again.topic_id = bytes(15) + b"\x77"
    world.topics.topics_by_id[again.topic_id] = again
    wanted = OffsetFetchRequest.OffsetFetchRequestTopics(
        topic_id=again.topic_id, partition_indexes=[0]
    )
    answer = ask(world, [wanted], version=10)
    assert isinstance(answer, OffsetFetchResponse)
    assert answer.groups[0].topics[0].partitions[0].committed_offset == -1


def test_deleted_topic_takes_its_offsets_along(world: World) -> None:
    commit(world, {0: 7, 1: 8})
    commit(world, {2: 9}, topic="other")
    deleted = world.topics.remove("events")
    assert fetch_all(world, version=10) == {("other", 2): 9}
    world.coordinator.on_topics_deleted([deleted])
    assert fetch_all(world) == {("other", 2): 9}
    assert world.replayed().offsets.of_group("g").keys() == {"other"}


def test_retention_of_a_simple_consumers_offsets() -> None:
    world = World(config=GroupCoordinatorConfig(offsets_retention_minutes=60))
    commit(world, {0: 1})
    world.timers.advance(HOUR_MS // 2)
    commit(world, {1: 1})
    world.timers.advance(HOUR_MS // 2 + 600_000)
    assert fetch_all(world) == {("events", 1): 1}
    world.timers.advance(HOUR_MS)
    assert fetch_all(world) == {}
    assert "g" not in world.shard().classic.groups
    assert world.replayed().classic.groups == {}


def test_retention_counts_from_when_the_group_became_empty() -> None:
    world = World(config=GroupCoordinatorConfig(offsets_retention_minutes=60))
    member = stable_member(world)
    commit(world, {0: 1}, generation=member.generation, member_id=member.member_id)
    commit(world, {0: 1}, generation=member.generation, member_id=member.member_id, topic="other")
    for _ in range(800):
        world.timers.advance(9_000)
        member.poll()
    assert fetch_all(world) == {("events", 0): 1}  # no member subscribes to the other topic
    member.leave()
    world.timers.advance(HOUR_MS - 600_000)
    assert fetch_all(world) == {("events", 0): 1}
    world.timers.advance(1_200_000)
    assert fetch_all(world) == {}
    assert world.shard().classic.metadata == {}


def test_retention_time_of_old_commits(world: World) -> None:
    commit(world, {0: 1}, version=4, retention_ms=HOUR_MS)
    world.timers.advance(HOUR_MS + 600_000)
    assert fetch_all(world) == {}


def test_read_waits_for_what_was_written_before(world: World) -> None:
    commit(world, {0: 1})
    world.log.delayed = True
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[Topic(name="events", partitions=[Partition(committed_offset=2)])],
    )
    pending = world.answer(world.coordinator.offsets.commit(Context(9), request))
    wanted = OffsetFetchRequest.OffsetFetchRequestTopics(name="events", partition_indexes=[0])
    reading = ask(world, [wanted])
    assert isinstance(pending, Deferred)
    assert isinstance(reading, Deferred)
    assert not pending.done
    assert not reading.done
    world.log.commit()
    world.timers.advance(0)
    assert pending.done
    assert reading.value.groups[0].topics[0].partitions[0].committed_offset == 2


@pytest.mark.parametrize("version", [9, 10])
def test_a_fetch_of_very_many_partitions_of_one_topic_pauses(world: World, version: int) -> None:
    """260,000 indexes in 1 MB took 260 ms in one turn."""
    indexes = [0, *range(1, 10 * OFFSETS_PER_STEP)]
    kind = OffsetFetchRequest
    for topic_id in (world.topics.topics["events"].topic_id, bytes(15) + b"\x63"):
        wanted = kind.OffsetFetchRequestTopics(
            name="events", topic_id=topic_id, partition_indexes=indexes
        )
        request = kind(groups=[kind.OffsetFetchRequestGroup(group_id="g", topics=[wanted])])
        steps = world.coordinator.offsets.fetch(request, version, lambda size: True)
        pauses = 0
        while True:
            try:
                next(steps)
            except StopIteration as end:
                response = end.value
                break
            pauses += 1
        assert pauses >= 9
        ((topic,),) = (group.topics for group in response.groups)
        assert [each.partition_index for each in topic.partitions] == indexes
