"""Share groups in a simulated world, and a persister that keeps their states in a dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kbroker.coordinator.group.share.group import ShareGroup
from kbroker.coordinator.group.share.offset_descriptions import EndOffset, EndsFound
from kbroker.coordinator.group.share_service import ShareGroupCoordinator
from kbroker.model import TopicIdPartition, TopicPartition
from kbroker.ports import Deferred, at_once
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.groups import DeleteGroupsRequest, DeleteGroupsResponse
from kbroker.protocol.messages.coordinators.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kbroker.protocol.share_partition_state import SharePlace, StateFound, StateSummary, StateWrite
from tests.coordinator.simulation import Context, World


class FakePersister:
    """States in a dict. errors: of the next requests; delayed: answers wait for `answer`."""

    def __init__(self) -> None:
        self.offsets: dict[SharePlace, int] = {}
        self.errors: list[ErrorCode] = []
        self.delayed = False
        self.waiting: list[Callable[[], None]] = []

    def initialize(
        self, group_id: str, state_epoch: int, start_offsets: Mapping[TopicIdPartition, int]
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        def make(place: TopicIdPartition) -> None:
            self.offsets[SharePlace(group_id, place)] = start_offsets[place]

        return self._each(list(start_offsets), make)

    def delete(
        self, group_id: str, places: Sequence[TopicIdPartition]
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        return self._each(places, lambda place: self.offsets.pop(SharePlace(group_id, place), None))

    def _each(
        self, places: Sequence[TopicIdPartition], action: Callable[[TopicIdPartition], object]
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        result: Deferred[Mapping[TopicIdPartition, ErrorCode]] = Deferred()
        error = self.errors.pop(0) if self.errors else ErrorCode.NONE

        def answer() -> None:
            if error is ErrorCode.NONE:
                for place in places:
                    action(place)
            result.resolve(dict.fromkeys(places, error))

        if self.delayed:
            self.waiting.append(answer)
        else:
            answer()
        return result

    def answer(self) -> None:
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            one()

    def summarize(
        self, group_id: str, places: Sequence[TopicIdPartition]
    ) -> Deferred[Mapping[TopicIdPartition, StateSummary]]:
        return Deferred.of(
            {
                place: StateSummary(
                    ErrorCode.NONE, self.offsets.get(SharePlace(group_id, place), -1), 0, 0
                )
                for place in places
            }
        )

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        raise NotImplementedError  # groups do not read states

    def write(self, key: SharePlace, write: StateWrite) -> Deferred[ErrorCode]:
        raise NotImplementedError  # nor write them


class FakeEnds:
    """`EndOffsets`: every partition ends at 100, unless it has an error. asked: partitions."""

    def __init__(self) -> None:
        self.asked: list[TopicPartition] = []
        self.errors: dict[TopicPartition, ErrorCode] = {}

    def latest(self, partitions: Sequence[TopicPartition]) -> Deferred[EndsFound]:
        self.asked += partitions
        return Deferred.of({each: self._end_of(each) for each in partitions})

    def _end_of(self, partition: TopicPartition) -> EndOffset:
        error = self.errors.get(partition, ErrorCode.NONE)
        return EndOffset(error, -1 if error else 100)


class Shares:
    """A world with share groups."""

    def __init__(self, seed: int = 1) -> None:
        self.take(World(seed=seed))

    def take(self, world: World) -> None:
        """Coordinate the groups of that world."""
        self.world = world
        self.persister = FakePersister()
        self.ends = FakeEnds()
        self.coordinator = ShareGroupCoordinator(
            self.world.coordinator,
            self.persister,
            timers=self.world.timers,
            topics=lambda: self.world.topics,
            end_offsets=self.ends,
        )
        world.delete_share_group = self.coordinator.delete_group

    def group(self, group_id: str = "s") -> ShareGroup:
        return self.world.shard().share.groups[group_id]

    def ask(self, **fields: Any) -> ShareGroupHeartbeatResponse:
        request = ShareGroupHeartbeatRequest(**{"group_id": "s", **fields})
        try:
            answer = self.coordinator.heartbeat(Context(1), request)
        except KafkaError as error:
            return ShareGroupHeartbeatResponse(error_code=error.code)
        if not answer.done:
            return ShareGroupHeartbeatResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)
        return answer.value

    def join(self, member_id: str, *topics: str) -> ShareGroupHeartbeatResponse:
        names = list(topics) or ["other"]
        return self.ask(member_id=member_id, member_epoch=0, subscribed_topic_names=names)


def partitions_of(response: ShareGroupHeartbeatResponse) -> list[int]:
    assert response.assignment is not None
    return [n for topic in response.assignment.topic_partitions for n in topic.partitions]


def settle(shares: Shares) -> None:
    shares.join("m")
    shares.world.timers.advance(1_000)
    shares.ask(member_id="m", member_epoch=2)


def begin_alter(shares: Shares, *topics: str) -> Deferred[AlterShareGroupOffsetsResponse]:
    """AlterShareGroupOffsets to 7 of the first three partitions of these topics, otherwise of
    `other`; the response may be pending. Raises KafkaError.
    """
    kind = AlterShareGroupOffsetsRequest
    three = [
        kind.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=7)
        for index in range(3)
    ]
    request = kind(
        group_id="s",
        topics=[
            kind.AlterShareGroupOffsetsRequestTopic(topic_name=name, partitions=three)
            for name in topics or ("other",)
        ],
    )
    begun = at_once(shares.coordinator.alter_offsets(Context(0), request))
    assert isinstance(begun, Deferred)
    return begun


def begin_delete(shares: Shares, name: str = "other") -> Deferred[DeleteShareGroupOffsetsResponse]:
    """DeleteShareGroupOffsets; the response may be pending. Raises KafkaError."""
    kind = DeleteShareGroupOffsetsRequest
    topic = kind.DeleteShareGroupOffsetsRequestTopic(topic_name=name)
    request = kind(group_id="s", topics=[topic])
    begun = at_once(shares.coordinator.delete_offsets(Context(0), request))
    assert isinstance(begun, Deferred)
    return begun


def begin_delete_group(shares: Shares) -> Deferred[DeleteGroupsResponse]:
    """DeleteGroups; the response may be pending."""
    return shares.world.coordinator.delete_groups(
        Context(2), DeleteGroupsRequest(groups_names=["s"])
    )
