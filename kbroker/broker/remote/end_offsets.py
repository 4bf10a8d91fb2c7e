"""The ends of partitions, for the lag of share groups: of the replica that leads here, or from the
leader at another broker (`remote_end_offsets`). A group's coordinator need not have any replica of
what the group reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kbroker.coordinator.group.share.offset_descriptions import EndOffset, EndsFound
from kbroker.metadata.image import MetadataImage
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, gather
from kbroker.protocol.errors import ErrorCode


class EndOffsetLeaders(Protocol):
    """The port to the leaders at other brokers."""

    def ask(self, leader_id: int, partitions: Sequence[TopicPartition]) -> Deferred[EndsFound]:
        """Ask the leader of these partitions. Never fails."""
        ...


class RoutedEndOffsets:
    """`EndOffsets`. image: the metadata as clients see them. here: the end of a partition that is
    led here. others: None if there are no other brokers.
    """

    __slots__ = ("_here", "_image", "_node_id", "_others")

    def __init__(
        self,
        node_id: int,
        image: Callable[[], MetadataImage],
        here: Callable[[TopicPartition], EndOffset],
        others: EndOffsetLeaders | None,
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._here = here
        self._others = others

    def latest(self, partitions: Sequence[TopicPartition]) -> Deferred[EndsFound]:
        """See `EndOffsets`."""
        image = self._image()
        known: dict[TopicPartition, EndOffset] = {}
        elsewhere: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            found = image.partition(*partition)
            if found is None or not found.has_leader:
                known[partition] = EndOffset(ErrorCode.LEADER_NOT_AVAILABLE, -1)
            elif found.leader == self._node_id or self._others is None:
                known[partition] = self._here(partition)
            else:
                elsewhere.setdefault(found.leader, []).append(partition)
        if self._others is None or not elsewhere:
            return Deferred.of(known)
        answers = [self._others.ask(leader, asked) for leader, asked in elsewhere.items()]

        def merged(found: Sequence[EndsFound]) -> EndsFound:
            for ends in found:
                known.update(ends)
            return known

        return gather(answers).then(merged)
