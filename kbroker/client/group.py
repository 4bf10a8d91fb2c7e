"""A member of a classic consumer group: join, range assignment, heartbeats, commits.

    unjoined --JoinGroup, SyncGroup--> stable --REBALANCE_IN_PROGRESS--> unjoined
                                       stable --leave--> left

The classic protocol (KIP-62, KIP-394): the leader computes the assignment for all members.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self, TypeVar

from kbroker.client.cluster import Client, check, group_by_topic
from kbroker.client.consumer import ConsumedRecord, Consumer, ConsumerConfig, Position, Reset
from kbroker.model import TopicPartition
from kbroker.protocol.batches.compression import Buffer
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.messages.coordinators.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from kbroker.protocol.messages.coordinators.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kbroker.protocol.messages.coordinators.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

R = TypeVar("R", bound=Response)
D = TypeVar("D", ConsumerProtocolSubscription, ConsumerProtocolAssignment)

CONSUMER_PROTOCOL_VERSION: Final = 3
PROTOCOL_TYPE: Final = "consumer"
JOIN_GRACE_S: Final = 5.0
RANGE: Final = "range"
NAMED_OFFSETS_VERSION: Final = 9
"""The highest version of OffsetCommit and OffsetFetch with topic names; from 10 on they have ids.
"""

REJOIN: Final = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.MEMBER_ID_REQUIRED,
    }
)
NEW_COORDINATOR: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Settings with the names and defaults of Kafka's consumer."""

    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    heartbeat_interval_ms: int = 3_000
    auto_offset_reset: Reset = "latest"
    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    consumer: ConsumerConfig = field(default_factory=ConsumerConfig)


def assign_range(
    subscriptions: Mapping[str, Sequence[str]], partition_counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Kafka's RangeAssignor: split each topic's partitions into ranges over its subscribers in
    order of their member ids.

    subscriptions: topics by member id. The first members get one more where the count does not
    divide.
    """
    assignment: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    for topic in sorted({topic for topics in subscriptions.values() for topic in topics}):
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        each, more = divmod(partition_counts.get(topic, 0), len(members))
        first = 0
        for index, member in enumerate(members):
            count = each + (1 if index < more else 0)
            assignment[member] += [
                TopicPartition(topic, partition) for partition in range(first, first + count)
            ]
            first += count
    return assignment


class GroupConsumer:
    """Reads the partitions that the group assigns to it. An async context manager: leaves the group
    at the end.

    join_count: how many times it has joined. After each time it reads from the committed offsets,
    also if the generation is the same: a follower that joins a stable group again starts no new
    one.
    """

    def __init__(
        self,
        client: Client,
        group_id: str,
        topics: Sequence[str],
        config: GroupConfig | None = None,
    ) -> None:
        self.client = client
        self.group_id = group_id
        self.topics = list(topics)
        self.config = config or GroupConfig()
        self.consumer = Consumer(client, self.config.consumer)
        self.member_id = ""
        self.generation_id = -1
        self.join_count = 0
        self._stable = False
        self._failure: KafkaError | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._next_commit_s = 0.0
        self._tasks = asyncio.TaskGroup()
        self._heartbeats: asyncio.Task[None] | None = None
        self._channel = f"member {id(self)}"

    @property
    def assignment(self) -> list[TopicPartition]:
        return self.consumer.assignment

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._heartbeats = self._tasks.create_task(self._heartbeat(), name="heartbeat")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc_type is None and self._stable and self.config.auto_commit:
                with contextlib.suppress(KafkaError):
                    await self.commit()
            with contextlib.suppress(KafkaError):
                await self._leave()
        finally:
            if self._heartbeats is not None:
                self._heartbeats.cancel()
            await self._tasks.__aexit__(None, None, None)  # so exc goes on as it is
            self.consumer.close()
            self.client.close_channel(self._channel)

    async def poll(self) -> list[ConsumedRecord]:
        """One round: join if needed, fetch, commit if it is time. Raises KafkaError."""
        if self._failure is not None:
            raise self._failure
        if not self._stable:
            if self.config.auto_commit and self.member_id:
                await self._commit_quietly()
            await self.client.retry(self._join, timeout_s=self._join_timeout_s)
        records = await self.consumer.poll()
        if self.config.auto_commit and self._stable:
            now_s = asyncio.get_running_loop().time()
            if now_s >= self._next_commit_s:
                self._next_commit_s = now_s + self.config.auto_commit_interval_ms / 1000
                # commit the records of the previous poll: the caller has processed them by now
                await self._commit_quietly()
            self._committed = dict(self.consumer.positions)
        return records

    @property
    def _join_timeout_s(self) -> float:
        """The coordinator responds to a join when all members have joined or the rebalance timeout
        is over.
        """
        return self.config.rebalance_timeout_ms / 1000 + JOIN_GRACE_S

    async def _commit_quietly(self) -> None:
        try:
            await self.commit(self._committed)
        except KafkaError as error:
            if error.code not in REJOIN and not error.code.retriable:
                raise

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit the next offsets to read, by default the positions. Raises KafkaError."""
        offsets = dict(self.consumer.positions if offsets is None else offsets)
        if not offsets:
            return
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=self.generation_id,
            member_id=self.member_id,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offsets[TopicPartition(topic, partition)],
                            committed_metadata="",
                        )
                        for partition in partitions
                    ],
                )
                for topic, partitions in group_by_topic(offsets).items()
            ],
        )
        response = await self._ask(request, OffsetCommitResponse)
        for topic_response in response.topics:
            for answer in topic_response.partitions:
                self._react(answer.error_code)
                check(answer.error_code, f"commit of {topic_response.name}")

    async def _join(self) -> None:
        """Join, assign if leader, take the assignment and its committed offsets."""
        subscription = ConsumerProtocolSubscription(topics=sorted(self.topics))
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.config.session_timeout_ms,
            rebalance_timeout_ms=self.config.rebalance_timeout_ms,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(
                    name=RANGE, metadata=_versioned(subscription, 0)
                )
            ],
        )
        response = await self._ask(request, JoinGroupResponse, timeout_s=self._join_timeout_s)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            request.member_id = self.member_id = response.member_id
            response = await self._ask(request, JoinGroupResponse, timeout_s=self._join_timeout_s)
        self._check_joining(response.error_code, "JoinGroup")
        self.member_id = response.member_id
        self.generation_id = response.generation_id
        assignments: list[SyncGroupRequest.SyncGroupRequestAssignment] = []
        if response.leader == response.member_id:
            assignments = await self._assign(response.members)
        sync = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=RANGE,
            assignments=assignments,
        )
        synced = await self._ask(sync, SyncGroupResponse, timeout_s=self._join_timeout_s)
        self._check_joining(synced.error_code, "SyncGroup")
        await self._start(_assigned(synced.assignment))
        self.join_count += 1
        self._stable = True

    async def _assign(
        self, members: Sequence[JoinGroupResponse.JoinGroupResponseMember]
    ) -> list[SyncGroupRequest.SyncGroupRequestAssignment]:
        subscriptions = {
            member.member_id: decode_versioned(ConsumerProtocolSubscription, member.metadata).topics
            for member in members
        }
        topics = sorted({topic for topics in subscriptions.values() for topic in topics})
        await self.client.metadata(topics)
        counts = {
            topic: len(self.client.topics[topic].partitions)
            for topic in topics
            if topic in self.client.topics
        }
        return [
            SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member_id,
                assignment=_versioned(
                    ConsumerProtocolAssignment(
                        assigned_partitions=[
                            ConsumerProtocolAssignment.TopicPartition(
                                topic=topic, partitions=partitions
                            )
                            for topic, partitions in group_by_topic(topic_partitions).items()
                        ]
                    ),
                    0,
                ),
            )
            for member_id, topic_partitions in assign_range(subscriptions, counts).items()
        ]

    async def _start(self, assigned: Sequence[TopicPartition]) -> None:
        """Start reading at the committed offsets, or where there are none as auto_offset_reset
        says.
        """
        positions: dict[TopicPartition, Position] = {}
        reset = self.config.auto_offset_reset
        committed = await self.committed(assigned) if assigned else {}
        for topic_partition in assigned:
            offset = committed.get(topic_partition, -1)
            if offset >= 0:
                positions[topic_partition] = offset
            elif reset == "none":
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{topic_partition}: no commit")
            else:
                positions[topic_partition] = reset
        await self.consumer.assign(positions)
        self._committed = {}
        interval_s = self.config.auto_commit_interval_ms / 1000
        self._next_commit_s = asyncio.get_running_loop().time() + interval_s

    async def committed(
        self, topic_partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The group's committed offsets; no entry for a partition without one. Raises
        KafkaError.
        """
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequest.OffsetFetchRequestGroup(
                    group_id=self.group_id,
                    topics=[
                        OffsetFetchRequest.OffsetFetchRequestTopics(
                            name=topic, partition_indexes=partitions
                        )
                        for topic, partitions in group_by_topic(topic_partitions).items()
                    ],
                )
            ]
        )
        response = await self._ask(request, OffsetFetchResponse)
        found: dict[TopicPartition, int] = {}
        for group in response.groups:
            check(group.error_code, f"committed offsets of {self.group_id}")
            for topic in group.topics:
                for answer in topic.partitions:
                    check(answer.error_code, f"committed offset of {topic.name}")
                    if answer.committed_offset >= 0:
                        topic_partition = TopicPartition(topic.name, answer.partition_index)
                        found[topic_partition] = answer.committed_offset
        return found

    async def _ask(
        self, message: Request, response_type: type[R], *, timeout_s: float | None = None
    ) -> R:
        return await self.client.to_coordinator(
            self.group_id,
            message,
            response_type,
            max_version=NAMED_OFFSETS_VERSION,
            timeout_s=timeout_s,
            channel=self._channel,
        )

    def _react(self, code: int) -> None:
        """Update the member's state after an error code of the coordinator, before it is raised."""
        if code in NEW_COORDINATOR:
            self.client.forget_coordinator(self.group_id)
        elif code in REJOIN:
            self._stable = False
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""

    def _check_joining(self, code: int, what: str) -> None:
        """Raise KafkaError for a code that is not NONE. One that is cured by joining again becomes
        retriable.
        """
        self._react(code)
        if code in REJOIN:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{what}: join again")
        check(code, f"{what} of group {self.group_id}")

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self.config.heartbeat_interval_ms / 1000)
            if not self._stable:
                continue
            request = HeartbeatRequest(
                group_id=self.group_id,
                generation_id=self.generation_id,
                member_id=self.member_id,
            )
            try:
                response = await self._ask(request, HeartbeatResponse)
                self._react(response.error_code)
                if response.error_code not in REJOIN:
                    check(response.error_code, f"heartbeat in group {self.group_id}")
            except KafkaError as error:
                if not error.code.retriable:
                    self._failure = error
                    return

    async def _leave(self) -> None:
        self._stable = False
        if not self.member_id:
            return
        member_id, self.member_id = self.member_id, ""
        request = LeaveGroupRequest(
            group_id=self.group_id,
            members=[LeaveGroupRequest.MemberIdentity(member_id=member_id)],
        )
        await self._ask(request, LeaveGroupResponse)


def _versioned(
    message: ConsumerProtocolSubscription | ConsumerProtocolAssignment, version: int
) -> bytes:
    """The consumer protocol's bytes: an int16 version before the message."""
    return version.to_bytes(2, "big") + encode(message, version)


def decode_versioned(message: type[D], data: Buffer) -> D:
    """Decode a member's subscription or assignment; versions above ours are read as ours, as the
    protocol demands.

    Raises KafkaError(INCONSISTENT_GROUP_PROTOCOL) for bytes that cannot be decoded.
    """
    version = int.from_bytes(data[:2], "big")
    try:
        decoded, _ = decode(message, data, min(version, CONSUMER_PROTOCOL_VERSION), 2)
    except MalformedRequest as error:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None
    return decoded


def _assigned(assignment: Buffer) -> list[TopicPartition]:
    if not assignment:
        return []
    decoded = decode_versioned(ConsumerProtocolAssignment, assignment)
    return [
        TopicPartition(topic.topic, partition)
        for topic in decoded.assigned_partitions
        for partition in topic.partitions
    ]
