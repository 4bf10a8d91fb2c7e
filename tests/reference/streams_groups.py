"""A conversation of its own about streams groups (KIP-1071), with a broker that assigns at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from kbroker.protocol.messages.coordinators.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from kbroker.protocol.messages.coordinators.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from kbroker.protocol.messages.coordinators.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
)
from tests.reference.step import State, Step

OVERRIDES: Final = {
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "offsets.topic.num.partitions": "1",
}
OFFSETS_SEGMENT: Final = "__consumer_offsets-0/00000000000000000000.log"
FIRST = "AAAAAAAAAAAAAAAAAAAAAA"
SECOND = "BBBBBBBBBBBBBBBBBBBBBB"
THIRD = "CCCCCCCCCCCCCCCCCCCCCC"
_Request = StreamsGroupHeartbeatRequest
_Sub = _Request.Subtopology
_Topic = _Request.TopicInfo


def topology(
    group: str = "s1",
    source: str = "st-in",
    *,
    epoch: int = 0,
    repartition: int = 0,
    changelog: int = 0,
    **extra: Any,
) -> _Request.Topology:
    """Subtopology 0 reads the source and writes a repartition topic, 1 reads that and keeps state.
    extra: fields of subtopology 0.
    """
    configs = [_Request.KeyValue(key="cleanup.policy", value="compact")]
    fields: dict[str, Any] = {
        "source_topics": [source],
        "repartition_sink_topics": [f"{group}-rep"],
        **extra,
    }
    return _Request.Topology(
        epoch=epoch,
        subtopologies=[
            _Sub(subtopology_id="0", **fields),
            _Sub(
                subtopology_id="1",
                repartition_source_topics=[_Topic(name=f"{group}-rep", partitions=repartition)],
                state_changelog_topics=[
                    _Topic(
                        name=f"{group}-log",
                        partitions=changelog,
                        replication_factor=-1,
                        topic_configs=configs,
                    )
                ],
            ),
        ],
    )


def tasks(**partitions: list[int]) -> list[_Request.TaskIds]:
    """_0=[0, 1] for the tasks of subtopology 0."""
    return [
        _Request.TaskIds(subtopology_id=name.removeprefix("_"), partitions=numbers)
        for name, numbers in partitions.items()
    ]


def heartbeat(member_id: str, epoch: int, **extra: Any) -> Callable[[State], Message]:
    """active: the active tasks it says it has, with no others."""

    def build(state: State) -> Message:
        values = {"group_id": "s1", **extra}
        if "active" in values:
            values["active_tasks"] = values.pop("active")
            values.setdefault("standby_tasks", [])
            values.setdefault("warmup_tasks", [])
        return _Request(member_id=member_id, member_epoch=epoch, **values)

    return build


def joining(member_id: str, epoch: int = 0, **extra: Any) -> Callable[[State], Message]:
    group = extra.get("group_id", "s1")
    values = {
        "rebalance_timeout_ms": 30_000,
        "active": [],
        "topology": topology(group),
        "process_id": f"process of {member_id}",
        "client_tags": [_Request.KeyValue(key="zone", value="a")],
        **extra,
    }
    return heartbeat(member_id, epoch, **values)


def before_steps() -> Iterator[Step]:
    """Topics, and a classic group with a member."""
    yield Step(
        "create topics",
        7,
        lambda _: CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=name, num_partitions=count, replication_factor=1
                )
                for name, count in (("st-in", 2), ("st-three", 3), ("st-fixed-rep", 3))
            ],
            timeout_ms=5_000,
        ),
    )
    yield Step(
        "classic joins",
        3,
        lambda _: JoinGroupRequest(
            group_id="g1",
            session_timeout_ms=45_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"x")],
        ),
    )


def refused_steps() -> Iterator[Step]:
    fixed = _Sub(subtopology_id="0", source_topics=["st-in"])
    for name, request in {
        "no group": joining(FIRST, group_id=""),
        "no member": joining(""),
        "static": joining(FIRST, instance_id="i1"),
        "empty rack": joining(FIRST, rack_id=""),
        "no timeout": joining(FIRST, rebalance_timeout_ms=-1),
        "no tasks told": heartbeat(
            FIRST, 0, rebalance_timeout_ms=1, topology=topology(), process_id="p", group_id="s9"
        ),
        "already at work": joining(FIRST, active=tasks(_0=[0])),
        "already standing by": joining(FIRST, standby_tasks=tasks(_0=[0])),
        "already warm": joining(FIRST, warmup_tasks=tasks(_0=[0])),
        "no topology": joining(FIRST, topology=None),
        "topology later": joining(FIRST, 2),
        "changelog with partitions": joining(FIRST, topology=topology(changelog=2)),
        "source by regex": joining(FIRST, topology=topology(source_topic_regex=["st.*"])),
        "internal topic": joining(FIRST, topology=topology(source="__consumer_offsets")),
        "bad topic": joining(FIRST, topology=topology(source="a b")),
        "nobody writes": joining(FIRST, topology=topology(repartition_sink_topics=[])),
        "reads nothing": joining(FIRST, topology=topology(source_topics=[])),
        "task offsets": heartbeat(FIRST, 1, task_offsets=[]),
        "one kind of tasks": heartbeat(FIRST, 1, active_tasks=[]),
        "epoch -3": heartbeat(FIRST, -3),
        "epoch -2": heartbeat(FIRST, -2),
        "unknown group": heartbeat(FIRST, 5, group_id="nogroup"),
        "leave unknown group": heartbeat(FIRST, -1, group_id="nogroup"),
        "classic group": joining(FIRST, group_id="g1"),
        "classic group later": heartbeat(FIRST, 1, group_id="g1"),
    }.items():
        yield Step(f"streams refused: {name}", 0, request)
    yield Step(
        "streams sources are missing",
        0,
        joining(FIRST, group_id="s0", topology=topology("s0", "nosuch")),
    )
    yield Step("streams sources are still missing", 0, heartbeat(FIRST, 2, group_id="s0"))
    yield Step(
        "streams not ready described", 0, lambda _: StreamsGroupDescribeRequest(group_ids=["s0"])
    )
    for state in ("NotReady", "not_ready", "Stable"):
        filters = {"types_filter": ["streams"], "states_filter": [state]}
        yield Step(
            f"list streams {state}", 5, lambda _, fields=filters: ListGroupsRequest(**fields)
        )
    yield Step(
        "streams partitions do not fit",
        0,
        joining(
            FIRST,
            group_id="s3",
            topology=_Request.Topology(
                subtopologies=[
                    _Sub(
                        subtopology_id="0",
                        source_topics=["st-in", "st-three"],
                        copartition_groups=[_Request.CopartitionGroup(source_topics=[0, 1])],
                    )
                ]
            ),
        ),
    )
    yield Step(
        "streams internal topic does not fit",
        0,
        joining(
            FIRST,
            group_id="s4",
            topology=_Request.Topology(
                subtopologies=[
                    fixed,
                    _Sub(
                        subtopology_id="1",
                        source_topics=["st-in"],
                        repartition_source_topics=[_Topic(name="st-fixed-rep", partitions=2)],
                        copartition_groups=[
                            _Request.CopartitionGroup(
                                source_topics=[0], repartition_source_topics=[0]
                            )
                        ],
                    ),
                ]
            ),
        ),
    )


def life_steps() -> Iterator[Step]:
    yield Step("streams joins", 0, joining(FIRST), awaits=("s1-rep", "s1-log"))
    yield Step("streams is ready", 0, heartbeat(FIRST, 2, active=[]))
    yield Step("streams at work", 0, heartbeat(FIRST, 3, active=tasks(_0=[0, 1], _1=[0, 1])))
    yield Step("streams bare heartbeat", 0, heartbeat(FIRST, 3))
    yield Step("streams joins again", 0, joining(FIRST))
    yield Step("streams epoch too high", 0, heartbeat(FIRST, 9))
    yield Step("streams epoch too low", 0, heartbeat(FIRST, 1))
    yield Step("streams former epoch", 0, heartbeat(FIRST, 2))
    yield Step("streams former epoch, tasks told", 0, heartbeat(FIRST, 2, active=tasks(_0=[1])))
    yield Step("streams former epoch, others told", 0, heartbeat(FIRST, 2, active=tasks(_0=[7])))
    yield Step("streams stranger", 0, heartbeat(SECOND, 1))
    yield Step("streams stranger leaves", 0, heartbeat(SECOND, -1))
    yield Step("streams no such subtopology", 0, heartbeat(FIRST, 3, active=tasks(_7=[0])))
    yield Step("streams no such task", 0, heartbeat(FIRST, 3, active=tasks(_0=[2])))
    yield Step("streams other topology", 0, joining(FIRST, topology=topology(source="st-three")))
    yield Step("streams newer topology", 0, joining(FIRST, topology=topology(epoch=1)))
    yield Step(
        "streams describe",
        0,
        lambda _: StreamsGroupDescribeRequest(
            group_ids=["s1", "nogroup", "g1", ""], include_authorized_operations=True
        ),
    )
    yield Step("list streams", 5, lambda _: ListGroupsRequest(types_filter=["Streams"]))
    yield Step(
        "streams described as consumer",
        1,
        lambda _: ConsumerGroupDescribeRequest(group_ids=["s1"]),
    )
    yield Step("streams described as classic", 6, lambda _: DescribeGroupsRequest(groups=["s1"]))


def other_protocol_steps() -> Iterator[Step]:
    """Requests of the other protocols to a streams group."""
    yield Step(
        "consumer joins streams",
        1,
        lambda _: ConsumerGroupHeartbeatRequest(
            group_id="s1",
            member_id=SECOND,
            rebalance_timeout_ms=5_000,
            subscribed_topic_names=["st-in"],
            topic_partitions=[],
        ),
    )
    yield Step(
        "classic joins streams",
        9,
        lambda _: JoinGroupRequest(
            group_id="s1",
            session_timeout_ms=45_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"x")],
        ),
    )
    yield Step(
        "classic heartbeat to streams",
        4,
        lambda _: HeartbeatRequest(group_id="s1", generation_id=3, member_id=FIRST),
    )
    yield Step(
        "classic sync to streams",
        5,
        lambda _: SyncGroupRequest(group_id="s1", generation_id=3, member_id=FIRST),
    )
    yield Step(
        "classic leave to streams",
        5,
        lambda _: LeaveGroupRequest(
            group_id="s1", members=[LeaveGroupRequest.MemberIdentity(member_id=FIRST)]
        ),
    )


def offset_steps() -> Iterator[Step]:
    def commit(member: str, epoch: int, version: int = 9, topic: str = "st-in") -> Any:
        return lambda _: OffsetCommitRequest(
            group_id="s1",
            member_id=member,
            generation_id_or_member_epoch=epoch,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=number, committed_offset=5 + number
                        )
                        for number in (0, 1)
                    ],
                )
            ],
        )

    def fetch(member: str | None, epoch: int) -> Any:
        return lambda _: OffsetFetchRequest(
            groups=[
                OffsetFetchRequest.OffsetFetchRequestGroup(
                    group_id="s1",
                    member_id=member,
                    member_epoch=epoch,
                    topics=[
                        OffsetFetchRequest.OffsetFetchRequestTopics(
                            name="st-in", partition_indexes=[0, 1]
                        )
                    ],
                )
            ]
        )

    yield Step("streams commit", 9, commit(FIRST, 3))
    yield Step("streams commit old version", 8, commit(FIRST, 3))
    yield Step("streams commit stale", 9, commit(FIRST, 2))
    yield Step("streams commit ahead", 9, commit(FIRST, 4))
    yield Step("streams commit stranger", 9, commit(SECOND, 3))
    yield Step("streams commit without member", 9, commit("", -1))
    yield Step("streams fetch", 9, fetch(FIRST, 3))
    yield Step("streams fetch old epoch", 9, fetch(FIRST, 2))
    yield Step("streams fetch stranger", 9, fetch(SECOND, 3))
    yield Step("streams fetch nobody", 9, fetch(None, -1))


def pair_steps() -> Iterator[Step]:
    """A second member, on another machine."""
    endpoint = {
        "user_endpoint": _Request.Endpoint(host="two", port=2),
        "endpoint_information_epoch": -1,
    }
    all_tasks = tasks(_0=[0, 1], _1=[0, 1])
    yield Step("second joins", 0, joining(SECOND, **endpoint))
    yield Step("first is told to give back", 0, heartbeat(FIRST, 3, active=all_tasks))
    yield Step("second waits", 0, heartbeat(SECOND, 4, active=[]))
    yield Step("pair described", 0, lambda _: StreamsGroupDescribeRequest(group_ids=["s1"]))
    yield Step("first has not yet", 0, heartbeat(FIRST, 3, active=all_tasks))
    yield Step("first gives back", 0, heartbeat(FIRST, 3, active=tasks(_0=[0], _1=[0])))
    yield Step("second gets", 0, heartbeat(SECOND, 4, active=[], endpoint_information_epoch=1))
    yield Step("who is where", 0, heartbeat(FIRST, 4, endpoint_information_epoch=0))
    yield Step("who is where is known", 0, heartbeat(FIRST, 4, endpoint_information_epoch=1))
    yield Step("stale commit of what was kept", 9, _commit_one(FIRST, 3, 0))
    yield Step("stale commit of what was given back", 9, _commit_one(FIRST, 3, 1))
    yield Step("stale commit of what is new", 9, _commit_one(SECOND, 3, 1))
    yield Step("first asks for the end", 0, heartbeat(FIRST, 4, shutdown_application=True))
    yield Step("second hears of the end", 0, heartbeat(SECOND, 4))
    yield Step("first leaves", 0, heartbeat(FIRST, -1))
    yield Step("second gets all", 0, heartbeat(SECOND, 4, active=tasks(_0=[1], _1=[1])))
    yield Step("pair no more", 0, lambda _: StreamsGroupDescribeRequest(group_ids=["s1"]))


def _commit_one(member: str, epoch: int, partition: int) -> Any:
    return lambda _: OffsetCommitRequest(
        group_id="s1",
        member_id=member,
        generation_id_or_member_epoch=epoch,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name="st-in",
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=9
                    )
                ],
            )
        ],
    )


def stale_topology_steps() -> Iterator[Step]:
    newer = {"group_id": "s2", "topology": topology("s2", epoch=1)}
    older = {"group_id": "s2", "topology": topology("s2", "st-three")}
    yield Step("topology of epoch 1", 0, joining(FIRST, **newer), awaits=("s2-rep", "s2-log"))
    yield Step("topology of epoch 0", 0, joining(SECOND, **older))
    yield Step("topology of epoch 0 heartbeat", 0, heartbeat(SECOND, 3, group_id="s2"))
    yield Step("same process joins", 0, joining(THIRD, **{**newer, "process_id": "p"}))
    yield Step("stale described", 0, lambda _: StreamsGroupDescribeRequest(group_ids=["s2"]))


def end_steps() -> Iterator[Step]:
    def offset_delete(_: State) -> Message:
        return OffsetDeleteRequest(
            group_id="s1",
            topics=[
                OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name=name,
                    partitions=[
                        OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
                    ],
                )
                for name in ("st-in", "st-three", "s1-rep", "s1-log")
            ],
        )

    yield Step("delete offsets of streams", 0, offset_delete)
    yield Step("delete streams at work", 2, lambda _: DeleteGroupsRequest(groups_names=["s1"]))
    yield Step("last leaves", 0, heartbeat(SECOND, -1))
    yield Step("streams left", 0, heartbeat(SECOND, 6))
    yield Step("streams describe empty", 0, lambda _: StreamsGroupDescribeRequest(group_ids=["s1"]))
    yield Step("commit to empty streams", 9, _commit_one("", -1, 0))
    yield Step("delete offsets of empty streams", 0, offset_delete)
    yield Step("comes back", 0, joining(THIRD))
    yield Step("goes again", 0, heartbeat(THIRD, -1))
    yield Step("delete streams", 2, lambda _: DeleteGroupsRequest(groups_names=["s1", "s2"]))
    yield Step("list after deletion", 5, lambda _: ListGroupsRequest(types_filter=["streams"]))


def streams_steps() -> Iterator[Step]:
    """The whole conversation."""
    for part in (
        before_steps,
        refused_steps,
        life_steps,
        other_protocol_steps,
        offset_steps,
        pair_steps,
        stale_topology_steps,
        end_steps,
    ):
        yield from part()
