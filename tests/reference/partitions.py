"""The conversation about partitions: more of them, elections, and reassignments, on one broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.admin.topics import CreatePartitionsRequest, CreateTopicsRequest
from kbroker.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from kbroker.protocol.messages.metadata import MetadataRequest
from tests.reference.step import State, Step

PREFERRED, UNCLEAN = 0, 1
TOO_MANY_PARTITIONS = 10_004
Replicas = Sequence[int]


def grow(
    *topics: tuple[str, int] | tuple[str, int, Sequence[Replicas]], validate_only: bool = False
) -> Callable[[State], Message]:
    """topics: name, count and perhaps the replicas of each new partition."""
    kind = CreatePartitionsRequest
    asked = []
    for name, count, *rest in topics:
        topic = kind.CreatePartitionsTopic(name=name, count=count, assignments=None)
        for assignments in rest:
            topic.assignments = [
                kind.CreatePartitionsAssignment(broker_ids=list(ids)) for ids in assignments
            ]
        asked.append(topic)
    return lambda _: kind(topics=asked, timeout_ms=9000, validate_only=validate_only)


def elect(
    kind: int, *topics: tuple[str, list[int]], everything: bool = False
) -> Callable[[State], Message]:
    asked = [
        ElectLeadersRequest.TopicPartitions(topic=name, partitions=indexes)
        for name, indexes in topics
    ]
    return lambda _: ElectLeadersRequest(
        election_type=kind, topic_partitions=None if everything else asked, timeout_ms=9000
    )


def reassign(
    *partitions: tuple[str, int, Replicas | None], may_resize: bool = True
) -> Callable[[State], Message]:
    """An entry for each partition, its topic's name again in each."""
    kind = AlterPartitionReassignmentsRequest
    asked = [
        kind.ReassignableTopic(
            name=name,
            partitions=[
                kind.ReassignablePartition(
                    partition_index=index, replicas=None if replicas is None else list(replicas)
                )
            ],
        )
        for name, index, replicas in partitions
    ]
    return lambda _: kind(topics=asked, timeout_ms=9000, allow_replication_factor_change=may_resize)


def list_moves(
    *topics: tuple[str, list[int]], everything: bool = False
) -> Callable[[State], Message]:
    kind = ListPartitionReassignmentsRequest
    asked = [
        kind.ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
        for name, indexes in topics
    ]
    return lambda _: kind(topics=None if everything else asked, timeout_ms=9000)


def growth_steps() -> Iterator[Step]:
    creatable = CreateTopicsRequest.CreatableTopic
    topics = [
        creatable(name=name, num_partitions=count, replication_factor=1)
        for name, count in (("p", 2), ("q", 1))
    ]
    yield Step("topics", 7, lambda _: CreateTopicsRequest(topics=topics, timeout_ms=9000))
    for version in range(4):
        yield Step(f"grow v{version}", version, grow(("p", 3 + version)))
    yield Step("grow dry", 3, grow(("p", 9), validate_only=True))
    for count in (6, 5, 0, -1):
        yield Step(f"grow to {count}", 3, grow(("p", count)))
    yield Step("grow unknown", 3, grow(("nosuch", 2)))
    yield Step("grow a bad name", 3, grow(("bad name", 2)))
    yield Step("grow no name", 3, grow(("", 2)))
    yield Step("grow nothing", 3, grow())
    yield Step("grow twice", 3, grow(("p", 7), ("q", 2), ("p", 8)))
    assigned: dict[str, Sequence[Replicas]] = {
        "too few": [],
        "too many": [[1], [1]],
        "unknown broker": [[99]],
        "negative broker": [[-1]],
        "no broker": [[]],
        "a broker twice": [[1, 1]],
        "unknown and twice": [[99, 1, 1]],
        "this broker": [[1]],
    }
    for name, assignments in assigned.items():
        yield Step(f"grow, assigned {name}", 3, grow(("q", 3, assignments)))
    yield Step("grow, assigned later ones badly", 3, grow(("q", 6, [[1], [1], [7]])))
    yield Step("grow several", 2, grow(("p", 7), ("nosuch", 3), ("q", 1), ("q2", -5)))
    too_many = grow(("q", TOO_MANY_PARTITIONS), validate_only=True)
    yield Step("grow by too many", 3, too_many)
    names = [MetadataRequest.MetadataRequestTopic(name=name) for name in ("p", "q")]
    yield Step("grown", 12, lambda _: MetadataRequest(topics=names))


def election_steps() -> Iterator[Step]:
    yield Step("elect v0", 0, elect(PREFERRED, ("p", [0, 1])))
    for version in (1, 2):
        for kind in (PREFERRED, UNCLEAN, 2, -1):
            asked = elect(kind, ("p", [1, 0, 77, -1]), ("nosuch", [0]), ("q", []))
            yield Step(f"elect {kind} v{version}", version, asked)
    for kind in (PREFERRED, UNCLEAN, 2):
        yield Step(f"elect {kind} nothing", 2, elect(kind))
        yield Step(f"elect {kind} everything", 2, elect(kind, everything=True))
    yield Step("elect again", 2, elect(PREFERRED, ("p", [0, 0]), ("p", [0])))


def reassignment_steps() -> Iterator[Step]:
    yield Step("no moves", 0, list_moves(everything=True))
    for version in (0, 1):
        yield Step(f"move v{version}", version, reassign(("p", 0, [1])))
    wanted: dict[str, Replicas | None] = {
        "unknown broker": [1, 99],
        "no broker": [],
        "a broker twice": [1, 1],
        "negative": [-1],
        "cancelled": None,
    }
    for name, replicas in wanted.items():
        yield Step(f"move, {name}", 1, reassign(("p", 0, replicas)))
        fixed = reassign(("p", 0, replicas), may_resize=False)
        yield Step(f"move, {name}, of fixed size", 1, fixed)
    yield Step("move unknown", 1, reassign(("nosuch", 0, [1]), ("p", 77, [1]), ("p", -1, None)))
    yield Step("move nothing", 1, reassign())
    yield Step("move several", 1, reassign(("p", 0, [1]), ("q", 0, None), ("p", 1, [2])))
    yield Step("move again", 1, reassign(("p", 0, [1]), ("p", 0, None)))
    yield Step("still no moves", 0, list_moves(everything=True))
    yield Step("no moves of some", 0, list_moves(("p", [0, 0, 77]), ("nosuch", [0]), ("q", [])))
    yield Step("no moves of none", 0, list_moves())


def partition_steps() -> Iterator[Step]:
    """The whole conversation."""
    for part in (growth_steps, election_steps, reassignment_steps):
        yield from part()
