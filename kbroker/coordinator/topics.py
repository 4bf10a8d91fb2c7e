"""The topics of the cluster, with the attributes that groups and their offsets need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kbroker.model import ZERO_UUID, Uuid

if TYPE_CHECKING:
    from kbroker.protocol.messages.stored.group_records import OffsetCommitValue

PartitionRacks = tuple[tuple[str, ...], ...]
"""The racks of the replicas of each partition, by partition; empty if no broker has a rack."""


class ClusterTopic(Protocol):
    """One topic; metadata's TopicImage is one."""

    @property
    def name(self) -> str: ...
    @property
    def topic_id(self) -> Uuid: ...
    @property
    def partitions(self) -> Mapping[int, object]: ...


class TopicLookup(Protocol):
    """Topics by name and by id."""

    @property
    def topics(self) -> Mapping[str, ClusterTopic]: ...
    @property
    def topics_by_id(self) -> Mapping[Uuid, ClusterTopic]: ...


class ClusterTopics(TopicLookup, Protocol):
    """The topics of the cluster at one metadata offset; metadata's MetadataImage is one. After a
    change `topics` is another object, so topics are compared by identity.
    """

    @property
    def offset(self) -> int: ...
    def partition_racks(self, name: str) -> PartitionRacks: ...


class DeletedTopic(NamedTuple):
    """A topic that was just deleted."""

    name: str
    topic_id: Uuid

    def has(self, value: OffsetCommitValue) -> bool:
        """Whether an offset of this topic's name belongs to this topic, not to one created
        later.
        """
        return value.topic_id in (ZERO_UUID, self.topic_id)
