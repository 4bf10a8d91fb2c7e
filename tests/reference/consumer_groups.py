"""The part of the conversation about consumer groups (KIP-848) and about what ends groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kbroker.model import ZERO_UUID
from kbroker.protocol.codecs.schema import Message
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
from tests.reference.step import State, Step

FIRST = "AAAAAAAAAAAAAAAAAAAAAA"
SECOND = "BBBBBBBBBBBBBBBBBBBBBB"
STATIC = "CCCCCCCCCCCCCCCCCCCCCC"
RETURNED = "DDDDDDDDDDDDDDDDDDDDDD"
_Owned = ConsumerGroupHeartbeatRequest.TopicPartitions


def heartbeat(member_id: str, epoch: int, **extra: Any) -> Callable[[State], Message]:
    """owned: partitions of t1."""

    def build(state: State) -> Message:
        values = {"group_id": "c1", **extra}
        owned = values.pop("owned", None)
        if owned is not None:
            values["topic_partitions"] = [
                _Owned(topic_id=state.topic_ids["t1"], partitions=owned) for _ in range(1) if owned
            ]
        return ConsumerGroupHeartbeatRequest(member_id=member_id, member_epoch=epoch, **values)

    return build


def joining(member_id: str, epoch: int = 0, **extra: Any) -> Callable[[State], Message]:
    values = {
        "subscribed_topic_names": ["t1"],
        "rebalance_timeout_ms": 30_000,
        "owned": [],
        **extra,
    }
    return heartbeat(member_id, epoch, **values)


def refused_steps() -> Iterator[Step]:
    for name, request in {
        "no group": joining(FIRST, group_id=""),
        "no member": joining(""),
        "no timeout": joining(FIRST, rebalance_timeout_ms=-1),
        "no topics": joining(FIRST, subscribed_topic_names=None),
        "nothing owned": joining(FIRST, owned=None),
        "already owning": joining(FIRST, owned=[0]),
        "empty instance": joining(FIRST, instance_id=""),
        "empty rack": joining(FIRST, rack_id=""),
        "epoch -3": joining(FIRST, -3),
        "static leave without instance": heartbeat(FIRST, -2),
        "leave without member": heartbeat("", -1),
        "epoch without member": heartbeat("", 1),
        "unknown assignor": joining(FIRST, server_assignor="best"),
        "bad regex": joining(
            FIRST, group_id="cx", subscribed_topic_names=None, subscribed_topic_regex="(["
        ),
        "unknown group": heartbeat(FIRST, 5, group_id="nogroup"),
        "leave unknown group": heartbeat(FIRST, -1, group_id="nogroup"),
        "classic group": joining(FIRST, group_id="g1"),
    }.items():
        yield Step(f"consumer refused: {name}", 1, request)
    yield Step("consumer v0 gets an id", 0, joining("", group_id="c0"))


def life_steps() -> Iterator[Step]:
    yield Step("consumer joins", 1, joining(FIRST))
    yield Step("consumer joins again", 1, joining(FIRST))
    yield Step("consumer heartbeat", 1, heartbeat(FIRST, 2, owned=[0, 1]))
    yield Step("consumer bare heartbeat", 1, heartbeat(FIRST, 2))
    yield Step("consumer epoch too high", 1, heartbeat(FIRST, 9))
    yield Step("consumer epoch too low", 1, heartbeat(FIRST, 1))
    yield Step("consumer previous epoch owning nothing", 1, heartbeat(FIRST, 1, owned=[]))
    yield Step("consumer stranger", 1, heartbeat(SECOND, 1))
    yield Step("consumer stranger leaves", 1, heartbeat(SECOND, -1))
    yield Step("consumer unknown instance", 1, heartbeat(FIRST, 2, instance_id="i9"))
    yield Step("consumer full heartbeat", 1, joining(FIRST, 2, owned=[0, 1]))
    for version in (0, 1):
        yield Step(
            f"consumer describe v{version}",
            version,
            lambda _: ConsumerGroupDescribeRequest(group_ids=["c1", "nogroup", "g1", ""]),
        )
    for version in (5, 6):
        yield Step(
            f"consumer described as classic v{version}",
            version,
            lambda _: DescribeGroupsRequest(groups=["c1"]),
        )
    yield Step("list consumer", 5, lambda _: ListGroupsRequest(types_filter=["Consumer"]))
    yield Step("list all types", 5, lambda _: ListGroupsRequest())
    yield Step("list no such type", 5, lambda _: ListGroupsRequest(types_filter=["nope"]))


def classic_request_steps() -> Iterator[Step]:
    """Requests of the classic protocol to a consumer group."""
    yield Step(
        "classic heartbeat to consumer",
        4,
        lambda _: HeartbeatRequest(group_id="c1", generation_id=2, member_id=FIRST),
    )
    yield Step(
        "classic heartbeat of stranger to consumer",
        4,
        lambda _: HeartbeatRequest(group_id="c1", generation_id=2, member_id="who"),
    )
    yield Step(
        "classic sync to consumer",
        5,
        lambda _: SyncGroupRequest(group_id="c1", generation_id=2, member_id="who"),
    )
    yield Step(
        "classic leave to consumer",
        5,
        lambda _: LeaveGroupRequest(
            group_id="c1", members=[LeaveGroupRequest.MemberIdentity(member_id="who")]
        ),
    )
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"meta")
    yield Step(
        "classic join of other type to consumer",
        9,
        lambda _: JoinGroupRequest(
            group_id="c1",
            session_timeout_ms=45_000,
            rebalance_timeout_ms=10_000,
            protocol_type="connect",
            protocols=[protocol],
        ),
    )


def offset_steps() -> Iterator[Step]:
    _topic = OffsetCommitRequest.OffsetCommitRequestTopic
    _partition = OffsetCommitRequest.OffsetCommitRequestPartition

    def commit(member: str, epoch: int, group: str = "c1", version: int = 9) -> Any:
        return lambda s: OffsetCommitRequest(
            group_id=group,
            member_id=member,
            generation_id_or_member_epoch=epoch,
            topics=[
                _topic(
                    name="t1" if version < 10 else "",
                    topic_id=s.topic_ids["t1"] if version >= 10 else ZERO_UUID,
                    partitions=[
                        _partition(partition_index=n, committed_offset=5 + n) for n in (0, 1)
                    ],
                )
            ],
        )

    yield Step("consumer commit", 9, commit(FIRST, 2))
    yield Step("consumer commit by id", 10, commit(FIRST, 2, version=10))
    yield Step("consumer commit old version", 8, commit(FIRST, 2))
    yield Step("consumer commit stale", 9, commit(FIRST, 1))
    yield Step("consumer commit stale old version", 8, commit(FIRST, 1))
    yield Step("consumer commit ahead", 9, commit(FIRST, 3))
    yield Step("consumer commit stranger", 9, commit(SECOND, 2))
    yield Step("consumer commit without member", 9, commit("", -1))
    yield Step("consumer commit unknown group", 9, commit(FIRST, 2, "nogroup2"))
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = OffsetFetchRequest.OffsetFetchRequestTopics

    def fetch(member: str | None, epoch: int, group_id: str = "c1") -> Any:
        return lambda _: OffsetFetchRequest(
            groups=[
                group(
                    group_id=group_id,
                    member_id=member,
                    member_epoch=epoch,
                    topics=[topics(name="t1", partition_indexes=[0, 1])],
                )
            ]
        )

    yield Step("consumer fetch", 9, fetch(FIRST, 2))
    yield Step("consumer fetch old epoch", 9, fetch(FIRST, 1))
    yield Step("consumer fetch new epoch", 9, fetch(FIRST, 3))
    yield Step("consumer fetch stranger", 9, fetch(SECOND, 2))
    yield Step("consumer fetch member without epoch", 9, fetch(FIRST, -1))
    yield Step("consumer fetch nobody", 9, fetch(None, -1))
    yield Step("consumer fetch unknown group", 9, fetch(FIRST, 2, "nogroup2"))
    yield Step("consumer fetch nobody unknown group", 9, fetch(None, -1, "nogroup2"))
    yield Step("consumer fetch classic group", 9, fetch("who", 2, "g1"))


def static_steps() -> Iterator[Step]:
    static: dict[str, Any] = {"group_id": "c2", "instance_id": "i1"}
    yield Step("static consumer joins", 1, joining(STATIC, **static))
    yield Step("static consumer owns", 1, heartbeat(STATIC, 2, owned=[0, 1], **static))
    yield Step("static consumer doubled", 1, joining(RETURNED, **static))
    yield Step("static consumer by another", 1, heartbeat(RETURNED, 2, **static))
    yield Step("static consumer goes", 1, heartbeat(STATIC, -2, **static))
    yield Step("static consumer gone", 1, heartbeat(STATIC, 2, **static))
    yield Step(
        "static consumer away described",
        1,
        lambda _: ConsumerGroupDescribeRequest(group_ids=["c2"]),
    )
    yield Step("static consumer returns", 1, joining(RETURNED, **static))
    yield Step("static consumer former self", 1, heartbeat(STATIC, 2, **static))
    yield Step("static consumer leaves", 1, heartbeat(RETURNED, -1, **static))


def end_steps() -> Iterator[Step]:
    _topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    _partition = OffsetDeleteRequest.OffsetDeleteRequestPartition

    def offset_delete(group: str) -> Any:
        return lambda _: OffsetDeleteRequest(
            group_id=group,
            topics=[
                _topic(name="t1", partitions=[_partition(partition_index=n) for n in (0, 1, 7)]),
                _topic(name="t2", partitions=[_partition(partition_index=0)]),
                _topic(name="nosuch", partitions=[_partition(partition_index=0)]),
            ],
        )

    for name in ("c1", "g1", "simple", "nogroup", ""):
        yield Step(f"delete offsets of {name or 'no name'}", 0, offset_delete(name))
    for version in (0, 2):
        yield Step(
            f"delete groups v{version}",
            version,
            lambda _: DeleteGroupsRequest(groups_names=["c1", "nogroup", "simple", ""]),
        )
    yield Step("consumer leaves", 1, heartbeat(FIRST, -1))
    yield Step("consumer left", 1, heartbeat(FIRST, 2))
    yield Step(
        "consumer describe empty", 1, lambda _: ConsumerGroupDescribeRequest(group_ids=["c1"])
    )
    yield Step("delete offsets of empty", 0, offset_delete("c1"))
    yield Step(
        "delete consumer groups", 2, lambda _: DeleteGroupsRequest(groups_names=["c1", "c2"])
    )
    yield Step("list after deletion", 5, lambda _: ListGroupsRequest(types_filter=["consumer"]))


def consumer_group_steps() -> Iterator[Step]:
    for part in (
        refused_steps,
        life_steps,
        classic_request_steps,
        offset_steps,
        static_steps,
        end_steps,
    ):
        yield from part()
