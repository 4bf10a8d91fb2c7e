"""The group coordinator: passes requests of members and tools to shards.

The hash of its group id determines the shard of a request, which makes the decision (`shard`);
`runtime` writes the records and sends the responses. Every method takes the decoded request and
returns the response, or a Deferred of it; bytes fields are copied before it returns. Requests for
committed offsets are in `offset_service`, those for share groups in `share_service`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from kbroker.coordinator.group.classic.memory import MemberMemory
from kbroker.coordinator.group.consumer.assignors import ASSIGNORS
from kbroker.coordinator.group.consumer.requests import check_heartbeat
from kbroker.coordinator.group.kind import GroupType
from kbroker.coordinator.group.membership.join import (
    PROTOCOL_BYTES,
    UNKNOWN_MEMBER,
    Join,
    join_error,
)
from kbroker.coordinator.group.membership.overrides import NO_OVERRIDES, GroupOverrides
from kbroker.coordinator.group.offset_deletions import OffsetDeletions
from kbroker.coordinator.group.offset_service import OffsetService, OffsetSettings
from kbroker.coordinator.group.streams.requests import (
    check_streams_heartbeat,
)
from kbroker.coordinator.runtime.call_context import CallContext
from kbroker.coordinator.runtime.coordinator_log import CoordinatorLog
from kbroker.coordinator.runtime.host import Host, HostStatus
from kbroker.coordinator.runtime.key_hash import partition_of
from kbroker.coordinator.runtime.key_partitions import KeyPartitions
from kbroker.coordinator.runtime.loader import LOAD_STEP_BYTES
from kbroker.coordinator.runtime.result import CoordinatorResult
from kbroker.coordinator.runtime.runtime import CoordinatorRuntime
from kbroker.coordinator.topics import ClusterTopics, DeletedTopic
from kbroker.log_lines import LogThrottle, shown
from kbroker.model import StartupError
from kbroker.ports import Deferred, Timers, gather
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kbroker.protocol.messages.coordinators.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kbroker.protocol.messages.coordinators.streams_groups import (
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
)

if TYPE_CHECKING:
    from kbroker.coordinator.group.shard import GroupShard, ShardSettings
    from kbroker.coordinator.group.streams.membership import StreamsHeartbeat

    class GroupCoordinatorSettings(ShardSettings, OffsetSettings, Protocol):
        """The part of the broker's configuration that the group coordinator reads; implemented by
        GroupCoordinatorConfig.
        """

        @property
        def offsets_topic_num_partitions(self) -> int: ...
        @property
        def offsets_topic_compression_codec(self) -> int: ...
        @property
        def offsets_load_buffer_size(self) -> int: ...
        @property
        def offsets_commit_timeout_ms(self) -> int: ...
        @property
        def group_min_session_timeout_ms(self) -> int: ...
        @property
        def group_max_session_timeout_ms(self) -> int: ...


logger = logging.getLogger(__name__)

GROUP_TOPIC: Final = "__consumer_offsets"
NO_PROTOCOL_NAME_VERSION: Final = 7
"""From this JoinGroup version on an error response has no protocol name (KIP-559)."""
PROTOCOL_NAMED_VERSION: Final = 5
"""From this SyncGroup version on a member sends the protocol of the JoinGroup response
(KIP-559).
"""


MAX_REASON: Final = 255
REASONS_PER_SECOND: Final = 10
"""The maximum length of a client's reason in a log line; clients send no more."""


def leave_error(error: ErrorCode) -> LeaveGroupResponse:
    """The response to a LeaveGroup that failed as a whole."""
    return LeaveGroupResponse(error_code=error)


GroupDeletion = Callable[[str], Deferred[ErrorCode]]
"""Deletes the group of that id; resolves with its error."""


class GroupCoordinator:
    """Groups and committed offsets: request in, response (or a Deferred of it) out. deletions: for
    the types that have state outside of the group's shard.
    """

    def __init__(
        self,
        config: GroupCoordinatorSettings,
        *,
        log: CoordinatorLog,
        timers: Timers,
        random: Random,
        topics: Callable[[], ClusterTopics],
        overrides: GroupOverrides = NO_OVERRIDES,
        deletions: Mapping[GroupType, GroupDeletion] | None = None,
    ) -> None:
        unknown = [name for name in config.group_consumer_assignors if name not in ASSIGNORS]
        if unknown:
            known = " and ".join(ASSIGNORS)
            raise StartupError(f"group.consumer.assignors: there is no {unknown[0]}, only {known}")
        self._config = config
        self._timers = timers
        self._reasons = LogThrottle(logger, logging.INFO, lines=REASONS_PER_SECOND)
        self._partitions = KeyPartitions(GROUP_TOPIC, topics, config.offsets_topic_num_partitions)
        self._deletions = deletions or {}
        self._member_memory = memory = MemberMemory(config.kbroker_group_members_max_bytes)

        def make_shard() -> GroupShard:
            # Imported here: the four group types are 50 modules (25 ms), which a broker needs once
            # it leads a partition of the topic.
            from kbroker.coordinator.group.shard import GroupShard

            return GroupShard(config, random, timers.now_ms, topics, overrides, memory)

        self.runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            GROUP_TOPIC,
            log=log,
            timers=timers,
            make_shard=make_shard,
            compression=Compression(config.offsets_topic_compression_codec),
            load_step_bytes=min(config.offsets_load_buffer_size, LOAD_STEP_BYTES),
            write_timeout_ms=config.offsets_commit_timeout_ms,
        )
        self.offsets = OffsetService(
            config, self.runtime, host_of=self._host, timers=timers, topics=topics
        )
        self._offset_deletions = OffsetDeletions(self.runtime, timers)

    def partition_for(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` whose leader coordinates this group."""
        return partition_of(group_id, self._partitions.count())

    def on_leadership(self, partition: int, epoch: int | None) -> None:
        """This broker leads that partition of `__consumer_offsets` from epoch on, or (None) does
        not lead it any more.
        """
        self._partitions.count()  # before the topic grows
        self.runtime.on_leadership(partition, epoch)

    def on_topics_deleted(self, topics: Sequence[DeletedTopic]) -> None:
        """Topics were deleted: delete their offsets, and the data of groups about them."""
        self._offset_deletions.on_topics_deleted(topics)

    def close(self) -> None:
        """Unload every shard: the broker stops."""
        self._offset_deletions.close()
        self.runtime.close()

    def _log_reason(self, group_id: str, who: str | None, reason: str | None) -> None:
        """Log the reason that a client gives for rejoining or leaving (KIP-800)."""
        if reason:
            self._reasons.log(
                self._timers.monotonic_ms(),
                "group %s: %s: %r",
                shown(group_id),
                shown(who),
                reason[:MAX_REASON],
            )

    def join_group(self, context: CallContext, request: JoinGroupRequest) -> Deferred[Message]:
        """JoinGroup."""
        has_no_name = context.api_version >= NO_PROTOCOL_NAME_VERSION

        def respond(response: Message) -> Message:
            if has_no_name and isinstance(response, JoinGroupResponse) and response.error_code:
                response.protocol_name = None
            return response

        return self._join_group(context, request).then(respond)

    def _join_group(self, context: CallContext, request: JoinGroupRequest) -> Deferred[Message]:
        config = self._config
        timeout_ms = request.session_timeout_ms
        if not request.group_id:
            return Deferred.of(join_error(request.member_id, ErrorCode.INVALID_GROUP_ID))
        if not (
            config.group_min_session_timeout_ms <= timeout_ms <= config.group_max_session_timeout_ms
        ):
            return Deferred.of(join_error(request.member_id, ErrorCode.INVALID_SESSION_TIMEOUT))
        if len(request.protocols) * PROTOCOL_BYTES > self._member_memory.member_limit_bytes:
            return Deferred.of(join_error(request.member_id, ErrorCode.GROUP_MAX_SIZE_REACHED))
        try:
            host = self._host(request.group_id)
        except KafkaError as error:
            return Deferred.of(join_error(request.member_id, error.code))
        self._log_reason(request.group_id, request.member_id or context.client_id, request.reason)
        join = Join(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=context.client_id or "",
            client_host=java_host(context.client_host),
            session_timeout_ms=timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=[(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols],
            version=context.api_version,
            waiter=Deferred(),
        )
        result = host.shard.join(request.group_id, join, self._timers.monotonic_ms())
        answer = self.runtime.handle(host, result)
        return answer.recover(lambda error: join_error(UNKNOWN_MEMBER, error.code))

    def sync_group(self, context: CallContext, request: SyncGroupRequest) -> Deferred[Message]:
        """SyncGroup."""
        if context.api_version >= PROTOCOL_NAMED_VERSION and (
            request.protocol_type is None or request.protocol_name is None
        ):
            return Deferred.of(SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        try:
            host = self._member_host(request.group_id)
        except KafkaError as error:
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                # The former coordinator kept the generation in memory only: the member must rejoin.
                return Deferred.of(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
            return Deferred.of(SyncGroupResponse(error_code=error.code))
        result = host.shard.sync(request, self._timers.monotonic_ms())
        answer = self.runtime.handle(host, result)
        return answer.recover(lambda error: SyncGroupResponse(error_code=error.code))

    def heartbeat(self, context: CallContext, request: HeartbeatRequest) -> HeartbeatResponse:
        """Heartbeat. While the shard is loading, heartbeats succeed."""
        try:
            host = self._member_host(request.group_id)
        except KafkaError as error:
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return HeartbeatResponse()
            return HeartbeatResponse(error_code=error.code)
        error_code = host.shard.heartbeat(request, self._timers.monotonic_ms())
        if error_code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.runtime.carry_out(host, [])  # the member has a deadline to join
        return HeartbeatResponse(error_code=error_code)

    def leave_group(self, context: CallContext, request: LeaveGroupRequest) -> Deferred[Message]:
        """LeaveGroup; before v3 the error of the only member is that of the response."""
        try:
            host = self._member_host(request.group_id)
        except KafkaError as error:
            return Deferred.of(leave_error(error.code))
        identities = request.members
        if context.api_version < 3:
            identities = [LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
        for identity in identities:
            who = identity.member_id or identity.group_instance_id
            self._log_reason(request.group_id, who, identity.reason)
        result = host.shard.leave(request.group_id, identities, self._timers.monotonic_ms())
        answer = self.runtime.handle(host, result)
        answer = answer.recover(lambda error: leave_error(error.code))
        return answer.then(_old_leave_response) if context.api_version < 3 else answer

    def leave_errors(
        self, group_id: str, identities: Sequence[LeaveGroupRequest.MemberIdentity]
    ) -> list[ErrorCode]:
        """The result of LeaveGroup for each identity; no member leaves. Raises KafkaError."""
        return self._member_host(group_id).shard.leave_errors(group_id, identities)

    def consumer_heartbeat(
        self, context: CallContext, request: ConsumerGroupHeartbeatRequest
    ) -> Deferred[ConsumerGroupHeartbeatResponse]:
        """ConsumerGroupHeartbeat: answered when its changes are committed. Raises KafkaError."""
        check_heartbeat(request, context.api_version, self._config.group_consumer_assignors)
        host = self._host(request.group_id)
        result = host.shard.consumer_heartbeat(
            request, context.client_id or "", java_host(context.client_host)
        )
        answer = self.runtime.handle(host, result)
        return answer.recover(lambda error: ConsumerGroupHeartbeatResponse(error_code=error.code))

    def consumer_describe(
        self, group_id: str
    ) -> tuple[
        ConsumerGroupDescribeResponse.DescribedGroup, Iterator[ConsumerGroupDescribeResponse.Member]
    ]:
        """ConsumerGroupDescribe of one group: the group without members, and its members."""
        try:
            shard = self._member_host(group_id).shard
            return shard.describe(shard.consumer, group_id)
        except KafkaError as error:
            shown_id = "" if error.code is ErrorCode.INVALID_GROUP_ID else group_id
            refusal = ConsumerGroupDescribeResponse.DescribedGroup(
                group_id=shown_id, error_code=error.code
            )
            return refusal, iter(())

    def streams_heartbeat(
        self, context: CallContext, request: StreamsGroupHeartbeatRequest
    ) -> Deferred[StreamsHeartbeat]:
        """StreamsGroupHeartbeat: the response, and the topics to create, once the decision is
        committed. Raises KafkaError; the result fails if the decision cannot be written.
        """
        check_streams_heartbeat(request)
        host = self._host(request.group_id)
        result = host.shard.streams_heartbeat(
            request, context.client_id or "", java_host(context.client_host)
        )
        return self.runtime.handle(host, result)

    def streams_describe(
        self, group_id: str
    ) -> tuple[
        StreamsGroupDescribeResponse.DescribedGroup, Iterator[StreamsGroupDescribeResponse.Member]
    ]:
        """StreamsGroupDescribe of one group; as `consumer_describe`."""
        try:
            shard = self._member_host(group_id).shard
            return shard.describe(shard.streams, group_id)
        except KafkaError as error:
            refusal = StreamsGroupDescribeResponse.DescribedGroup(
                group_id=group_id, error_code=error.code
            )
            return refusal, iter(())

    def delete_groups(
        self, context: CallContext, request: DeleteGroupsRequest
    ) -> Deferred[DeleteGroupsResponse]:
        """DeleteGroups: each group separately; answered when all are written."""
        group_ids = list(dict.fromkeys(request.groups_names))

        def respond(errors: list[ErrorCode]) -> DeleteGroupsResponse:
            return DeleteGroupsResponse(
                results=[
                    DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=error)
                    for group_id, error in zip(group_ids, errors, strict=True)
                ]
            )

        return gather(map(self._delete_group, group_ids)).then(respond)

    def _delete_group(self, group_id: str) -> Deferred[ErrorCode]:
        """The error of a group, NONE once it is deleted."""
        try:
            host = self._host(group_id)
        except KafkaError as error:
            return Deferred.of(error.code)
        kind = host.shard.kind_of(group_id)
        deletion = None if kind is None else self._deletions.get(kind.group_type)
        if deletion is not None:
            return deletion(group_id)
        error_code, records = host.shard.delete_group(group_id)
        if error_code is not ErrorCode.NONE:
            return Deferred.of(error_code)
        deleted = self.runtime.handle(host, CoordinatorResult(records, ErrorCode.NONE))
        return deleted.recover(lambda error: error.code)

    def list_groups(
        self, states: Set[str] = frozenset(), types: Set[str] = frozenset()
    ) -> Generator[Deferred[ErrorCode] | None, None, ListGroupsResponse]:
        """ListGroups: one of this broker's partitions in each step; a partition that is being
        loaded is an error, not an omission. states, types: the filters in lower case; empty: no
        filter.
        """
        listed: list[tuple[list[ListGroupsResponse.ListedGroup], Deferred[ErrorCode]]] = []
        for host in list(self.runtime.hosts()):
            if host.status is HostStatus.LOADING:
                return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            if host.status is HostStatus.ACTIVE:
                groups = list(host.shard.list_groups(states, types))
                listed.append((groups, self.runtime.when_committed(host)))
                yield None
        response = ListGroupsResponse()
        for groups, committed in listed:
            if not committed.done:
                yield committed
            if committed.value is ErrorCode.NONE:
                response.groups += groups
            elif committed.value is not ErrorCode.NOT_COORDINATOR:  # the next leader lists these
                return ListGroupsResponse(error_code=committed.value)
        return response

    def committed(self, group_id: str) -> Callable[[], Deferred[ErrorCode]]:
        """For a response about the group that is built from now on, possibly in several turns of
        the loop. Call the result when the response is complete: NONE once everything in it is
        committed, otherwise the error to respond with instead.
        """
        try:
            return partial(self.runtime.when_committed, self._host(group_id))
        except KafkaError:  # the description has this error
            return _committed

    def describe_group(
        self, group_id: str, version: int
    ) -> tuple[
        DescribeGroupsResponse.DescribedGroup, Iterator[DescribeGroupsResponse.DescribedGroupMember]
    ]:
        """DescribeGroups of one group; as `consumer_describe`."""
        try:
            shard = self._host(group_id).shard
            return shard.describe(shard.classic, group_id, version)
        except KafkaError as error:
            refusal = DescribeGroupsResponse.DescribedGroup(
                group_id=group_id, error_code=error.code
            )
            return refusal, iter(())

    def _host(self, group_id: str) -> Host[GroupShard]:
        return self.runtime.host(self.partition_for(group_id))

    def _member_host(self, group_id: str) -> Host[GroupShard]:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return self._host(group_id)


def _old_leave_response(response: Message) -> Message:
    """Before v3: the error of the only member is that of the response."""
    assert isinstance(response, LeaveGroupResponse)
    members = response.members
    return LeaveGroupResponse(error_code=members[0].error_code if members else response.error_code)


def _committed() -> Deferred[ErrorCode]:
    return Deferred.of(ErrorCode.NONE)


def java_host(host: str) -> str:
    """An address without a name in Java's format, which is stored and shown."""
    return host if host.startswith("/") else "/" + host
