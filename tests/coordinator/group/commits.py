"""Commits and fetches of offsets, as clients ask for them."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.model import Uuid
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.replication.time_slices import FairSlices
from tests.coordinator.simulation import Context, World

Partition = OffsetCommitRequest.OffsetCommitRequestPartition
Topic = OffsetCommitRequest.OffsetCommitRequestTopic


def commit(
    world: World,
    offsets: dict[int, int],
    *,
    group: str = "g",
    topic: str = "events",
    topic_id: Uuid = bytes(16),
    version: int = 9,
    generation: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
    metadata: str | None = "",
    retention_ms: int = -1,
) -> dict[int, ErrorCode]:
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        retention_time_ms=retention_ms,
        topics=[
            Topic(
                name=topic,
                topic_id=topic_id,
                partitions=[
                    Partition(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=3,
                        committed_metadata=metadata,
                    )
                    for index, offset in offsets.items()
                ],
            )
        ],
    )
    answer = world.answer(world.coordinator.offsets.commit(Context(version), request))
    response = answer.value if isinstance(answer, Deferred) else answer
    assert isinstance(response, OffsetCommitResponse)
    return {p.partition_index: ErrorCode(p.error_code) for p in response.topics[0].partitions}


def ask(
    world: World,
    topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None,
    *,
    group: str = "g",
    version: int = 9,
    require_stable: bool = False,
) -> OffsetFetchResponse | Deferred[OffsetFetchResponse]:
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=topics)],
        require_stable=require_stable,
    )
    answer: Deferred[OffsetFetchResponse] = Deferred()

    def steps() -> Iterator[Deferred[ErrorCode] | None]:
        found = yield from world.coordinator.offsets.fetch(request, version, lambda count: True)
        answer.resolve(found)

    FairSlices(world.timers).begin(steps(), lambda failure: None)
    return answer.value if answer.done else answer


def fetch(
    world: World, *indexes: int, topic: str = "events", group: str = "g"
) -> dict[int, tuple[int, str]]:
    wanted = OffsetFetchRequest.OffsetFetchRequestTopics(
        name=topic, partition_indexes=list(indexes)
    )
    answer = ask(world, [wanted], group=group)
    assert isinstance(answer, OffsetFetchResponse)
    assert answer.groups[0].error_code == ErrorCode.NONE
    return {
        partition.partition_index: (partition.committed_offset, partition.metadata or "")
        for partition in answer.groups[0].topics[0].partitions
    }


def fetch_all(world: World, *, version: int = 9) -> dict[tuple[str, int], int]:
    answer = ask(world, None, version=version)
    assert isinstance(answer, OffsetFetchResponse)
    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in answer.groups[0].topics
        for partition in topic.partitions
    }


def commit_later(world: World, offset: int, group: str = "g") -> Deferred[OffsetCommitResponse]:
    """A commit that the log delays."""
    world.log.delayed = True
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(committed_offset=offset)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="events", partitions=[partition])
    request = OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[topic])
    pending = world.answer(world.coordinator.offsets.commit(Context(9), request))
    assert isinstance(pending, Deferred)
    return pending
