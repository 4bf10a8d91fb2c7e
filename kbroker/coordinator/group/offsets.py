"""Committed offsets: what is kept, how a commit and a fetch are understood, when an offset has had
its time.

A commit is checked in two steps, as Kafka does: first every topic and partition against the
metadata, then the group (in `group_shard`); only what passed the first step gets the group's error.
Offsets committed inside a transaction are in `pending_offsets` until its marker. A topic's id is
stored with each offset and guards against a topic of the same name that was created later
(KIP-848).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from kbroker.coordinator.group.pending_offsets import OffsetPlace, PendingOffsets
from kbroker.coordinator.group.records import NO_EXPIRY, offset_commit_record, offset_tombstone
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.model import ZERO_UUID, Uuid
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.group_records import OffsetCommitKey, OffsetCommitValue
from kbroker.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

TOPIC_ID_VERSION: Final = 10
"""From this version on OffsetCommit and OffsetFetch name topics by id."""
NO_OFFSET: Final = -1
OFFSETS_PER_STEP: Final = 500
"""Topics and partitions of a fetch or a commit between two pauses."""
OFFSET_BYTES: Final = 200
"""Memory of a partition in the answer to a fetch, besides its metadata."""

_CommitPartition = OffsetCommitRequest.OffsetCommitRequestPartition
_CommitResult = OffsetCommitResponse.OffsetCommitResponsePartition
_FetchTopic = OffsetFetchResponse.OffsetFetchResponseTopics
_FetchPartition = OffsetFetchResponse.OffsetFetchResponsePartitions

Charge = Callable[[int], bool]
"""Whether an answer may have so many bytes more."""
GroupOffsets = dict[str, dict[int, OffsetCommitValue]]
"""Of one group: topic, partition, what was committed."""


class Topic(Protocol):
    """What offsets need to know of a topic; metadata's TopicImage is one."""

    @property
    def name(self) -> str: ...
    @property
    def topic_id(self) -> Uuid: ...
    @property
    def partitions(self) -> Mapping[int, object]: ...


class Topics(Protocol):
    """What offsets need to know of the cluster; metadata's MetadataImage is one."""

    @property
    def topics(self) -> Mapping[str, Topic]: ...
    @property
    def topics_by_id(self) -> Mapping[Uuid, Topic]: ...


class DeletedTopic(NamedTuple):
    """A topic that the cluster had until now."""

    name: str
    topic_id: Uuid

    def has(self, value: OffsetCommitValue) -> bool:
        """Whether an offset of this topic's name is one of this topic, not of one created later."""
        return value.topic_id in (ZERO_UUID, self.topic_id)


class Commit:
    """A commit after its first step: `accepted` partitions, each with its place in `response`,
    still NONE there, and which of them counts where a partition is named again.
    """

    __slots__ = ("accepted", "latest", "response", "too_large", "unknown_topic")

    def __init__(self, unknown_topic: ErrorCode) -> None:
        self.unknown_topic = unknown_topic
        self.accepted: list[tuple[Uuid, _CommitResult]] = []
        self.latest: dict[tuple[Uuid, int], tuple[str, _CommitPartition | None]] = {}
        """By topic id and partition: the topic's name, and the last of the accepted ones whose
        metadata is not too large.
        """
        self.too_large: list[_CommitResult] = []
        """Accepted ones whose metadata is; they are told if the group agrees."""
        self.response = OffsetCommitResponse()

    def refuse_deleted(self, topics: Topics) -> None:
        """Refuse partitions of topics that were deleted after the first step."""
        known = topics.topics_by_id
        deleted = {topic_id for topic_id, _ in self.latest if topic_id not in known}
        if not deleted:
            return
        for topic_id, result in self.accepted:
            if topic_id in deleted:
                result.error_code = self.unknown_topic
        self.accepted = [one for one in self.accepted if one[0] not in deleted]
        self.latest = {key: one for key, one in self.latest.items() if key[0] not in deleted}
        self.too_large = [one for one in self.too_large if one.error_code == ErrorCode.NONE]

    def refuse_large_metadata(self) -> None:
        """Once the group agreed."""
        for result in self.too_large:
            result.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE

    def answer(self, error: ErrorCode) -> Generator[None, None, OffsetCommitResponse]:
        """The response, in steps. error: of the group or of the write; every accepted partition
        gets it.
        """
        if error is not ErrorCode.NONE:
            for count, (_, result) in enumerate(self.accepted, 1):
                if count % OFFSETS_PER_STEP == 0:
                    yield
                if result.error_code == ErrorCode.NONE:
                    result.error_code = error
        return self.response


def resolve_commit(
    request: OffsetCommitRequest,
    version: int,
    topics: Topics,
    *,
    max_metadata_bytes: int,
    step_items: int = OFFSETS_PER_STEP,
) -> Generator[None, None, Commit]:
    """The first step: which partitions exist. Unknown ones get their error in the response at once,
    and stand first in it: topics with one before the others, in each topic they before the others.
    A generator that pauses after step_items topics and partitions.
    """
    by_id = version >= TOPIC_ID_VERSION
    error = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    commit = Commit(error)
    accepted, latest = commit.accepted, commit.latest
    without_error: list[OffsetCommitResponse.OffsetCommitResponseTopic] = []
    visited = 0
    for asked in request.topics:
        visited += 1
        if visited >= step_items:
            visited = 0
            yield
        topic = topics.topics_by_id.get(asked.topic_id) if by_id else topics.topics.get(asked.name)
        results: list[_CommitResult] = []
        answer = OffsetCommitResponse.OffsetCommitResponseTopic(
            name=asked.name, topic_id=asked.topic_id, partitions=results
        )
        if topic is None:
            commit.response.topics.append(answer)
        known: Mapping[int, object] = {} if topic is None else topic.partitions
        existing: list[_CommitResult] = []
        for partition in asked.partitions:
            visited += 1
            if visited >= step_items:
                visited = 0
                yield
            index = partition.partition_index
            result = _CommitResult(partition_index=index)
            if topic is None:
                results.append(result)
                result.error_code = error
                continue
            if index not in known:
                results.append(result)
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            existing.append(result)
            key = topic.topic_id, index
            accepted.append((topic.topic_id, result))
            if len(partition.committed_metadata or "") <= max_metadata_bytes:
                latest[key] = topic.name, partition
            else:
                commit.too_large.append(result)
                latest.setdefault(key, (topic.name, None))
        if topic is not None:
            (commit.response.topics if results else without_error).append(answer)
            results += existing
    commit.response.topics += without_error
    return commit


def commit_records(
    commit: Commit,
    group_id: str,
    *,
    retention_time_ms: int,
    now_ms: int,
) -> list[CoordinatorRecord]:
    """The second step, once the group agreed: a record per accepted partition whose metadata is not
    too large. Of a partition that is named again the last offset counts, as it does in Kafka, which
    writes all of them.
    """
    commit.refuse_large_metadata()
    expire_timestamp = NO_EXPIRY if retention_time_ms < 0 else now_ms + retention_time_ms
    records: list[CoordinatorRecord] = []
    for (topic_id, _), (name, partition) in commit.latest.items():
        if partition is None:
            continue
        value = OffsetCommitValue(
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.committed_metadata or "",
            # v1 brings a time of its own; no other version has the field
            commit_timestamp=now_ms
            if partition.commit_timestamp < 0
            else partition.commit_timestamp,
            expire_timestamp=expire_timestamp,
            topic_id=topic_id,
        )
        records.append(offset_commit_record(group_id, name, partition.partition_index, value))
    return records


class OffsetStore:
    """The committed and the pending offsets of one shard. Changed by replay only."""

    __slots__ = ("_offsets", "pending")

    def __init__(self) -> None:
        self._offsets: dict[str, GroupOffsets] = {}
        self.pending = PendingOffsets()

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Apply one record. A tombstone removes pending offsets too."""
        if value is not None:
            if self.pending:
                self.pending.supersede(OffsetPlace.of(key))
            self._put(key.group, key.topic, key.partition, value)
            return
        if self.pending:
            self.pending.remove(OffsetPlace.of(key))
        topics = self._offsets.get(key.group, {})
        partitions = topics.get(key.topic, {})
        if partitions.pop(key.partition, None) is not None and not partitions:
            del topics[key.topic]
            if not topics:
                del self._offsets[key.group]

    def _put(self, group_id: str, topic: str, partition: int, value: OffsetCommitValue) -> None:
        topics = self._offsets.get(group_id)
        if topics is None:
            topics = self._offsets[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        partitions[partition] = value

    def replay_pending(
        self, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue | None
    ) -> None:
        """Apply one record of a transactional batch: the offset is pending until the marker. A
        tombstone counts at once, as in Kafka.
        """
        if value is None:
            self.replay(key, None)
        else:
            self.pending.add(producer_id, OffsetPlace.of(key), value)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Apply a marker."""
        for place, value in self.pending.end(producer_id, commit=commit):
            self._put(*place, value)

    def of_group(self, group_id: str) -> Mapping[str, Mapping[int, OffsetCommitValue]]:
        """Topic, partition, offset of one group."""
        return self._offsets.get(group_id, {})

    def groups(self) -> list[str]:
        """Groups with at least one committed offset."""
        return sorted(self._offsets)

    def has_group(self, group_id: str) -> bool:
        """Whether the group has an offset, committed or pending."""
        return group_id in self._offsets or bool(self.pending.in_group(group_id))

    def has(self, place: OffsetPlace) -> bool:
        """Whether there is an offset, committed or pending."""
        group_id, topic, partition = place
        if partition in self.of_group(group_id).get(topic, {}):
            return True
        return (topic, partition) in self.pending.in_group(group_id)

    def tombstones_of_group(self, group_id: str) -> Iterator[CoordinatorRecord]:
        """The tombstones of all offsets of a group, pending ones included."""
        offsets = self.of_group(group_id)
        for topic, partitions in offsets.items():
            for partition in partitions:
                yield offset_tombstone(group_id, topic, partition)
        for topic, partition in sorted(self.pending.in_group(group_id)):
            if partition not in offsets.get(topic, {}):
                yield offset_tombstone(group_id, topic, partition)

    def tombstones_of_topics(self, topics: Iterable[DeletedTopic]) -> Iterator[CoordinatorRecord]:
        """The tombstones of all offsets of deleted topics, pending ones included."""
        deleted = {topic.name: topic for topic in topics}
        places: set[OffsetPlace] = set()
        for group_id, offsets in self._offsets.items():
            for name, topic in deleted.items():
                places.update(
                    OffsetPlace(group_id, name, partition)
                    for partition, value in offsets.get(name, {}).items()
                    if topic.has(value)
                )
        for place, values in self.pending.places():
            of_place = deleted.get(place.topic)
            if of_place is not None and any(map(of_place.has, values)):
                places.add(place)
        for place in sorted(places):
            yield offset_tombstone(*place)

    def fetch(
        self,
        asked: OffsetFetchRequest.OffsetFetchRequestGroup,
        *,
        version: int,
        require_stable: bool,
        topics: Topics,
        charge: Charge,
    ) -> Generator[None, None, OffsetFetchResponse.OffsetFetchResponseGroup]:
        """The offsets asked for, or all of the group's. A partition without one: offset -1, no
        error. Topics with an unknown id stand last, whatever the order of the request.

        A generator that pauses after some hundred partitions, so the offsets of a group may be of
        different moments. A group that charge refuses is answered POLICY_VIOLATION.
        """
        response = OffsetFetchResponse.OffsetFetchResponseGroup(group_id=asked.group_id)
        refused = OffsetFetchResponse.OffsetFetchResponseGroup(
            group_id=asked.group_id, error_code=ErrorCode.POLICY_VIOLATION
        )
        visited = 0
        offsets = self.of_group(asked.group_id)
        unstable = self.pending.in_group(asked.group_id) if require_stable else ()
        by_id = version >= TOPIC_ID_VERSION
        if asked.topics is None:
            for name in list(offsets):
                topic = topics.topics.get(name)
                if by_id and topic is None:
                    continue
                partitions = offsets.get(name, {})
                visited += 1 + len(partitions)
                if visited >= OFFSETS_PER_STEP:
                    visited = 0
                    yield
                if not charge(_answer_bytes(name, partitions.values(), len(partitions))):
                    return refused
                answer = _FetchTopic(name=name, topic_id=topic.topic_id if topic else ZERO_UUID)
                for index, value in partitions.items():
                    answer.partitions.append(_found(index, value, (name, index) in unstable))
                response.topics.append(answer)
            return response
        unknown: list[_FetchTopic] = []
        for wanted in asked.topics:
            indexes = wanted.partition_indexes
            visited += 1
            if visited >= OFFSETS_PER_STEP:
                visited = 0
                yield
            answer = _FetchTopic(name=wanted.name, topic_id=wanted.topic_id)
            name = wanted.name
            if by_id:
                topic = topics.topics_by_id.get(wanted.topic_id)
                if topic is None:
                    if not charge(_answer_bytes(name, (), len(indexes))):
                        return refused
                    for start in range(0, len(indexes), OFFSETS_PER_STEP):
                        part = indexes[start : start + OFFSETS_PER_STEP]
                        answer.partitions += fetch_errors(part, ErrorCode.UNKNOWN_TOPIC_ID)
                        yield
                    unknown.append(answer)
                    continue
                name = topic.name
            response.topics.append(answer)
            known = offsets.get(name, {})
            values = [known[index] for index in indexes if index in known]
            if not charge(_answer_bytes(name, values, len(indexes))):
                return refused
            for index in indexes:
                visited += 1
                if visited >= OFFSETS_PER_STEP:
                    visited = 0
                    yield
                value_or_none = known.get(index)
                if value_or_none is not None and by_id:
                    stored_id = value_or_none.topic_id
                    if stored_id != ZERO_UUID and stored_id != wanted.topic_id:
                        value_or_none = None
                answer.partitions.append(_found(index, value_or_none, (name, index) in unstable))
        response.topics += unknown
        return response


def _answer_bytes(name: str, values: Iterable[OffsetCommitValue], count: int) -> int:
    """About how much memory the answer for a topic has. count: of partitions."""
    return len(name) + OFFSET_BYTES * (1 + count) + sum(len(value.metadata) for value in values)


def fetch_errors(indexes: Iterable[int], error: ErrorCode) -> list[_FetchPartition]:
    """Partitions without an offset and with this error."""
    return [
        _FetchPartition(
            partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=error
        )
        for index in indexes
    ]


def _found(index: int, value: OffsetCommitValue | None, unstable: bool) -> _FetchPartition:
    if unstable:
        return fetch_errors([index], ErrorCode.UNSTABLE_OFFSET_COMMIT)[0]
    if value is None:
        return fetch_errors([index], ErrorCode.NONE)[0]
    return _FetchPartition(
        partition_index=index,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )
