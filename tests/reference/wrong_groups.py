"""A conversation with groups of each kind that are asked what belongs to another kind, and the
wrong generations, epochs, instances, notes and topics that each kind has its own word for.

Kinds do not change here: `group.consumer.migration.policy` forbids it (`migration` is about that).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kbroker.model import ZERO_UUID
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.coordinators.consumer_groups import ConsumerGroupDescribeRequest
from kbroker.protocol.messages.coordinators.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
)
from kbroker.protocol.messages.coordinators.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from kbroker.protocol.messages.coordinators.share_groups import ShareGroupDescribeRequest
from kbroker.protocol.messages.coordinators.streams_groups import StreamsGroupDescribeRequest
from tests.reference import share_groups, streams_groups
from tests.reference.consumer_groups import heartbeat as consumer
from tests.reference.consumer_groups import joining as consumer_joins
from tests.reference.migration import Request, beat, id_of, join, keep, sync
from tests.reference.step import UNKNOWN_ID, Step
from tests.reference.transactional_offsets import keep_topic_ids

SESSION_MS: Final = 300_000
"""No session times out during the conversation."""
OVERRIDES: Final = {
    "group.consumer.migration.policy": "disabled",
    "group.consumer.assignment.interval.ms": "0",
    **streams_groups.OVERRIDES,
    **share_groups.OVERRIDES,
    **{
        f"group.{kind}.{limit}session.timeout.ms": str(SESSION_MS)
        for kind in ("consumer", "share", "streams")
        for limit in ("max.", "")
    },
}
CONSUMER = "AAAAAAAAAAAAAAAAAAAAAA"
SHARE = "BBBBBBBBBBBBBBBBBBBBBB"
STREAMS = "CCCCCCCCCCCCCCCCCCCCCC"
STRANGER = "DDDDDDDDDDDDDDDDDDDDDD"
MEMBERS: Final = {
    "classic": "m",
    "consumer": CONSUMER,
    "share": SHARE,
    "streams": STREAMS,
    "simple": "m",
}
"""A member of each group. `simple` has no member, only committed offsets."""


def create_steps() -> Iterator[Step]:
    topic = CreateTopicsRequest.CreatableTopic
    topics = [topic(name=name, num_partitions=2, replication_factor=1) for name in ("t1", "st-in")]
    yield Step(
        "create",
        7,
        lambda _: CreateTopicsRequest(topics=topics, timeout_ms=10_000),
        keep_topic_ids,
    )
    fields = {"group_instance_id": "i", "session_timeout_ms": SESSION_MS}
    yield Step("classic begins", 5, join("", "classic", **fields), keep("m"))
    yield Step("classic syncs", 5, sync("m", 1, "classic", 0, 1, group_instance_id="i"))
    begin = consumer_joins(CONSUMER, group_id="consumer", instance_id="i")
    yield Step("consumer begins", 1, begin)
    yield Step("share begins", 1, share_joins("share", SHARE))
    yield Step(
        "streams begins",
        0,
        streams_groups.joining(STREAMS, group_id="streams"),
        awaits=("streams-rep", "streams-log"),
    )
    yield Step("simple begins", 8, commit("simple", "", -1))


def share_joins(group: str, member: str = STRANGER) -> Request:
    return share_groups.heartbeat(member, 0, group_id=group, subscribed_topic_names=["t1"])


def commit(group: str, member: str, generation: int, **fields: Any) -> Request:
    """fields: of the partition; also topic, topic_id, instance."""
    values = {"committed_offset": 3, "committed_metadata": "note", **fields}
    name, topic_id = values.pop("topic", "t1"), values.pop("topic_id", ZERO_UUID)
    instance = values.pop("instance", None)
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=values.pop("partition", 0), **values
    )
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(
        name=name, topic_id=topic_id, partitions=[partition]
    )
    return lambda s: OffsetCommitRequest(
        group_id=group,
        member_id=id_of(s, member),
        group_instance_id=instance,
        generation_id_or_member_epoch=generation,
        topics=[topic],
    )


def fetch(group: str, member: str | None, epoch: int) -> Request:
    kind = OffsetFetchRequest.OffsetFetchRequestGroup
    return lambda s: OffsetFetchRequest(
        groups=[
            kind(
                group_id=group,
                member_id=None if member is None else id_of(s, member),
                member_epoch=epoch,
                topics=None,
            )
        ]
    )


def leave(group: str, member: str, instance: str | None = None) -> Request:
    one = LeaveGroupRequest.MemberIdentity
    return lambda s: LeaveGroupRequest(
        group_id=group,
        members=[one(member_id=id_of(s, member), group_instance_id=instance)],
    )


def offset_delete(group: str) -> Request:
    partition = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic(name="t1", partitions=[partition])
    return lambda _: OffsetDeleteRequest(group_id=group, topics=[topic])


def requests_of(kind: str, group: str, member: str) -> Mapping[str, tuple[int, Request]]:
    """What a member of a group of that kind asks, by name, with the version."""
    match kind:
        case "classic":
            return {
                "join": (9, join("", group)),
                "join by id": (9, join(member, group)),
                "sync": (5, sync(member, 1, group)),
                "beat": (4, beat(member, 1, group)),
                "leave": (5, leave(group, STRANGER)),
                "describe": (6, lambda _: DescribeGroupsRequest(groups=[group])),
            }
        case "consumer":
            return {
                "join": (1, consumer_joins(STRANGER, group_id=group)),
                "beat": (1, consumer(member, 1, group_id=group)),
                "leave": (1, consumer(STRANGER, -1, group_id=group)),
                "describe": (1, lambda _: ConsumerGroupDescribeRequest(group_ids=[group])),
            }
        case "share":
            return {
                "join": (1, share_joins(group)),
                "beat": (1, share_groups.heartbeat(member, 1, group_id=group)),
                "leave": (1, share_groups.heartbeat(STRANGER, -1, group_id=group)),
                "describe": (1, lambda _: ShareGroupDescribeRequest(group_ids=[group])),
                "offsets": (1, share_groups.describe_offsets(group)),
                "alter offsets": (0, share_groups.alter(group, {"t1": {0: 1}})),
                "delete offsets": (0, share_groups.delete_offsets(group, "t1")),
            }
        case _:
            return {
                "join": (0, streams_groups.joining(STRANGER, group_id=group)),
                "beat": (0, streams_groups.heartbeat(member, 1, group_id=group)),
                "leave": (0, streams_groups.heartbeat(STRANGER, -1, group_id=group)),
                "describe": (0, lambda _: StreamsGroupDescribeRequest(group_ids=[group])),
            }


def wrong_kind_steps() -> Iterator[Step]:
    for group, member in MEMBERS.items():
        for kind in ("classic", "consumer", "share", "streams"):
            if kind == group or group == "simple":
                continue
            for name, (version, request) in requests_of(kind, group, member).items():
                yield Step(f"{kind} {name} to {group}", version, request)


def offset_steps() -> Iterator[Step]:
    for group, member in MEMBERS.items():
        generation = 1 if group in ("classic", "simple") else 2
        for version in (8, 9):
            for name, (who, epoch) in {
                "member": (member, generation),
                "wrong generation": (member, generation + 7),
                "negative generation": (member, -1),
                "stranger": (STRANGER, generation),
                "nobody": ("", -1),
                "nobody's generation": ("", generation),
            }.items():
                yield Step(
                    f"commit v{version}: {name} of {group}", version, commit(group, who, epoch)
                )
        for name, fields in {
            "large note": {"committed_metadata": "x" * 5_000},
            "no note": {"committed_metadata": None},
            "unknown topic": {"topic": "nosuch"},
            "unknown partition": {"partition": 7},
            "negative partition": {"partition": -1},
            "negative offset": {"committed_offset": -5},
            "instance": {"instance": "i"},
            "unknown instance": {"instance": "j"},
        }.items():
            yield Step(f"commit {name} of {group}", 9, commit(group, member, generation, **fields))
        unknown = commit(group, member, generation, topic="", topic_id=UNKNOWN_ID)
        yield Step(f"commit unknown id of {group}", 10, unknown)
        for name, (whose, epoch) in {
            "member": (member, generation),
            "wrong epoch": (member, generation + 7),
            "stranger": (STRANGER, generation),
            "nobody": (None, -1),
        }.items():
            yield Step(f"fetch: {name} of {group}", 9, fetch(group, whose, epoch))
        yield Step(f"delete offsets of {group}", 0, offset_delete(group))


def classic_steps() -> Iterator[Step]:
    """Instances of a group that is and stays classic."""
    for name, instance in {"fenced": "i", "unknown": "j"}.items():
        yield Step(f"{name} beat", 4, beat("stranger", 1, "classic", instance))
        fields = {"group_instance_id": instance}
        yield Step(f"{name} sync", 5, sync("stranger", 1, "classic", **fields))
        yield Step(f"{name} join", 9, join("stranger", "classic", **fields))
        yield Step(f"{name} commit", 8, commit("classic", "stranger", 1, instance=instance))
        yield Step(f"{name} leave", 5, leave("classic", "stranger", instance))
    yield Step("beat of before", 4, beat("m", 0, "classic", "i"))
    yield Step("beat without instance", 4, beat("m", 1, "classic"))
    long = join("", "classic", session_timeout_ms=10_000_000)
    yield Step("join with a long session", 9, long)
    yield Step("join without protocols", 9, join("", "classic", names=()))
    yield Step("join without a type", 9, join("", "classic", protocol_type=""))
    yield Step("join by other protocols", 9, join("", "classic", names=("mine",)))


def consumer_steps() -> Iterator[Step]:
    """What a member that is in the group may not say."""
    fields: dict[str, Any] = {"group_id": "consumer", "instance_id": "i"}
    for name, extra in {
        "bad regex": {"subscribed_topic_regex": "(["},
        "unknown assignor": {"server_assignor": "mine"},
        "empty rack": {"rack_id": ""},
    }.items():
        yield Step(f"consumer: {name}", 1, consumer(CONSUMER, 2, **fields, **extra))
    yield Step("consumer: fenced instance", 1, consumer(STRANGER, 2, **fields))
    yield Step("consumer: fenced leave", 1, consumer(STRANGER, -2, **fields))
    yield Step("consumer: unreleased instance", 1, consumer_joins(STRANGER, **fields))


def end_steps() -> Iterator[Step]:
    names = [*MEMBERS, "nosuch"]
    yield Step("all of them listed", 5, lambda _: ListGroupsRequest())
    for number, kind in enumerate(("consumer", "share", "streams")):
        yield Step(f"commit for {kind} to take", 8, commit(f"simple{number}", "", -1))
        version, request = requests_of(kind, f"simple{number}", STRANGER)["join"]
        yield Step(f"{kind} takes a group without members", version, request)
        yield Step(f"offsets of it, {kind}", 9, fetch(f"simple{number}", None, -1))
    yield Step("delete them with members", 2, lambda _: DeleteGroupsRequest(groups_names=names))


def wrong_group_steps() -> Iterator[Step]:
    for part in (
        create_steps,
        wrong_kind_steps,
        offset_steps,
        classic_steps,
        consumer_steps,
        end_steps,
    ):
        yield from part()
