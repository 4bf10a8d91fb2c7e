"""The part of the conversation in which a group changes its protocol and back, and the wrong
requests that static members and strangers send meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kbroker.protocol.codecs.codec import encode
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from kbroker.protocol.messages.coordinators.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from kbroker.protocol.messages.coordinators.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitRequest, OffsetFetchRequest
from tests.reference.step import State, Step

NEW = "EEEEEEEEEEEEEEEEEEEEEE"
Request = Callable[[State], Message]
Keep = Callable[[State, Any], None]


def subscription(*topics: str, version: int = 3) -> bytes:
    value = ConsumerProtocolSubscription(topics=list(topics))
    return version.to_bytes(2, "big") + encode(value, version)


def assignment(topic: str, *partitions: int) -> bytes:
    place = ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=list(partitions))
    value = ConsumerProtocolAssignment(assigned_partitions=[place])
    return b"\0\1" + encode(value, 1)


def id_of(state: State, member: str) -> str:
    return state.members.get(member, member)


def join(
    member: str,
    group: str = "m1",
    *,
    names: tuple[str, ...] = ("range", "roundrobin"),
    **extra: Any,
) -> Request:
    metadata = extra.pop("metadata", subscription("t1"))
    protocol = JoinGroupRequest.JoinGroupRequestProtocol
    values = {
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "protocol_type": "consumer",
        "protocols": [protocol(name=name, metadata=metadata) for name in names],
        **extra,
    }
    return lambda s: JoinGroupRequest(group_id=group, member_id=id_of(s, member), **values)


def keep(name: str) -> Keep:
    def note(state: State, answer: Any) -> None:
        state.members[name] = answer.member_id

    return note


def sync(member: str, generation: int, group: str = "m1", *given: int, **extra: Any) -> Request:
    def build(state: State) -> Message:
        values = {"protocol_type": "consumer", "protocol_name": "range", **extra}
        assignments = []
        if given:
            one = SyncGroupRequest.SyncGroupRequestAssignment
            data = assignment("t1", *given)
            assignments = [one(member_id=id_of(state, member), assignment=data)]
        return SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=id_of(state, member),
            assignments=assignments,
            **values,
        )

    return build


def beat(member: str, generation: int, group: str = "m1", instance: str | None = None) -> Request:
    return lambda s: HeartbeatRequest(
        group_id=group,
        generation_id=generation,
        member_id=id_of(s, member),
        group_instance_id=instance,
    )


def consumer(
    epoch: int, group: str = "m1", owned: list[int] | None = None, **extra: Any
) -> Request:
    def build(state: State) -> Message:
        place = ConsumerGroupHeartbeatRequest.TopicPartitions
        values = dict(extra)
        if epoch == 0:
            values = {"subscribed_topic_names": ["t1"], "rebalance_timeout_ms": 30_000, **extra}
        if owned is not None:
            values["topic_partitions"] = [
                place(topic_id=state.topic_ids["t1"], partitions=owned) for _ in owned[:1]
            ]
        return ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=values.pop("member_id", NEW), member_epoch=epoch, **values
        )

    return build


def commit(member: str, generation: int, group: str = "m1", instance: str | None = None) -> Request:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(
        name="t1", partitions=[partition(partition_index=n, committed_offset=n) for n in (0, 1)]
    )
    return lambda s: OffsetCommitRequest(
        group_id=group,
        member_id=id_of(s, member),
        generation_id_or_member_epoch=generation,
        group_instance_id=instance,
        topics=[topic],
    )


def fetch(member: str, generation: int, group: str = "m1") -> Request:
    topic = OffsetFetchRequest.OffsetFetchRequestTopics(name="t1", partition_indexes=[0])
    return lambda s: OffsetFetchRequest(
        groups=[
            OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id=group, member_id=id_of(s, member), member_epoch=generation, topics=[topic]
            )
        ]
    )


def leave(group: str, *identities: tuple[str, str | None]) -> Request:
    identity = LeaveGroupRequest.MemberIdentity
    return lambda s: LeaveGroupRequest(
        group_id=group,
        members=[
            identity(member_id=id_of(s, member), group_instance_id=instance)
            for member, instance in identities
        ],
    )


def upgrade_steps() -> Iterator[Step]:
    yield Step("migrating: joins", 3, join(""), keep("mo"))
    yield Step("migrating: syncs", 3, sync("mo", 1, "m1", 0, 1))
    yield Step("migrating: another type", 1, consumer(0, "m1", [], subscribed_topic_names=None))
    yield Step("migrating: epoch to a classic group", 1, consumer(3))
    yield Step("migrating: upgrade", 1, consumer(0, "m1", []))
    yield Step("migrating: described", 1, lambda _: ConsumerGroupDescribeRequest(group_ids=["m1"]))
    yield Step("migrating: commit of the generation", 8, commit("mo", 1))
    yield Step("migrating: commit ahead", 8, commit("mo", 7))
    yield Step("migrating: commit of a stranger", 8, commit("stranger", 1))
    yield Step("migrating: fetch of the generation", 9, fetch("mo", 1))
    yield Step("migrating: fetch ahead", 9, fetch("mo", 7))
    yield Step("migrating: told to join", 4, beat("mo", 1))
    yield Step("migrating: sync before it joined", 5, sync("mo", 1))
    yield Step("migrating: wrong generation", 4, beat("mo", 7))
    yield Step("migrating: sync of a wrong generation", 5, sync("mo", 7))
    yield Step("migrating: stranger", 4, beat("stranger", 1))
    yield Step("migrating: sync of a stranger", 5, sync("stranger", 1))
    yield Step("migrating: a consumer beats as a classic", 4, beat(NEW, 2))
    yield Step("migrating: a consumer syncs as a classic", 5, sync(NEW, 2))
    yield Step("migrating: other protocol", 9, join("mo", names=("sticky",)))
    yield Step("migrating: other type", 9, join("mo", protocol_type="connect"))
    yield Step("migrating: no protocol", 9, join("mo", names=()))
    yield Step("migrating: new one needs an id", 9, join(""))
    yield Step("migrating: unknown instance", 9, join("mo", group_instance_id="i9"))
    yield Step("migrating: joins again", 9, join("mo"))


def mixed_steps() -> Iterator[Step]:
    yield Step("mixed: old generation", 4, beat("mo", 1))
    yield Step("mixed: sync of another name", 5, sync("mo", 2, protocol_name="roundrobin"))
    yield Step("mixed: sync without a name", 5, sync("mo", 2, protocol_name=None))
    yield Step("mixed: sync", 5, sync("mo", 2))
    yield Step("mixed: sync as of old", 0, sync("mo", 2, protocol_name=None, protocol_type=None))
    yield Step("mixed: beat", 4, beat("mo", 2))
    yield Step("mixed: consumer gets its share", 1, consumer(2, "m1", []))
    yield Step("mixed: described", 1, lambda _: ConsumerGroupDescribeRequest(group_ids=["m1"]))
    yield Step("mixed: described as classic", 6, lambda _: DescribeGroupsRequest(groups=["m1"]))
    yield Step("mixed: deleted", 2, lambda _: DeleteGroupsRequest(groups_names=["m1"]))
    yield Step("mixed: stranger leaves", 5, leave("m1", ("stranger", None), ("", "i9")))
    yield Step("mixed: nobody leaves", 5, leave("m1"))
    yield Step("mixed: downgrade", 1, consumer(-1))
    yield Step("mixed: classic again", 6, lambda _: DescribeGroupsRequest(groups=["m1"]))
    yield Step("mixed: beat of the classic", 4, beat("mo", 2))
    yield Step("mixed: joins once more", 5, join("mo"))
    yield Step("mixed: leads again", 5, sync("mo", 3, "m1", 0, 1))
    yield Step("mixed: leaves", 5, leave("m1", ("mo", None)))


def static_steps() -> Iterator[Step]:
    one: dict[str, Any] = {"group_instance_id": "i1"}
    yield Step("static: joins", 9, join("", "s1", **one), keep("so"))
    yield Step("static: syncs", 5, sync("so", 1, "s1", 0, 1, **one))
    yield Step("static: returns", 9, join("", "s1", **one), keep("sn"))
    yield Step("static: fenced beat", 4, beat("so", 1, "s1", "i1"))
    yield Step("static: fenced sync", 5, sync("so", 1, "s1", **one))
    yield Step("static: fenced join", 9, join("so", "s1", **one))
    yield Step("static: fenced commit", 8, commit("so", 1, "s1", "i1"))
    yield Step("static: fenced leave", 5, leave("s1", ("so", "i1")))
    yield Step("static: unknown instance", 4, beat("sn", 1, "s1", "i9"))
    yield Step("static: commit of an unknown instance", 8, commit("sn", 1, "s1", "i9"))
    yield Step("static: leave of an unknown instance", 5, leave("s1", ("", "i9")))
    yield Step("static: beat", 4, beat("sn", 1, "s1", "i1"))
    yield Step("static: as a consumer", 1, consumer(0, "s1", [], instance_id="i1"))
    yield Step("static: fenced by a consumer", 4, beat("sn", 1, "s1", "i1"))
    yield Step("static: fenced join by a consumer", 9, join("sn", "s1", **one))
    yield Step("static: described", 1, lambda _: ConsumerGroupDescribeRequest(group_ids=["s1"]))
    yield Step("static: classic again", 9, join("", "s1", **one), keep("sc"))
    yield Step("static: leaves by instance", 5, leave("s1", ("", "i1")))


def other_steps() -> Iterator[Step]:
    yield Step("connect: joins", 3, join("", "w1", protocol_type="connect"), keep("wo"))
    yield Step("connect: syncs", 3, sync("wo", 1, "w1", 0, protocol_type="connect"))
    yield Step("connect: no consumer group", 1, consumer(0, "w1", []))
    yield Step(
        "connect: not described", 1, lambda _: ConsumerGroupDescribeRequest(group_ids=["w1"])
    )
    yield Step("custom: joins", 3, join("", "u1"), keep("uo"))

    def with_user_data(state: State) -> Message:
        value = ConsumerProtocolAssignment(assigned_partitions=[], user_data=b"mine")
        data = b"\0\1" + encode(value, 1)
        one = SyncGroupRequest.SyncGroupRequestAssignment(
            member_id=id_of(state, "uo"), assignment=data
        )
        return SyncGroupRequest(
            group_id="u1", generation_id=1, member_id=id_of(state, "uo"), assignments=[one]
        )

    yield Step("custom: syncs", 3, with_user_data)
    yield Step("custom: no consumer group", 1, consumer(0, "u1", []))
    yield Step("broken: joins", 3, join("", "b1", metadata=b"\0"), keep("bo"))
    yield Step("broken: syncs", 3, sync("bo", 1, "b1"))
    yield Step("broken: no consumer group", 1, consumer(0, "b1", []))


def migration_steps() -> Iterator[Step]:
    for part in (upgrade_steps, mixed_steps, static_steps, other_steps):
        yield from part()
