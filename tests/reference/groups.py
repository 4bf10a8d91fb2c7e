"""What is asked of groups and of their offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.coordinators.groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitRequest, OffsetFetchRequest
from tests.reference.consumer_groups import consumer_group_steps
from tests.reference.step import UNKNOWN_ID, State, Step


def group_steps() -> Iterator[Step]:
    yield Step("find v0", 0, lambda _: FindCoordinatorRequest(key="g1"))
    yield Step("find v3", 3, lambda _: FindCoordinatorRequest(key="g1", key_type=0))
    yield Step("find v4", 4, lambda _: FindCoordinatorRequest(coordinator_keys=["g1", "g2"]))
    yield Step(
        "find wrong type", 4, lambda _: FindCoordinatorRequest(key_type=9, coordinator_keys=["g"])
    )

    def join(member: str, version_note: str = "", **extra: Any) -> Callable[[State], Message]:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"meta")
        values = {
            "group_id": "g1",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "protocol_type": "consumer",
            "protocols": [protocol],
            **extra,
        }
        return lambda s: JoinGroupRequest(member_id=s.members.get(member, member), **values)

    def keep(name: str) -> Callable[[State, Any], None]:
        def note(state: State, answer: Any) -> None:
            state.members[name] = answer.member_id

        return note

    yield Step("join without id", 5, join(""), keep("m"))
    yield Step("join with id", 5, join("m"))
    yield Step("join unknown", 5, join("stranger"))
    yield Step("join no group", 5, join("", group_id=""))
    yield Step("join short session", 5, join("", group_id="g2", session_timeout_ms=1))
    yield Step("join other type", 5, join("", protocol_type="connect"))

    def sync(member: str, generation: int, **extra: Any) -> Callable[[State], Message]:
        def build(state: State) -> Message:
            member_id = state.members.get(member, member)
            assignment = SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member_id, assignment=b"mine"
            )
            return SyncGroupRequest(
                **{"group_id": "g1", **extra},
                generation_id=generation,
                member_id=member_id,
                assignments=[assignment],
            )

        return build

    def heartbeat(member: str, generation: int, group: str = "g1") -> Callable[[State], Message]:
        return lambda s: HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=s.members.get(member, member)
        )

    yield Step("sync wrong generation", 4, sync("m", 9))
    yield Step("sync unknown member", 4, sync("stranger", 1))
    yield Step("sync other protocol", 5, sync("m", 1, protocol_type="connect", protocol_name="x"))
    yield Step("sync", 5, sync("m", 1, protocol_type="consumer", protocol_name="range"))
    yield Step("sync again", 3, sync("m", 1))
    yield Step("heartbeat", 4, heartbeat("m", 1))
    yield Step("heartbeat wrong generation", 4, heartbeat("m", 2))
    yield Step("heartbeat unknown member", 4, heartbeat("stranger", 1))
    yield Step("heartbeat unknown group", 4, heartbeat("m", 1, "nogroup"))
    yield Step("heartbeat empty group", 4, heartbeat("m", 1, ""))
    for version in (0, 5, 6):
        yield Step(
            f"describe v{version}",
            version,
            lambda _: DescribeGroupsRequest(groups=["g1", "nogroup"]),
        )
    yield from offset_steps()
    yield from consumer_group_steps()
    yield Step("list v0", 0, lambda _: ListGroupsRequest())
    yield Step("list v5", 5, lambda _: ListGroupsRequest())
    yield Step("list stable", 5, lambda _: ListGroupsRequest(states_filter=["Stable"]))
    yield Step("list empty", 5, lambda _: ListGroupsRequest(states_filter=["Empty"]))
    yield Step("list classic", 5, lambda _: ListGroupsRequest(types_filter=["classic"]))
    identity = LeaveGroupRequest.MemberIdentity
    yield Step(
        "leave unknown",
        4,
        lambda _: LeaveGroupRequest(group_id="g1", members=[identity(member_id="stranger")]),
    )
    yield Step(
        "leave",
        5,
        lambda s: LeaveGroupRequest(
            group_id="g1", members=[identity(member_id=s.members["m"], reason="done")]
        ),
    )
    yield Step("describe empty", 6, lambda _: DescribeGroupsRequest(groups=["g1"]))
    # Last: Kafka keeps an empty group of that name afterwards.
    yield Step("join no protocols", 5, join("", group_id="g3", protocols=[]))


def offset_steps() -> Iterator[Step]:
    def commit(
        group: str = "g1",
        member: str = "m",
        generation: int = 1,
        topic: str = "t1",
        note: str = "note",
        partition: int = 0,
    ) -> Callable[[State], Message]:
        part = OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=partition,
            committed_offset=3,
            committed_leader_epoch=0,
            committed_metadata=note,
        )
        entry = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[part])
        return lambda s: OffsetCommitRequest(
            group_id=group,
            member_id=s.members.get(member, member),
            generation_id_or_member_epoch=generation,
            topics=[entry],
        )

    yield Step("commit", 8, commit())
    yield Step("commit wrong generation", 8, commit(generation=9))
    yield Step("commit unknown member", 8, commit(member="stranger"))
    yield Step("commit simple to full group", 8, commit(member="", generation=-1))
    yield Step("commit simple", 8, commit("simple", "", -1))
    yield Step("commit unknown group", 8, commit("nogroup2", "m", 1))
    yield Step("commit unknown topic", 8, commit(topic="nosuch"))
    yield Step("commit unknown partition", 8, commit(partition=99))
    yield Step("commit large note", 8, commit(note="x" * 5000))
    yield Step("commit no group", 8, commit(""))

    def by_id(topic_id: Uuid | None) -> Callable[[State], Message]:
        part = OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=1, committed_offset=4
        )

        def build(state: State) -> Message:
            return OffsetCommitRequest(
                group_id="g1",
                member_id=state.members["m"],
                generation_id_or_member_epoch=1,
                topics=[
                    OffsetCommitRequest.OffsetCommitRequestTopic(
                        topic_id=topic_id or state.topic_ids["t1"], partitions=[part]
                    )
                ],
            )

        return build

    yield Step("commit by id", 10, by_id(None))
    yield Step("commit by unknown id", 10, by_id(UNKNOWN_ID))
    old_topic = OffsetFetchRequest.OffsetFetchRequestTopic
    for version in (1, 5, 7):
        yield Step(
            f"offsets v{version}",
            version,
            lambda _: OffsetFetchRequest(
                group_id="g1",
                topics=[
                    old_topic(name="t1", partition_indexes=[0, 1]),
                    old_topic(name="nosuch", partition_indexes=[0]),
                ],
            ),
        )
    yield Step("all offsets", 7, lambda _: OffsetFetchRequest(group_id="g1", topics=None))
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = OffsetFetchRequest.OffsetFetchRequestTopics
    yield Step(
        "offsets of groups",
        9,
        lambda _: OffsetFetchRequest(
            groups=[
                group(group_id="g1", topics=[topics(name="t1", partition_indexes=[0, 1, 7])]),
                group(group_id="simple", topics=None),
                group(group_id="nogroup", topics=[topics(name="t1", partition_indexes=[0])]),
            ]
        ),
    )
    yield Step(
        "offsets by id",
        10,
        lambda s: OffsetFetchRequest(
            groups=[
                group(
                    group_id="g1",
                    topics=[
                        topics(topic_id=s.topic_ids["t1"], partition_indexes=[0, 1]),
                        topics(topic_id=UNKNOWN_ID, partition_indexes=[0]),
                    ],
                )
            ]
        ),
    )
