"""Answers OffsetFetch from the offsets of a group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Final

from kbroker.coordinator.group.offsets.steps import OFFSETS_PER_STEP, TOPIC_ID_VERSION
from kbroker.coordinator.group.offsets.store import OffsetStore
from kbroker.coordinator.topics import TopicLookup
from kbroker.model import ZERO_UUID, Uuid
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.offsets import OffsetFetchRequest, OffsetFetchResponse
from kbroker.protocol.messages.stored.group_records import OffsetCommitValue

NO_OFFSET: Final = -1


OFFSET_BYTES: Final = 200
"""Memory of a topic or partition in the response to an OffsetFetch, besides its name or
metadata.
"""


_FetchTopic = OffsetFetchResponse.OffsetFetchResponseTopics


_FetchPartition = OffsetFetchResponse.OffsetFetchResponsePartitions


Charge = Callable[[int], bool]
"""Whether a response may take so many more bytes."""


def fetch_errors(indexes: Iterable[int], error: ErrorCode) -> list[_FetchPartition]:
    """Partitions without an offset and with this error."""
    return [
        _FetchPartition(
            partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=error
        )
        for index in indexes
    ]


def fetch_offsets(
    store: OffsetStore,
    asked: OffsetFetchRequest.OffsetFetchRequestGroup,
    *,
    version: int,
    require_stable: bool,
    topics: TopicLookup,
    charge: Charge,
) -> Generator[None, None, OffsetFetchResponse.OffsetFetchResponseGroup]:
    """The offsets of the named partitions, or all of the group's. A partition without an offset:
    offset -1, no error. Topics with an unknown id come last, independent of the order of the
    request.

    A generator that pauses after some hundred partitions, so the offsets of a group may be read at
    different times. A group that charge rejects gets POLICY_VIOLATION.
    """
    group_id = asked.group_id
    unstable = store.pending.in_group(group_id) if require_stable else ()
    fetch = _Fetch(store.of_group(group_id), unstable, topics, charge, version >= TOPIC_ID_VERSION)
    found = yield from fetch.all() if asked.topics is None else fetch.named(asked.topics)
    if found is None:
        return OffsetFetchResponse.OffsetFetchResponseGroup(
            group_id=group_id, error_code=ErrorCode.POLICY_VIOLATION
        )
    return OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group_id, topics=found)


class _Fetch:
    """The steps of one fetch. unstable: (topic, partition) of pending offsets; by_id: whether the
    request has topic ids. Both generators return None if the response became too large.
    """

    def __init__(
        self,
        offsets: Mapping[str, Mapping[int, OffsetCommitValue]],
        unstable: Collection[tuple[str, int]],
        topics: TopicLookup,
        charge: Charge,
        by_id: bool,
    ) -> None:
        self._offsets = offsets
        self._unstable = unstable
        self._topics = topics
        self._charge = charge
        self._by_id = by_id

    def all(self) -> Generator[None, None, list[_FetchTopic] | None]:
        """All offsets of the group; with topic ids only those of existing topics."""
        offsets, found, visited = self._offsets, [], 0
        for name in list(offsets):
            topic = self._topics.topics.get(name)
            if self._by_id and topic is None:
                continue
            answer = _FetchTopic(name=name, topic_id=topic.topic_id if topic else ZERO_UUID)
            values = list(offsets.get(name, {}).items())
            visited += 1
            for start in range(0, len(values) or 1, OFFSETS_PER_STEP):
                part = values[start : start + OFFSETS_PER_STEP]
                visited += len(part)
                if visited >= OFFSETS_PER_STEP:
                    visited = 0
                    yield
                results = self._found(name, part)
                if results is None:
                    return None
                answer.partitions += results
            found.append(answer)
        return found

    def named(
        self, topics: Sequence[OffsetFetchRequest.OffsetFetchRequestTopics]
    ) -> Generator[None, None, list[_FetchTopic] | None]:
        """The offsets of the named partitions."""
        found: list[_FetchTopic] = []
        unknown: list[_FetchTopic] = []
        by_id = self._by_id
        visited = 0
        for wanted in topics:
            name, indexes = wanted.name, wanted.partition_indexes
            topic_id = wanted.topic_id if by_id else None
            answer = _FetchTopic(name=name, topic_id=wanted.topic_id)
            if topic_id is not None:
                topic = self._topics.topics_by_id.get(topic_id)
                if topic is None:
                    if not self._charge(len(name) + OFFSET_BYTES * (1 + len(indexes))):
                        return None
                    for start in range(0, len(indexes) or 1, OFFSETS_PER_STEP):
                        part = indexes[start : start + OFFSETS_PER_STEP]
                        answer.partitions += fetch_errors(part, ErrorCode.UNKNOWN_TOPIC_ID)
                        yield
                    unknown.append(answer)
                    continue
                name = topic.name
            found.append(answer)
            value_of = self._offsets.get(name, {}).get
            visited += 1
            for start in range(0, len(indexes) or 1, OFFSETS_PER_STEP):
                part = indexes[start : start + OFFSETS_PER_STEP]
                visited += len(part)
                if visited >= OFFSETS_PER_STEP:
                    visited = 0
                    yield
                values = list(zip(part, map(value_of, part), strict=True))
                results = self._found(name, values, topic_id)
                if results is None:
                    return None
                answer.partitions += results
        return found + unknown

    def _found(
        self,
        topic: str,
        values: Sequence[tuple[int, OffsetCommitValue | None]],
        topic_id: Uuid | None = None,
    ) -> list[_FetchPartition] | None:
        """The results for some hundred partitions of a topic; None if charge rejects them.
        topic_id: only offsets with this id are used; None: all.
        """
        unstable = self._unstable
        size = len(topic) + OFFSET_BYTES * (1 + len(values))
        results: list[_FetchPartition] = []
        for index, value in values:
            if unstable and (topic, index) in unstable:
                results += fetch_errors([index], ErrorCode.UNSTABLE_OFFSET_COMMIT)
            elif value is None or not (topic_id is None or value.topic_id in (ZERO_UUID, topic_id)):
                results += fetch_errors([index], ErrorCode.NONE)
            else:
                size += len(value.metadata)
                results.append(
                    _FetchPartition(
                        partition_index=index,
                        committed_offset=value.offset,
                        committed_leader_epoch=value.leader_epoch,
                        metadata=value.metadata,
                    )
                )
        return results if self._charge(size) else None
