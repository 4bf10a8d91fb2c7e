"""The offsets of share groups (DescribeShareGroupOffsets, KIP-932): the states of partitions, and
their lag (KIP-1226), which needs the end offsets from the leaders of the partitions.

As in Kafka, a partition whose end offset cannot be determined has the error and nothing else; a
partition that is not initialized, or whose state has no delivery count, has no lag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from kbroker.coordinator.group.share.persister import GroupStatePersister
from kbroker.model import ZERO_UUID, TopicIdPartition, TopicPartition, Uuid
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.share_groups import DescribeShareGroupOffsetsResponse
from kbroker.protocol.share_partition_state import UNINITIALIZED, UNKNOWN_COUNT, StateSummary

NO_LAG: Final = -1

DescribedGroup = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
_Topic = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic
_Partition = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition


class EndOffset(NamedTuple):
    """The offset up to which consumers may read a partition, exclusive; -1 with an error."""

    error: ErrorCode
    offset: int


EndsFound = Mapping[TopicPartition, EndOffset]


class EndOffsets(Protocol):
    """The port to the leaders of partitions."""

    def latest(self, partitions: Sequence[TopicPartition]) -> Deferred[EndsFound]:
        """The end offset of each of these partitions; never fails."""
        ...


class WantedTopic(NamedTuple):
    """Partitions of a topic to describe. topic_id: zero for an unknown topic."""

    name: str
    topic_id: Uuid
    partitions: Sequence[int]


class OffsetDescriptions:
    """See the module."""

    __slots__ = ("_end_offsets", "_persister")

    def __init__(self, persister: GroupStatePersister, end_offsets: EndOffsets) -> None:
        self._persister = persister
        self._end_offsets = end_offsets

    def describe(self, group_id: str, wanted: Sequence[WantedTopic]) -> Deferred[DescribedGroup]:
        """Describe partitions of one group, with the states from their coordinators."""
        places = [
            (topic.topic_id, index)
            for topic in wanted
            for index in topic.partitions
            if topic.topic_id != ZERO_UUID
        ]
        if not places:
            return Deferred.of(_group(group_id, wanted, {}, {}))

        def summarized(
            summaries: Mapping[TopicIdPartition, StateSummary],
        ) -> Deferred[DescribedGroup]:
            with_lag = dict.fromkeys(
                TopicPartition(topic.name, index)
                for topic in wanted
                for index in topic.partitions
                if _has_lag(summaries.get((topic.topic_id, index)))
            )
            if not with_lag:
                return Deferred.of(_group(group_id, wanted, summaries, {}))
            ends = self._end_offsets.latest(list(with_lag))
            return ends.then(lambda found: _group(group_id, wanted, summaries, found))

        return self._persister.summarize(group_id, places).then(summarized)


def _has_lag(summary: StateSummary | None) -> bool:
    return (
        summary is not None
        and summary.error is ErrorCode.NONE
        and summary.start_offset != UNINITIALIZED
        and summary.delivery_complete_count != UNKNOWN_COUNT
    )


def _group(
    group_id: str,
    wanted: Sequence[WantedTopic],
    summaries: Mapping[TopicIdPartition, StateSummary],
    ends: EndsFound,
) -> DescribedGroup:
    return DescribedGroup(
        group_id=group_id,
        topics=[
            _Topic(
                topic_name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    _partition(
                        index,
                        summaries.get((topic.topic_id, index)),
                        ends.get(TopicPartition(topic.name, index)),
                    )
                    for index in topic.partitions
                ],
            )
            for topic in wanted
        ],
    )


def _partition(index: int, summary: StateSummary | None, end: EndOffset | None) -> _Partition:
    if summary is None or summary.error is not ErrorCode.NONE:
        return _Partition(
            partition_index=index,
            start_offset=UNINITIALIZED,
            error_code=ErrorCode.NONE if summary is None else summary.error,
        )
    lag = NO_LAG
    if end is not None:
        if end.error is not ErrorCode.NONE:
            return _Partition(
                partition_index=index, error_code=end.error, error_message=end.error.name
            )
        lag = end.offset - summary.start_offset - summary.delivery_complete_count
    return _Partition(
        partition_index=index,
        start_offset=summary.start_offset,
        leader_epoch=summary.leader_epoch,
        lag=lag,
    )
