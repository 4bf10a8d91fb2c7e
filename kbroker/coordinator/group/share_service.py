"""What the group coordinator does for share groups (KIP-932): heartbeats, descriptions, offsets.

The groups live in shards of `__consumer_offsets`, the states of their partitions in
`__share_group_state`, behind a `GroupStatePersister`. A change of both takes three steps: a record
announces it, the state changes, another record confirms it. The log shows a step that failed, and
it is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from kbroker.coordinator.group.membership.assignment import Assignment
from kbroker.coordinator.group.service import GroupCoordinator, java_host
from kbroker.coordinator.group.shard import GroupShard
from kbroker.coordinator.group.share.membership import check_share_heartbeat
from kbroker.coordinator.group.share.persister import GroupStatePersister
from kbroker.coordinator.runtime.call_context import CallContext
from kbroker.coordinator.runtime.coordinator_log import client_error, is_in_log
from kbroker.coordinator.runtime.host import Host, HostStatus
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.topics import ClusterTopic, ClusterTopics
from kbroker.model import ZERO_UUID, TopicIdPartition, TopicPartition, Uuid
from kbroker.ports import Deferred, Timers
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.share_groups import (
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
from kbroker.protocol.schema import Message
from kbroker.protocol.share_partition_state import UNINITIALIZED, UNKNOWN_COUNT, StateSummary

NO_LAG: Final = -1

_Group = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
_Topic = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic
_Partition = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition
_AskedGroup = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
_AlteredTopic = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic
_AlteredPartition = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition
_DeletedTopic = DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic


class EndOffsets(Protocol):
    """Where partitions end, for the lag."""

    def __call__(self, partition: TopicPartition) -> int | None: ...


class ShareGroupCoordinator:
    """Share groups: request in, response (or a Deferred of it) out.

    end_offset: of a partition, None if it is not known here.
    """

    def __init__(
        self,
        groups: GroupCoordinator,
        persister: GroupStatePersister,
        *,
        timers: Timers,
        topics: Callable[[], ClusterTopics],
        end_offset: EndOffsets,
    ) -> None:
        self._groups = groups
        self._runtime = groups.runtime
        self._persister = persister
        self._timers = timers
        self._topics = topics
        self._end_offset = end_offset
        groups.delete_share_group = self.delete_group

    # -- membership --------------------------------------------------------------------------

    def heartbeat(
        self, context: CallContext, request: ShareGroupHeartbeatRequest
    ) -> ShareGroupHeartbeatResponse | Deferred[Message]:
        """ShareGroupHeartbeat: answered when all that it says is committed. Raises KafkaError."""
        check_share_heartbeat(request)
        host, topics = self._host(request.group_id), self._topics()
        now_ms = self._timers.monotonic_ms()
        decision = host.shard.share_heartbeat(
            request, context.client_id or "", java_host(context.client_host), now_ms
        )
        outcome = self._runtime.submit(host, decision.records)
        is_written = is_in_log(outcome)
        if is_written and decision.member_id is not None:
            host.shard.share.settled(request.group_id, decision, topics, now_ms)
            self._runtime.carry_out(host, [])
        if decision.initialize is not None:
            offsets = dict.fromkeys(_places(decision.initialize), UNINITIALIZED)
            _after(outcome, lambda error: self._initialize(host, request.group_id, offsets, error))
        if not isinstance(outcome, Deferred):
            return _heartbeat_answer(decision.response, outcome)
        answer: Deferred[Message] = Deferred()
        outcome.on_done(lambda error: answer.resolve(_heartbeat_answer(decision.response, error)))
        return answer

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
        """Make the states and say so in the log; what became of each. error: why not to."""
        result: Deferred[Mapping[TopicIdPartition, ErrorCode]] = Deferred()
        group = host.shard.share.groups.get(group_id)
        if error is not ErrorCode.NONE or host.status is not HostStatus.ACTIVE or group is None:
            code = client_error(error) if error else ErrorCode.NOT_COORDINATOR
            result.resolve(dict.fromkeys(start_offsets, code))
            return result

        def made(errors: Mapping[TopicIdPartition, ErrorCode]) -> None:
            done = [place for place, code in errors.items() if code is ErrorCode.NONE]
            records = []
            if host.status is HostStatus.ACTIVE:
                records = host.shard.share.initialized(group_id, _assignment(done))
            written = self._submit(host, records)

            def told(error: ErrorCode) -> None:
                if error is ErrorCode.NONE:
                    result.resolve(errors)
                else:
                    result.resolve({place: code or error for place, code in errors.items()})

            written.on_done(told)

        self._persister.initialize(group_id, group.epoch, start_offsets).on_done(made)
        return result

    def describe_offsets(
        self, context: CallContext, request: DescribeShareGroupOffsetsRequest
    ) -> DescribeShareGroupOffsetsResponse | Deferred[Message]:
        """DescribeShareGroupOffsets: each group on its own."""
        response = DescribeShareGroupOffsetsResponse()
        answer: Deferred[Message] = Deferred()
        left = len(request.groups)
        if not left:
            return response

        def done(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                answer.resolve(response)

        for asked in request.groups:
            found = _Group(group_id=asked.group_id)
            response.groups.append(found)
            self._describe_group(asked, found).on_done(done)
        return answer

    def _describe_group(self, asked: _AskedGroup, found: _Group) -> Deferred[object]:
        result: Deferred[object] = Deferred()
        if not asked.group_id:
            return Deferred.of(None)
        try:
            group = self._host(asked.group_id).shard.share.groups.get(asked.group_id)
        except KafkaError as error:
            found.error_code, found.error_message = error.code, error.message or None
            return Deferred.of(None)
        names = self._topics().topics
        wanted: list[tuple[str, Uuid, list[int]]] = []
        if asked.topics is not None:
            for topic in asked.topics:
                known = names.get(topic.topic_name)
                topic_id = ZERO_UUID if known is None else known.topic_id
                wanted.append((topic.topic_name, topic_id, topic.partitions))
        elif group is not None:
            wanted = [
                (group.states.names.get(topic_id, ""), topic_id, sorted(partitions))
                for topic_id, partitions in group.states.initialized.items()
            ]
        places = [
            (topic_id, partition)
            for _, topic_id, partitions in wanted
            for partition in partitions
            if topic_id != ZERO_UUID
        ]

        def told(summaries: Mapping[TopicIdPartition, StateSummary]) -> None:
            for name, topic_id, partitions in wanted:
                found.topics.append(
                    _Topic(
                        topic_name=name,
                        topic_id=topic_id,
                        partitions=[
                            self._described(name, index, summaries.get((topic_id, index)))
                            for index in partitions
                        ],
                    )
                )
            result.resolve(None)

        if places:
            self._persister.summarize(asked.group_id, places).on_done(told)
        else:
            told({})
        return result

    def _described(self, topic: str, index: int, summary: StateSummary | None) -> _Partition:
        if summary is None or summary.error is not ErrorCode.NONE:
            return _Partition(
                partition_index=index,
                start_offset=UNINITIALIZED,
                error_code=ErrorCode.NONE if summary is None else summary.error,
            )
        lag = NO_LAG
        end = self._end_offset(TopicPartition(topic, index))
        if end is not None and summary.start_offset != UNINITIALIZED:
            done = summary.delivery_complete_count
            if done != UNKNOWN_COUNT:
                lag = end - summary.start_offset - done
        return _Partition(
            partition_index=index,
            start_offset=summary.start_offset,
            leader_epoch=summary.leader_epoch,
            lag=lag,
        )

    def alter_offsets(
        self, context: CallContext, request: AlterShareGroupOffsetsRequest
    ) -> AlterShareGroupOffsetsResponse | Deferred[Message]:
        """AlterShareGroupOffsets: of a group without members, or one that is not there yet. Raises
        KafkaError.
        """
        group_id = request.group_id
        host = self._named_host(group_id)
        shard = host.shard
        shard.take_over(shard.share, group_id, 0)
        if group_id in shard.share.groups:
            shard.share.require_empty(group_id)
        topics = self._topics().topics
        response = AlterShareGroupOffsetsResponse()
        results: dict[TopicIdPartition, _AlteredPartition] = {}
        offsets: dict[TopicIdPartition, int] = {}
        for topic in request.topics:
            known = topics.get(topic.topic_name)
            topic_id = ZERO_UUID if known is None else known.topic_id
            answered = _AlteredTopic(topic_name=topic.topic_name, topic_id=topic_id)
            response.responses.append(answered)
            for partition in topic.partitions:
                index = partition.partition_index
                result = _AlteredPartition(partition_index=index)
                answered.partitions.append(result)
                if known is None or index not in known.partitions:
                    _refuse(result, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                else:
                    offsets[(topic_id, index)] = partition.start_offset
                    results[(topic_id, index)] = result
        if not offsets:
            return response
        answer: Deferred[Message] = Deferred()

        def done(errors: Mapping[TopicIdPartition, ErrorCode]) -> None:
            for place, result in results.items():
                _refuse(result, errors.get(place, ErrorCode.UNKNOWN_SERVER_ERROR))
            answer.resolve(response)

        records = shard.share.initialize(group_id, _assignment(offsets))
        self._submit(host, records).on_done(
            lambda error: self._initialize(host, group_id, offsets, error).on_done(done)
        )
        return answer

    def delete_offsets(
        self, context: CallContext, request: DeleteShareGroupOffsetsRequest
    ) -> DeleteShareGroupOffsetsResponse | Deferred[Message]:
        """DeleteShareGroupOffsets: of a group without members; also where an earlier deletion has
        failed. Raises KafkaError.
        """
        host = self._named_host(request.group_id)
        group = host.shard.share.require_empty(request.group_id)
        topics = self._topics().topics
        states = group.states
        with_states = {*states.initialized, *states.initializing, *states.deleting}
        response = DeleteShareGroupOffsetsResponse()
        results: dict[Uuid, _DeletedTopic] = {}
        for topic in request.topics:
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
                _refuse(result, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                result.error_message = "The group has no offset of this topic."
        if not results:
            return response
        answer: Deferred[Message] = Deferred()

        def done(error: ErrorCode) -> None:
            for result in results.values():
                _refuse(result, error)
            answer.resolve(response)

        self._delete_states(host, request.group_id, list(results)).on_done(done)
        return answer

    def delete_group(self, group_id: str) -> Deferred[ErrorCode]:
        """DeleteGroups, for one share group."""
        result: Deferred[ErrorCode] = Deferred()
        try:
            host = self._host(group_id)
            group = host.shard.share.require_empty(group_id)
        except KafkaError as error:
            return Deferred.of(error.code)

        def emptied(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                result.resolve(error)
                return
            try:
                end = host.shard.share.end(group_id)
            except KafkaError as failure:
                result.resolve(failure.code)
                return
            offsets = host.shard.offsets.tombstones_of_group(group_id)
            self._submit(host, [*offsets, *end]).on_done(result.resolve)

        states = group.states
        topic_ids = [*states.initialized, *states.initializing, *sorted(states.deleting)]
        unique = list(dict.fromkeys(topic_ids))
        self._delete_states(host, group_id, unique, ends_group=True).on_done(emptied)
        return result

    def _delete_states(
        self,
        host: Host[GroupShard],
        group_id: str,
        topic_ids: list[Uuid],
        *,
        ends_group: bool = False,
    ) -> Deferred[ErrorCode]:
        """Delete all states of these topics; the first error, if there is one. ends_group: the
        group's own end says that they are gone. After an error the log says that the deletion was
        begun: it may be asked for again, and members that subscribe to the topics drop it.
        """
        share = host.shard.share
        group = share.groups.get(group_id)
        if group is None or not topic_ids:
            return Deferred.of(ErrorCode.NONE)
        places = self._places_of(group.states.initialized, group.states.initializing, topic_ids)
        result: Deferred[ErrorCode] = Deferred()
        deleting = frozenset(topic_ids)
        share.begin_deletion(group_id, deleting)
        result.on_done(lambda _: share.end_deletion(group_id, deleting))

        def deleted(errors: Mapping[TopicIdPartition, ErrorCode]) -> None:
            failed = next((code for code in errors.values() if code), ErrorCode.NONE)
            if failed is not ErrorCode.NONE or host.status is not HostStatus.ACTIVE:
                result.resolve(failed or ErrorCode.NOT_COORDINATOR)
                return
            records = [] if ends_group else share.deleted_states(group_id, topic_ids)
            self._submit(host, records).on_done(result.resolve)

        def announced(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                result.resolve(error)
            else:
                self._persister.delete(group_id, places).on_done(deleted)

        self._submit(host, share.delete_states(group_id, topic_ids)).on_done(announced)
        return result

    def _places_of(
        self, initialized: Assignment, initializing: Assignment, topic_ids: Iterable[Uuid]
    ) -> list[TopicIdPartition]:
        """All partitions of these topics that may have a state: also of a deletion that was begun
        before, whose partitions the log does not name.
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
        """Write; NONE once it is committed, or what a client is told."""
        if host.status is not HostStatus.ACTIVE:
            return Deferred.of(ErrorCode.NOT_COORDINATOR)
        outcome = self._runtime.submit(host, records)
        if not isinstance(outcome, Deferred):
            return Deferred.of(client_error(outcome))
        result: Deferred[ErrorCode] = Deferred()
        outcome.on_done(lambda error: result.resolve(client_error(error)))
        return result

    def _host(self, group_id: str) -> Host[GroupShard]:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return self._runtime.host(self._groups.partition_for(group_id))

    def _named_host(self, group_id: str) -> Host[GroupShard]:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group has no id.")
        return self._host(group_id)


def _after(outcome: ErrorCode | Deferred[ErrorCode], action: Callable[[ErrorCode], object]) -> None:
    if isinstance(outcome, Deferred):
        outcome.on_done(lambda error: (action(error), None)[1])
    else:
        action(outcome)


def _heartbeat_answer(
    response: ShareGroupHeartbeatResponse, error: ErrorCode
) -> ShareGroupHeartbeatResponse:
    if error is ErrorCode.NONE:
        return response
    return ShareGroupHeartbeatResponse(error_code=client_error(error))


def _refuse(result: _AlteredPartition | _DeletedTopic, error: ErrorCode) -> None:
    result.error_code = error
    result.error_message = None if error is ErrorCode.NONE else error.name


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
