"""Processing of OffsetCommit and TxnOffsetCommit, in two steps as in Kafka: first every topic and
partition is checked against the metadata, then the group checks the member (in `shard`). Only
partitions that passed the first step get the error of the second.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import chain
from typing import Final

from kbroker.coordinator.group.offsets.steps import OFFSETS_PER_STEP, TOPIC_ID_VERSION
from kbroker.coordinator.group.records import NO_EXPIRY, offset_commit_record
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.topics import TopicLookup
from kbroker.model import Uuid
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitRequest, OffsetCommitResponse
from kbroker.protocol.messages.stored.group_records import OffsetCommitValue

_CommitPartition = OffsetCommitRequest.OffsetCommitRequestPartition


_CommitResult = OffsetCommitResponse.OffsetCommitResponsePartition
_NONE: Final = ErrorCode.NONE
"""Looking up an enum member costs ten times as much."""


class ResolvedCommit:
    """A commit whose partitions are found and whose metadata is not too large; the group has not
    accepted it yet. `accepted`: the partitions by topic, as they are in
    `response`, where their error is still NONE. Of repeated partitions one is used.
    """

    __slots__ = ("_topics", "accepted", "latest", "response", "too_large", "unknown_topic")

    def __init__(self, unknown_topic: ErrorCode, topics: TopicLookup) -> None:
        self.unknown_topic = unknown_topic
        self._topics = topics.topics
        self.accepted: list[tuple[Uuid, list[_CommitResult]]] = []
        self.latest: dict[tuple[Uuid, int], tuple[str, _CommitPartition | None]] = {}
        """By topic id and partition: the topic's name, and the last accepted entry whose metadata
        is not too large.
        """
        self.too_large: list[_CommitResult] = []
        """Accepted entries whose metadata is too large; they get that error if the group accepts
        the commit.
        """
        self.response = OffsetCommitResponse()

    def refuse_deleted(self, topics: TopicLookup) -> None:
        """Reject partitions of topics that were deleted after the first step."""
        if topics.topics is self._topics:  # nothing has changed
            return
        known = topics.topics_by_id
        deleted = {topic_id for topic_id, _ in self.accepted if topic_id not in known}
        if not deleted:
            return
        for topic_id, results in self.accepted:
            if topic_id in deleted:
                for result in results:
                    result.error_code = self.unknown_topic
        self.accepted = [one for one in self.accepted if one[0] not in deleted]
        self.latest = {key: one for key, one in self.latest.items() if key[0] not in deleted}
        self.too_large = [one for one in self.too_large if one.error_code == _NONE]

    def refuse_large_metadata(self) -> None:
        """Set the error of entries with too large metadata, after the group has accepted the
        commit.
        """
        for result in self.too_large:
            result.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE

    def answer(self, error: ErrorCode) -> Generator[None, None, OffsetCommitResponse]:
        """The response, in steps. error: that of the group or of the write, for every accepted
        partition.
        """
        if error is not _NONE:
            accepted = chain.from_iterable(results for _, results in self.accepted)
            for count, result in enumerate(accepted, 1):
                if count % OFFSETS_PER_STEP == 0:
                    yield
                if result.error_code == _NONE:
                    result.error_code = error
        return self.response


def resolve_commit(
    request: OffsetCommitRequest,
    version: int,
    topics: TopicLookup,
    *,
    max_metadata_bytes: int,
    step_items: int = OFFSETS_PER_STEP,
) -> Generator[None, None, ResolvedCommit]:
    """The first step: check which partitions exist. Unknown ones get their error in the response at
    once and come first in it: topics with an unknown partition before the others, and in each topic
    the unknown partitions before the others. A generator that pauses after step_items topics and
    partitions, at most twice as many.
    """
    by_id = version >= TOPIC_ID_VERSION
    error = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    commit = ResolvedCommit(error, topics)
    latest = commit.latest
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
        existing: list[_CommitResult] = []
        for start in range(0, len(asked.partitions), step_items):
            part = asked.partitions[start : start + step_items]
            visited += len(part)
            if visited >= step_items:
                visited = 0
                yield
            if topic is None:
                results += [
                    _CommitResult(partition_index=one.partition_index, error_code=error)
                    for one in part
                ]
                continue
            topic_id, name, known = topic.topic_id, topic.name, topic.partitions
            for partition in part:
                index = partition.partition_index
                result = _CommitResult(partition_index=index)
                if index not in known:
                    result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    results.append(result)
                    continue
                existing.append(result)
                metadata = partition.committed_metadata
                if not metadata or len(metadata) <= max_metadata_bytes:
                    latest[topic_id, index] = name, partition
                else:
                    commit.too_large.append(result)
                    latest.setdefault((topic_id, index), (name, None))
        if existing and topic is not None:
            commit.accepted.append((topic.topic_id, existing))
        if topic is None or results:
            commit.response.topics.append(answer)
        else:
            without_error.append(answer)
        results += existing
    commit.response.topics += without_error
    return commit


def commit_records(
    commit: ResolvedCommit,
    group_id: str,
    *,
    retention_time_ms: int,
    now_ms: int,
) -> list[CoordinatorRecord]:
    """The second step, after the group has accepted the commit: one record per accepted partition
    whose metadata is not too large. Of repeated partitions the last offset is used, with the same
    effect as in Kafka, which writes all of them.
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
            # v1 has its own commit timestamp; no other version has the field
            commit_timestamp=now_ms
            if partition.commit_timestamp < 0
            else partition.commit_timestamp,
            expire_timestamp=expire_timestamp,
            topic_id=topic_id,
        )
        records.append(offset_commit_record(group_id, name, partition.partition_index, value))
    return records
