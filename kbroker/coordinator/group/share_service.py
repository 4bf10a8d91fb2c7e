"""Requests of share groups to the group coordinator (KIP-932): heartbeats, descriptions, offsets.

The groups live in shards of `__consumer_offsets`, the states of their partitions in
`__share_group_state`, behind a `GroupStatePersister`. A change of both takes three steps: a record
announces the change, the state is changed, another record confirms it. If a step fails, the log
shows that, and the step is retried.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from kbroker.coordinator.group.kind import NO_MEMBER_EPOCH
from kbroker.coordinator.group.membership.assignment import Assignment
from kbroker.coordinator.group.service import GroupCoordinator, java_host
from kbroker.coordinator.group.share.offset_descriptions import (
    DescribedGroup,
    EndOffsets,
    OffsetDescriptions,
    WantedTopic,
)
from kbroker.coordinator.group.share.persister import GroupStatePersister
from kbroker.coordinator.group.share.requests import check_share_heartbeat
from kbroker.coordinator.runtime.call_context import CallContext
from kbroker.coordinator.runtime.host import Host, HostStatus
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import CoordinatorResult
from kbroker.coordinator.topics import ClusterTopic, ClusterTopics
from kbroker.model import ZERO_UUID, TopicIdPartition, Uuid
from kbroker.ports import Deferred, Timers, gather
from kbroker.protocol.codecs.pieces import PIECE_ITEMS
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kbroker.protocol.share_partition_state import UNINITIALIZED

if TYPE_CHECKING:
    from kbroker.coordinator.group.shard import GroupShard
    from kbroker.coordinator.group.share.group import ShareGroup
    from kbroker.coordinator.group.share.membership import ShareHeartbeat

STEP_TOPICS: Final = 512
"""How many topics and partitions of a request are processed in one step."""

_AskedGroup = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
_AlteredTopic = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic
_AlteredPartition = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition
_DeletedTopic = DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic


class ShareGroupCoordinator:
    """Share groups: request in, response (or a Deferred of it) out. end_offsets: for the lag."""

    def __init__(
        self,
        groups: GroupCoordinator,
        persister: GroupStatePersister,
        *,
        timers: Timers,
        topics: Callable[[], ClusterTopics],
        end_offsets: EndOffsets,
    ) -> None:
        self._groups = groups
        self._runtime = groups.runtime
        self._persister = persister
        self._timers = timers
        self._topics = topics
        self._descriptions = OffsetDescriptions(persister, end_offsets)

    # -- membership --------------------------------------------------------------------------

    def heartbeat(
        self, context: CallContext, request: ShareGroupHeartbeatRequest
    ) -> Deferred[ShareGroupHeartbeatResponse]:
        """ShareGroupHeartbeat: answered when its changes are committed. Raises KafkaError."""
        check_share_heartbeat(request)
        host = self._host(request.group_id)
        result = host.shard.share_heartbeat(
            request,
            context.client_id or "",
            java_host(context.client_host),
            self._timers.monotonic_ms(),
        )
        answer: Deferred[ShareHeartbeat]
        initialize = result.answer.initialize
        if initialize is None:
            answer = self._runtime.handle(host, result)
        else:
            changes = host.shard.share.state_changes
            change = changes.begin(request.group_id, initialize, for_members=True)
            offsets = dict.fromkeys(_places(initialize), UNINITIALIZED)
            answer = self._runtime.handle(host, result)
            changes.end_with(
                change, answer.then(lambda _: self._initialize(host, request.group_id, offsets))
            )
        response = answer.then(lambda heartbeat: heartbeat.response)
        return response.recover(lambda error: ShareGroupHeartbeatResponse(error_code=error.code))

    def describe(
        self, group_id: str
    ) -> tuple[
        ShareGroupDescribeResponse.DescribedGroup, Iterator[ShareGroupDescribeResponse.Member]
    ]:
        """ShareGroupDescribe of one group: the group without members, and its members."""
        try:
            shard = self._host(group_id).shard
            return shard.describe(shard.share, group_id)
        except KafkaError as error:
            refusal = ShareGroupDescribeResponse.DescribedGroup(
                group_id=group_id, error_code=error.code
            )
            return refusal, iter(())

    # -- the states of partitions ------------------------------------------------------------

    def _initialize(
        self,
        host: Host[GroupShard],
        group_id: str,
        start_offsets: Mapping[TopicIdPartition, int],
        error: ErrorCode = ErrorCode.NONE,
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        """Initialize the states and confirm that in the log; returns the error of each. error: if
        set, they are not initialized.
        """
        group = host.shard.share.groups.get(group_id)
        if error is not ErrorCode.NONE or host.status is not HostStatus.ACTIVE or group is None:
            code = error or ErrorCode.NOT_COORDINATOR
            return Deferred.of(dict.fromkeys(start_offsets, code))

        def made(
            errors: Mapping[TopicIdPartition, ErrorCode],
        ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
            done = [place for place, code in errors.items() if code is ErrorCode.NONE]
            records = []
            if host.status is HostStatus.ACTIVE:
                records = host.shard.share.initialized(group_id, _assignment(done))
            return self._submit(host, records).then(
                lambda error: {place: code or error for place, code in errors.items()}
            )

        return self._persister.initialize(group_id, group.epoch, start_offsets).then(made)

    def describe_offsets(
        self, context: CallContext, request: DescribeShareGroupOffsetsRequest
    ) -> Deferred[DescribeShareGroupOffsetsResponse]:
        """DescribeShareGroupOffsets of the requested partitions; each group separately."""
        described = gather(map(self._describe_group, request.groups))
        return described.then(lambda groups: DescribeShareGroupOffsetsResponse(groups=groups))

    def _describe_group(self, asked: _AskedGroup) -> Deferred[DescribedGroup]:
        refusal = self._cannot_describe(asked.group_id)
        if refusal is not None:
            return Deferred.of(refusal)
        names = self._topics().topics
        wanted: list[WantedTopic] = []
        for topic in asked.topics or ():
            known = names.get(topic.topic_name)
            topic_id = ZERO_UUID if known is None else known.topic_id
            wanted.append(WantedTopic(topic.topic_name, topic_id, topic.partitions))
        return self._descriptions.describe(asked.group_id, wanted)

    def describe_all_offsets(
        self, group_id: str
    ) -> Iterator[tuple[Deferred[DescribeShareGroupOffsetsResponse], int]]:
        """DescribeShareGroupOffsets of one group and all partitions that have a state, in several
        partial responses. With each comes 1 if its first topic continues the last one of the
        response before, otherwise 0, as `pieces.merge` requires.
        """

        def respond(found: DescribedGroup) -> DescribeShareGroupOffsetsResponse:
            return DescribeShareGroupOffsetsResponse(groups=[found])

        refusal = self._cannot_describe(group_id)
        if refusal is not None:
            yield Deferred.of(respond(refusal)), 0
            return
        host = self._host(group_id)
        committed = self._runtime.when_committed(host)

        def once_committed(found: DescribedGroup) -> Deferred[DescribeShareGroupOffsetsResponse]:
            def unless(error: ErrorCode) -> DescribeShareGroupOffsetsResponse:
                refused = DescribedGroup(group_id=group_id, error_code=error)
                return respond(refused if error else found)

            return committed.then(unless)

        group = host.shard.share.groups.get(group_id)
        if group is None or not group.states.initialized:
            yield once_committed(DescribedGroup(group_id=group_id)), 0
            return
        names = group.states.names
        topics = [
            (names.get(topic_id, ""), topic_id, partitions)
            for topic_id, partitions in group.states.initialized.items()
        ]
        for name, topic_id, partitions in topics:
            indexes = sorted(partitions)
            for start in range(0, max(len(indexes), 1), PIECE_ITEMS):
                wanted = [WantedTopic(name, topic_id, indexes[start : start + PIECE_ITEMS])]
                described = self._descriptions.describe(group_id, wanted)
                yield described.then(once_committed), 1 if start else 0

    def _cannot_describe(self, group_id: str) -> DescribedGroup | None:
        """The response for a group that is not coordinated by this broker, or without an id; None
        for others.
        """
        found = DescribedGroup(group_id=group_id)
        if not group_id:
            return found
        try:
            self._host(group_id)
        except KafkaError as error:
            found.error_code, found.error_message = error.code, error.message or None
            return found
        return None

    def alter_offsets(
        self, context: CallContext, request: AlterShareGroupOffsetsRequest
    ) -> Generator[None, None, Deferred[AlterShareGroupOffsetsResponse]]:
        """AlterShareGroupOffsets: for a group without members, or one that does not exist yet. In
        steps, the last of which initializes the states. Raises KafkaError, also while these topics'
        states are being changed: a deletion that is carried out late would delete the new states.
        """
        group_id = request.group_id
        host = self._host_of_alterable(group_id)
        count = 0
        topics = self._topics().topics
        response = AlterShareGroupOffsetsResponse()
        results: dict[TopicIdPartition, _AlteredPartition] = {}
        offsets: dict[TopicIdPartition, int] = {}
        for topic in request.topics:
            known = topics.get(topic.topic_name)
            topic_id = ZERO_UUID if known is None else known.topic_id
            answered = _AlteredTopic(topic_name=topic.topic_name, topic_id=topic_id)
            response.responses.append(answered)
            count += 1
            if count % STEP_TOPICS == 0:
                yield
            for partition in topic.partitions:
                count += 1
                if count % STEP_TOPICS == 0:
                    yield
                index = partition.partition_index
                result = _AlteredPartition(partition_index=index)
                answered.partitions.append(result)
                if known is None or index not in known.partitions:
                    _refuse(result, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                else:
                    offsets[(topic_id, index)] = partition.start_offset
                    results[(topic_id, index)] = result
        if count >= STEP_TOPICS:  # the group may have changed during a pause
            host = self._host_of_alterable(group_id)
        if not offsets:
            return Deferred.of(response)

        def respond(errors: Mapping[TopicIdPartition, ErrorCode]) -> AlterShareGroupOffsetsResponse:
            for place, result in results.items():
                _refuse(result, errors.get(place, ErrorCode.UNKNOWN_SERVER_ERROR))
            return response

        share, places = host.shard.share, _assignment(offsets)
        share.state_changes.require_none(group_id, places)
        change = share.state_changes.begin(group_id, places)
        announced = self._submit(host, share.initialize(group_id, places))
        initialized = announced.then(lambda error: self._initialize(host, group_id, offsets, error))
        share.state_changes.end_with(change, initialized)
        return initialized.then(respond)

    def _host_of_alterable(self, group_id: str) -> Host[GroupShard]:
        """Raises KafkaError for a group of another type and for a share group with members."""
        host = self._named_host(group_id)
        share = host.shard.share
        if group_id in share.groups:
            share.require_empty(group_id)
        else:
            host.shard.take_over(share, group_id, NO_MEMBER_EPOCH)
        return host

    def delete_offsets(
        self, context: CallContext, request: DeleteShareGroupOffsetsRequest
    ) -> Generator[None, None, Deferred[DeleteShareGroupOffsetsResponse]]:
        """DeleteShareGroupOffsets: for a group without members; also after a failed deletion. In
        steps, the last of which deletes. Raises KafkaError, also while these topics' states are
        being changed.
        """
        host = self._named_host(request.group_id)
        group = host.shard.share.require_empty(request.group_id)
        topics = self._topics().topics
        with_states = _topics_with_states(group)
        response = DeleteShareGroupOffsetsResponse()
        results: dict[Uuid, _DeletedTopic] = {}
        for count, topic in enumerate(request.topics, 1):
            if count % STEP_TOPICS == 0:
                yield
            result = _DeletedTopic(topic_name=topic.topic_name)
            response.responses.append(result)
            known = topics.get(topic.topic_name)
            if known is None:
                _refuse(result, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            if known.topic_id in with_states:
                results[known.topic_id] = result
                result.topic_id = known.topic_id
            else:
                _refuse_without_state(result)
        if len(request.topics) >= STEP_TOPICS:  # the group may have changed during a pause
            host = self._named_host(request.group_id)
            with_states = _topics_with_states(host.shard.share.require_empty(request.group_id))
            for topic_id in results.keys() - with_states:
                _refuse_without_state(results.pop(topic_id))
        if not results:
            return Deferred.of(response)
        host.shard.share.state_changes.require_none(request.group_id, results)

        def respond(error: ErrorCode) -> DeleteShareGroupOffsetsResponse:
            for result in results.values():
                _refuse(result, error)
            return response

        return self._delete_states(host, request.group_id, list(results)).then(respond)

    def delete_group(self, group_id: str) -> Deferred[ErrorCode]:
        """DeleteGroups, for one share group."""
        try:
            host = self._host(group_id)
            group = host.shard.share.require_empty(group_id)
            host.shard.share.state_changes.require_none(group_id)
        except KafkaError as error:
            return Deferred.of(error.code)

        def emptied(error: ErrorCode) -> Deferred[ErrorCode]:
            if error is not ErrorCode.NONE:
                return Deferred.of(error)
            end = host.shard.share.end(group_id)
            offsets = host.shard.offsets.tombstones_of_group(group_id)
            return self._submit(host, [*offsets, *end])

        states = group.states
        topic_ids = [*states.initialized, *states.initializing, *sorted(states.deleting)]
        unique = list(dict.fromkeys(topic_ids))
        deleted = self._delete_states(host, group_id, unique, ends_group=True).then(emptied)
        return deleted.recover(lambda error: error.code)

    def _delete_states(
        self,
        host: Host[GroupShard],
        group_id: str,
        topic_ids: list[Uuid],
        *,
        ends_group: bool = False,
    ) -> Deferred[ErrorCode]:
        """Delete all states of these topics; returns the first error, if there is one. ends_group:
        the tombstones of the group confirm the deletion, so no states of other topics may be
        initialized before that. After an error the log shows a started deletion: it can be
        requested again, and is dropped when members subscribe to the topics.
        """
        share = host.shard.share
        group = share.groups.get(group_id)
        if group is None or not topic_ids:
            return Deferred.of(ErrorCode.NONE)
        places = self._places_of(group.states.initialized, group.states.initializing, topic_ids)
        change = share.state_changes.begin(group_id, None if ends_group else topic_ids)

        def deleted(errors: Mapping[TopicIdPartition, ErrorCode]) -> Deferred[ErrorCode]:
            failed = next((code for code in errors.values() if code), ErrorCode.NONE)
            if failed is not ErrorCode.NONE or host.status is not HostStatus.ACTIVE:
                return Deferred.of(failed or ErrorCode.NOT_COORDINATOR)
            records = [] if ends_group else share.deleted_states(group_id, topic_ids)
            return self._submit(host, records)

        def announced(error: ErrorCode) -> Deferred[ErrorCode]:
            if error is not ErrorCode.NONE:
                return Deferred.of(error)
            return self._persister.delete(group_id, places).then(deleted)

        result = self._submit(host, share.delete_states(group_id, topic_ids)).then(announced)
        share.state_changes.end_with(change, result)
        return result.recover(lambda error: error.code)

    def _places_of(
        self, initialized: Assignment, initializing: Assignment, topic_ids: Iterable[Uuid]
    ) -> list[TopicIdPartition]:
        """All partitions of these topics that may have a state, including those of an earlier
        started deletion, whose partitions are not in the log.
        """
        by_id = self._topics().topics_by_id
        places: dict[TopicIdPartition, None] = {}
        for topic_id in topic_ids:
            indexes = set(initialized.get(topic_id, ())) | set(initializing.get(topic_id, ()))
            topic: ClusterTopic | None = by_id.get(topic_id)
            if topic is not None:
                indexes |= set(topic.partitions)
            places.update(dict.fromkeys((topic_id, index) for index in sorted(indexes)))
        return list(places)

    # -- helpers -----------------------------------------------------------------------------

    def _submit(
        self, host: Host[GroupShard], records: list[CoordinatorRecord]
    ) -> Deferred[ErrorCode]:
        """Write records. NONE once they are committed, or the client's error."""
        if host.status is not HostStatus.ACTIVE:
            return Deferred.of(ErrorCode.NOT_COORDINATOR)
        written = self._runtime.handle(host, CoordinatorResult(records, ErrorCode.NONE))
        return written.recover(lambda error: error.code)

    def _host(self, group_id: str) -> Host[GroupShard]:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return self._runtime.host(self._groups.partition_for(group_id))

    def _named_host(self, group_id: str) -> Host[GroupShard]:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group has no id.")
        return self._host(group_id)


def _refuse(result: _AlteredPartition | _DeletedTopic, error: ErrorCode) -> None:
    result.error_code = error
    result.error_message = None if error is ErrorCode.NONE else error.name


def _refuse_without_state(result: _DeletedTopic) -> None:
    _refuse(result, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    result.error_message = "The group has no offset of this topic."


def _topics_with_states(group: ShareGroup) -> set[Uuid]:
    states = group.states
    return {*states.initialized, *states.initializing, *states.deleting}


def _places(assignment: Assignment) -> list[TopicIdPartition]:
    return [
        (topic_id, partition)
        for topic_id, partitions in assignment.items()
        for partition in sorted(partitions)
    ]


def _assignment(places: Iterable[TopicIdPartition]) -> Assignment:
    topics: dict[Uuid, set[int]] = {}
    for topic_id, partition in places:
        topics.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in topics.items()}
