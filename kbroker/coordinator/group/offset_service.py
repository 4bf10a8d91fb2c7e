"""Requests for committed offsets: OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete.

A request finds the shard of its group, which checks the member; offsets are written and read there.
Requests with many partitions are processed in steps: generators that yield None to pause, and a
Deferred to wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, Protocol

from kbroker.coordinator.group.offsets.commit import ResolvedCommit, commit_records, resolve_commit
from kbroker.coordinator.group.offsets.fetch import Charge, fetch_offsets
from kbroker.coordinator.group.offsets.pending import OffsetPlace
from kbroker.coordinator.group.offsets.steps import OFFSETS_PER_STEP
from kbroker.coordinator.group.records import offset_tombstone
from kbroker.coordinator.runtime.call_context import CallContext
from kbroker.coordinator.runtime.coordinator_log import Transactional, commit_error
from kbroker.coordinator.runtime.host import Host
from kbroker.coordinator.runtime.result import CoordinatorResult
from kbroker.coordinator.runtime.runtime import CoordinatorRuntime
from kbroker.coordinator.topics import ClusterTopics
from kbroker.ports import Deferred, Timers
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

if TYPE_CHECKING:
    from kbroker.coordinator.group.shard import GroupShard

GROUPS_PER_STEP: Final = 32
"""How many groups of an OffsetFetch are processed between two pauses."""
ITEMS_PER_STEP: Final = 256
"""How many topics and partitions of an OffsetDelete are processed between two pauses."""

_DeletedOffset = OffsetDeleteResponse.OffsetDeleteResponsePartition
_NONE: Final = ErrorCode.NONE
"""Looking up an enum member costs ten times as much."""


class OffsetSettings(Protocol):
    """The part of the broker's configuration that this service reads."""

    @property
    def offset_metadata_max_bytes(self) -> int: ...


class OffsetService:
    """Committed offsets: request in, response out. host_of: the shard of a group; raises
    KafkaError. topics: returns the cluster's current topics.
    """

    def __init__(
        self,
        config: OffsetSettings,
        runtime: CoordinatorRuntime[GroupShard],
        *,
        host_of: Callable[[str], Host[GroupShard]],
        timers: Timers,
        topics: Callable[[], ClusterTopics],
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._host = host_of
        self._timers = timers
        self._topics = topics

    def resolve_commit(
        self, request: OffsetCommitRequest, version: int, step_items: int = OFFSETS_PER_STEP
    ) -> Generator[None, None, ResolvedCommit]:
        """The first step of a commit: see `offsets.commit.resolve_commit`."""
        return resolve_commit(
            request,
            version,
            self._topics(),
            max_metadata_bytes=self._config.offset_metadata_max_bytes,
            step_items=step_items,
        )

    def commit(
        self, context: CallContext, request: OffsetCommitRequest, step_items: int = OFFSETS_PER_STEP
    ) -> Generator[Deferred[ErrorCode] | None, None, OffsetCommitResponse]:
        """OffsetCommit as steps, like `fetch`, but written as one batch. It is written without a
        pause if the request has at most step_items topics and partitions.
        """
        commit = yield from self.resolve_commit(request, context.api_version, step_items)
        commit.refuse_deleted(self._topics())
        if not commit.accepted:
            return commit.response
        outcome = self._commit(context.api_version, commit, request)
        if not outcome.done:
            yield outcome
        return (yield from commit.answer(outcome.value))

    def _commit(
        self, version: int, commit: ResolvedCommit, request: OffsetCommitRequest
    ) -> Deferred[ErrorCode]:
        group_id, member_id = request.group_id, request.member_id
        try:
            host = self._host(group_id)
        except KafkaError as error:
            return Deferred.of(error.code)
        refusal = host.shard.check_commit(
            group_id,
            member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            version,
            commit.latest,
        )
        if refusal is not _NONE:
            return Deferred.of(refusal)
        if member_id:
            host.shard.touch(group_id, member_id, self._timers.monotonic_ms())
        return self._write_commit(host, commit, request, None)

    def commit_in_transaction(
        self, commit: ResolvedCommit, request: OffsetCommitRequest, transaction: Transactional
    ) -> Deferred[ErrorCode]:
        """TxnOffsetCommit, after its first step, when the group's partition has just been added to
        the transaction: the offsets are pending until its end. The outcome is for
        `ResolvedCommit.answer`.
        """
        commit.refuse_deleted(self._topics())
        group_id = request.group_id
        try:
            host = self._host(group_id)
        except KafkaError as error:
            return Deferred.of(error.code)
        refusal = host.shard.check_transactional_commit(
            group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            commit.latest,
        )
        if refusal is not _NONE:
            return Deferred.of(refusal)
        host.shard.touch(group_id, request.member_id, self._timers.monotonic_ms())
        return self._write_commit(host, commit, request, transaction)

    def _write_commit(
        self,
        host: Host[GroupShard],
        commit: ResolvedCommit,
        request: OffsetCommitRequest,
        transaction: Transactional | None,
    ) -> Deferred[ErrorCode]:
        records = commit_records(
            commit,
            request.group_id,
            retention_time_ms=request.retention_time_ms if transaction is None else -1,
            now_ms=self._timers.now_ms(),
        )
        if not records:
            return Deferred.of(_NONE)
        return self._runtime.handle(
            host,
            CoordinatorResult(records, _NONE),
            transaction=transaction,
            error_of=commit_error,
        ).recover(lambda error: error.code)

    def fetch(
        self, request: OffsetFetchRequest, version: int, charge: Charge
    ) -> Generator[Deferred[ErrorCode] | None, None, OffsetFetchResponse]:
        """OffsetFetch in its v8+ form, `groups`, as steps: None is a pause, a Deferred must be
        waited for. The response has the records written until then, and is sent once they are
        committed. A repeated request for all offsets of a group is answered once. charge: whether
        the response may take so many more bytes.
        """
        response = OffsetFetchResponse()
        whole: set[tuple[str, str | None, int]] = set()
        uncommitted: list[tuple[int, Deferred[ErrorCode]]] = []
        for count, group in enumerate(request.groups, 1):
            if count % GROUPS_PER_STEP == 0:
                yield None
            if group.topics is None:
                key = (group.group_id, group.member_id, group.member_epoch)
                if key in whole:
                    continue
                whole.add(key)
            try:
                host = self._host(group.group_id)
                found = yield from self._fetch(host, group, version, request.require_stable, charge)
            except KafkaError as error:
                found = _refused_fetch(group.group_id, error.code)
            else:
                if host.uncommitted.writes:
                    place = len(response.groups)
                    uncommitted.append((place, self._runtime.when_committed(host)))
            response.groups.append(found)
        for place, committed in uncommitted:
            if not committed.done:
                yield committed
            if committed.value is not _NONE:
                group_id = response.groups[place].group_id
                response.groups[place] = _refused_fetch(group_id, committed.value)
        return response

    def _fetch(
        self,
        host: Host[GroupShard],
        group: OffsetFetchRequest.OffsetFetchRequestGroup,
        version: int,
        require_stable: bool,
        charge: Charge,
    ) -> Generator[None, None, OffsetFetchResponse.OffsetFetchResponseGroup]:
        refusal = host.shard.check_fetch(group.group_id, group.member_id, group.member_epoch)
        if refusal is not _NONE:
            return _refused_fetch(group.group_id, refusal)
        return (
            yield from fetch_offsets(
                host.shard.offsets,
                group,
                version=version,
                require_stable=require_stable,
                topics=self._topics(),
                charge=charge,
            )
        )

    def delete(
        self, request: OffsetDeleteRequest
    ) -> Generator[Deferred[ErrorCode] | None, None, OffsetDeleteResponse]:
        """OffsetDelete, as steps like those of `fetch`: deletes offsets of topics that the group
        does not read. Decided in one step, once for each partition. Raises KafkaError.
        """
        named: dict[tuple[str, int], ErrorCode] = {}  # existing partitions only
        count = 0
        for topic in request.topics:
            count += 1
            if count % ITEMS_PER_STEP == 0:
                yield None
            known = self._topics().topics.get(topic.name)
            for partition in topic.partitions:
                count += 1
                if count % ITEMS_PER_STEP == 0:
                    yield None
                if known is not None and partition.partition_index in known.partitions:
                    named[topic.name, partition.partition_index] = _NONE
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        host = self._host(request.group_id)
        subscribed = host.shard.subscribed_topics(request.group_id)
        records = []
        for name, index in named:
            if subscribed is None or name in subscribed:
                named[name, index] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif host.shard.offsets.has(OffsetPlace(request.group_id, name, index)):
                records.append(offset_tombstone(request.group_id, name, index))
        written = self._runtime.handle(host, CoordinatorResult(records, _NONE)).recover(
            lambda error: error.code
        )
        if not written.done:
            yield written
        if written.value is not _NONE:
            return OffsetDeleteResponse(error_code=written.value)
        response = OffsetDeleteResponse()
        for topic in request.topics:
            count += 1
            if count % ITEMS_PER_STEP == 0:
                yield None
            results: list[_DeletedOffset] = []
            missing: list[_DeletedOffset] = []
            for partition in topic.partitions:
                count += 1
                if count % ITEMS_PER_STEP == 0:
                    yield None
                index = partition.partition_index
                error = named.get((topic.name, index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                is_missing = error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                (missing if is_missing else results).append(
                    _DeletedOffset(partition_index=index, error_code=error)
                )
            response.topics.append(
                OffsetDeleteResponse.OffsetDeleteResponseTopic(
                    name=topic.name, partitions=missing + results
                )
            )
        return response


def _refused_fetch(group_id: str, error: ErrorCode) -> OffsetFetchResponse.OffsetFetchResponseGroup:
    return OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group_id, error_code=error)
