"""Requests that name very much: every handler gives the loop its turn, and repeats nothing."""

from __future__ import annotations

from collections.abc import Generator, Iterator, KeysView
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.model import TopicPartition
from kbroker.ports import Deferred, at_once
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.pieces import PIECE_ITEMS
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.configs import ListConfigResourcesRequest
from kbroker.protocol.messages.admin.log_dirs import (
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
)
from kbroker.protocol.messages.admin.topics import DeleteRecordsRequest
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.coordinators.groups import ListGroupsRequest, ListGroupsResponse
from kbroker.protocol.messages.coordinators.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from kbroker.protocol.messages.coordinators.share_state import WriteShareGroupStateRequest
from kbroker.protocol.messages.list_offsets import OffsetForLeaderEpochRequest
from kbroker.protocol.share_partition_state import BATCHES_PER_STEP, StateWrite
from kbroker.server.handlers.groups.share_groups import NUMBERS_PER_STEP, _each_group_once
from kbroker.server.handlers.topics.log_dirs import _altered
from kbroker.server.requests import LARGE_REQUEST_BYTES, RequestContext
from kbroker.server.slicing.sliced import CHEAP_ITEMS
from tests.replication.world import TOPIC, World, batch
from tests.server.slices import HANDLER_OF, MANY, Sliced, begin, in_slices

STATE_BATCH_BYTES = 8 + 8 + 1 + 2 + 1  # of WriteShareGroupState, with its tagged fields


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, partitions=3)
    made.append(batches=batch(5))
    yield made
    made.close()


def test_leader_epochs(world: World) -> None:
    kind = OffsetForLeaderEpochRequest
    asked = [kind.OffsetForLeaderPartition(partition=index % 3) for index in range(MANY)]
    empty = [kind.OffsetForLeaderTopic(topic="nothing")] * MANY
    request = kind(topics=[kind.OffsetForLeaderTopic(topic=TOPIC, partitions=asked), *empty])
    sliced = Sliced(replicas=world.replicas)
    response = in_slices(sliced, ApiKey.OFFSET_FOR_LEADER_EPOCH, request)
    assert len(response.topics) == MANY + 1
    assert len(response.topics[0].partitions) == MANY


def test_deleted_records(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a partition that is named again the last offset counts, in whichever topic entry, and one
    partition's start is no reason to look at all others.
    """
    kind = DeleteRecordsRequest
    topics = [
        kind.DeleteRecordsTopic(
            name=TOPIC,
            partitions=[
                kind.DeleteRecordsPartition(partition_index=index, offset=offset)
                for index in (0, *range(100, 600))
            ],
        )
        for offset in (4, 1, 2)
    ]
    deleted: list[tuple[TopicPartition, int]] = []
    delete = world.replicas.delete_records

    def counted(key: TopicPartition, offset: int) -> int:
        deleted.append((key, offset))
        return delete(key, offset)

    def all_partitions() -> Any:
        raise AssertionError("every partition is looked at")

    monkeypatch.setattr(world.replicas, "delete_records", counted)
    monkeypatch.setattr(world.replicas, "partitions", all_partitions)
    sliced = Sliced(replicas=world.replicas)
    response = in_slices(sliced, ApiKey.DELETE_RECORDS, kind(topics=topics))
    (topic,) = response.topics
    assert len(topic.partitions) == len(deleted) == 501
    assert deleted[0] == (TopicPartition(TOPIC, 0), 2)
    assert topic.partitions[0].low_watermark == 2
    partition = world.replicas.partition(TopicPartition(TOPIC, 0))
    assert partition is not None
    assert partition.log.log_start_offset == 2
    monkeypatch.undo()


def test_moved_replicas(world: World) -> None:
    kind = AlterReplicaLogDirsRequest
    topic = kind.AlterReplicaLogDirTopic(name=TOPIC, partitions=list(range(MANY)))
    request = kind(dirs=[kind.AlterReplicaLogDir(path="/nowhere", topics=[topic])])
    sliced = Sliced(replicas=world.replicas)
    response = in_slices(sliced, ApiKey.ALTER_REPLICA_LOG_DIRS, request)
    (result,) = response.results
    assert {each.error_code for each in result.partitions} == {ErrorCode.LOG_DIR_NOT_FOUND}
    assert len(result.partitions) == MANY


def test_described_log_dirs(world: World) -> None:
    kind = DescribeLogDirsRequest
    topics = [kind.DescribableLogDirTopic(topic=TOPIC, partitions=[*range(20_000), 0, 1, 0])]
    sliced = Sliced(replicas=world.replicas)
    response = in_slices(sliced, ApiKey.DESCRIBE_LOG_DIRS, kind(topics=topics))
    (result,) = response.results
    assert sorted(each.partition_index for each in result.topics[0].partitions) == [0, 1, 2]


def test_offsets_of_share_groups() -> None:
    """A group of one letter may have any number of states."""
    kind = DescribeShareGroupOffsetsRequest
    group, topic = (
        kind.DescribeShareGroupOffsetsRequestGroup,
        kind.DescribeShareGroupOffsetsRequestTopic,
    )
    described: list[Any] = []

    def describe(context: object, request: Any) -> Any:
        described.extend(request.groups)
        answer = DescribeShareGroupOffsetsResponse
        found = answer.DescribeShareGroupOffsetsResponseGroup
        return Deferred.of(
            answer(groups=[found(group_id=each.group_id) for each in request.groups])
        )

    def describe_all(group_id: str) -> Iterator[tuple[Any, int]]:
        described.append(group_id)
        found = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
        answer = DescribeShareGroupOffsetsResponse(groups=[found(group_id=group_id)])
        yield Deferred.of(answer), 0

    parts = SimpleNamespace(describe_offsets=describe, describe_all_offsets=describe_all)
    sliced = Sliced(share_groups=parts)
    groups = [
        group(group_id="some", topics=[topic(topic_name="a", partitions=[0, 1, 0])]),
        group(group_id="some", topics=[topic(topic_name="a", partitions=[2])]),
        group(group_id="all", topics=[topic(topic_name="a", partitions=[0])]),
        group(group_id="all", topics=None),
    ]
    more = [group(group_id=f"g{index}", topics=None) for index in range(MANY)]
    response = in_slices(
        sliced, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, kind(groups=groups * 100 + more)
    )
    names = ["some", "all", *(f"g{index}" for index in range(MANY))]
    assert [each.group_id for each in response.groups] == names
    some, everything = described[:2]
    assert [(each.topic_name, each.partitions) for each in some.topics] == [("a", [0, 1, 2])]
    assert everything == "all"


def test_offsets_of_one_share_group_are_described_in_pieces() -> None:
    kind, answer = DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse
    asked: list[int] = []

    def describe(context: object, request: Any) -> Any:
        (group,) = request.groups
        asked.append(sum(len(topic.partitions) for topic in group.topics))
        topics = [
            answer.DescribeShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                partitions=[
                    answer.DescribeShareGroupOffsetsResponsePartition(partition_index=index)
                    for index in topic.partitions
                ],
            )
            for topic in group.topics
        ]
        found = answer.DescribeShareGroupOffsetsResponseGroup
        return Deferred.of(answer(groups=[found(group_id=group.group_id, topics=topics)]))

    sliced = Sliced(share_groups=SimpleNamespace(describe_offsets=describe))
    topic = kind.DescribeShareGroupOffsetsRequestTopic
    topics = [
        topic(topic_name="a", partitions=list(range(MANY))),
        topic(topic_name="b", partitions=[0]),
    ]
    group = kind.DescribeShareGroupOffsetsRequestGroup(group_id="some", topics=topics)
    response = in_slices(sliced, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, kind(groups=[group]))
    assert (max(asked), sum(asked)) == (PIECE_ITEMS, MANY + 1)
    (described,) = response.groups
    assert [
        (each.topic_name, [partition.partition_index for partition in each.partitions])
        for each in described.topics
    ] == [("a", list(range(MANY))), ("b", [0])]


def test_a_connection_keeps_no_long_name_of_its_client() -> None:
    with pytest.raises(KafkaError) as error:
        begin(
            Sliced(),
            ApiKey.API_VERSIONS,
            ApiVersionsRequest(client_software_name="x" * 1025, client_software_version="1"),
        )
    assert error.value.code == ErrorCode.INVALID_REQUEST


def test_filters_of_listed_groups_are_read_in_steps() -> None:
    """Each name is passed on once, in lower case, and not looked through again."""
    asked: list[tuple[KeysView[str], KeysView[str]]] = []

    def list_groups(
        states: KeysView[str], types: KeysView[str]
    ) -> Generator[None, None, ListGroupsResponse]:
        yield
        asked.append((states, types))
        return ListGroupsResponse()

    sliced = Sliced(groups=SimpleNamespace(list_groups=list_groups))
    names = ["Stable", "Empty"] * (5 * MANY)
    request = ListGroupsRequest(states_filter=names, types_filter=names[::-1])
    assert in_slices(sliced, ApiKey.LIST_GROUPS, request) == ListGroupsResponse()
    ((states, types),) = asked
    assert (list(states), list(types)) == (["stable", "empty"], ["empty", "stable"])
    assert isinstance(states, KeysView)  # of what the steps made: no copy


def test_types_of_listed_resources_are_read_in_steps() -> None:
    image = SimpleNamespace(brokers={1: object()}, topics={"a": object()}, configs={})
    sliced = Sliced(image=image)
    request = ListConfigResourcesRequest(resource_types=[2, 4] * (5 * MANY))
    context = RequestContext(ApiKey.LIST_CONFIG_RESOURCES, 1)
    outcome = HANDLER_OF[ApiKey.LIST_CONFIG_RESOURCES].handle(sliced.services, context, request)
    assert isinstance(outcome, Deferred) and not outcome.done
    listed = sliced.answer(outcome).config_resources
    assert [(each.resource_type, each.resource_name) for each in listed] == [(4, "1"), (2, "a")]


def test_batches_of_a_share_partitions_state_are_written_in_parts() -> None:
    """A request that is not large is written before the next one of its connection."""
    kind, written = WriteShareGroupStateRequest, []

    def write(key: object, write: StateWrite) -> Deferred[ErrorCode]:
        written.append(write)
        return Deferred.of(ErrorCode.NONE)

    def request(count: int) -> WriteShareGroupStateRequest:
        batches = [kind.StateBatch(first_offset=number) for number in range(count)]
        partition = kind.PartitionData(state_batches=batches)
        return kind(group_id="g", topics=[kind.WriteStateData(partitions=[partition])])

    small = LARGE_REQUEST_BYTES // STATE_BATCH_BYTES
    sliced = Sliced(share_coordinator=SimpleNamespace(write=write), seconds=0.0)
    begin(sliced, ApiKey.WRITE_SHARE_GROUP_STATE, request(small))
    assert len(written) == 1
    large = 5 * BATCHES_PER_STEP
    in_slices(sliced, ApiKey.WRITE_SHARE_GROUP_STATE, request(large))
    parts = [[batch.first_offset for batch in write.batches] for write in written[1:]]
    assert [len(part) for part in parts] == [BATCHES_PER_STEP] * 5
    assert [offset for part in parts for offset in part] == list(range(large))


def test_the_results_of_moved_replicas_are_built_in_steps() -> None:
    by_topic = {f"t-{number}": [object()] for number in range(5 * CHEAP_ITEMS)}
    names = list(by_topic)
    steps = _altered(by_topic)  # type: ignore[arg-type]  # of a response, as they are
    pauses = 0
    try:
        while True:
            next(steps)
            pauses += 1
            assert len(by_topic) >= len(names) - pauses * CHEAP_ITEMS
    except StopIteration as end:
        response = end.value
    assert pauses >= 5
    assert [result.topic_name for result in response.results] == names


def test_numbers_of_partitions_are_told_apart_in_steps() -> None:
    kind = DescribeShareGroupOffsetsRequest
    topic = kind.DescribeShareGroupOffsetsRequestTopic(
        topic_name="a", partitions=[*range(4 * NUMBERS_PER_STEP)] * 2
    )
    group = kind.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=[topic])
    steps = _each_group_once([group])
    assert sum(1 for _ in steps) >= 7
    (found,) = at_once(_each_group_once([group]))
    assert [each.partitions for each in found.topics or ()] == [[*range(4 * NUMBERS_PER_STEP)]]
