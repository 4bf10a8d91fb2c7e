"""Members of consumer groups (KIP-848) that behave like clients: heartbeat, revoke, get partitions,
rejoin.
"""

from __future__ import annotations

from typing import Any

from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.model import Uuid
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.coordinator.simulation import Context, World

FENCED = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNRELEASED_INSTANCE_ID,
)


def ask(world: World, **fields: Any) -> ConsumerGroupHeartbeatResponse:
    """One heartbeat on its own; a refusal is its response."""
    request = ConsumerGroupHeartbeatRequest(**{"group_id": "c", **fields})
    try:
        answer = world.coordinator.consumer_heartbeat(Context(1), request).value
    except KafkaError as error:
        return ConsumerGroupHeartbeatResponse(error_code=error.code)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


class Consumer:
    """One client. owned: the partitions that it reads, as (topic id, partition). unsure: it missed
    a response or got an error, and sends a full heartbeat again, as clients do, to get a full
    response. stubborn: it revokes nothing.
    """

    def __init__(self, world: World, member_id: str, **fields: Any) -> None:
        self.world = world
        self.member_id = member_id
        self.fields = {"subscribed_topic_names": ["events"], **fields}
        self.epoch = 0
        self.owned: set[tuple[Uuid, int]] = set()
        self.assigned: set[tuple[Uuid, int]] = set()
        self.error = ErrorCode.NONE
        self.deaf = False
        self.unsure = False
        self.stubborn = False
        self.waiting = False

    @property
    def group_id(self) -> str:
        return str(self.fields.get("group_id", "c"))

    @property
    def group(self) -> ConsumerGroup:
        return self.world.shard().consumer.groups[self.group_id]

    def request(self) -> ConsumerGroupHeartbeatRequest:
        partitions: dict[Uuid, list[int]] = {}
        for topic_id, partition in sorted(self.owned):
            partitions.setdefault(topic_id, []).append(partition)
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.fields.get("instance_id"),
            topic_partitions=[
                ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=key, partitions=value)
                for key, value in partitions.items()
            ],
        )
        if self.epoch == 0 or self.unsure:
            for name, value in {"rebalance_timeout_ms": 30_000, **self.fields}.items():
                setattr(request, name, value)
        return request

    def poll(self) -> None:
        """A heartbeat, unless one is unanswered, and what a client does upon the answer (if it is
        not deaf).
        """
        if self.waiting:
            return
        try:
            answer = self.world.coordinator.consumer_heartbeat(Context(1), self.request())
        except KafkaError as error:
            answer = Deferred.of(ConsumerGroupHeartbeatResponse(error_code=error.code))
        self.waiting = not answer.done
        answer.on_done(self._heard)

    def _heard(self, answer: Any) -> None:
        self.waiting = False
        if self.deaf:
            self.unsure = True
            return
        self.error = ErrorCode(answer.error_code)
        self.unsure = self.error is not ErrorCode.NONE
        if self.error in FENCED:
            self.epoch = 0
            self.owned.clear()
            self.assigned.clear()
        if self.error is not ErrorCode.NONE:
            return
        assert answer.member_epoch >= self.epoch, "a member epoch went back"
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.assigned = {
                (topic.topic_id, partition)
                for topic in answer.assignment.topic_partitions
                for partition in topic.partitions
            }
        kept = self.owned if self.stubborn else set()
        self.owned = self.assigned | kept

    def leave(self, epoch: int = -1) -> None:
        request = self.request()
        request.member_epoch = epoch
        self.world.coordinator.consumer_heartbeat(Context(1), request)
        self.epoch = 0
        self.owned.clear()
        self.assigned.clear()


def settle(world: World, consumers: list[Consumer], *, rounds: int = 30) -> None:
    """Heartbeat until all members have reached their targets."""
    for _ in range(rounds):
        world.timers.advance(1_000)
        for consumer in consumers:
            consumer.poll()
        group_ids = {consumer.group_id for consumer in consumers}
        groups = world.shard().consumer.groups
        if all(groups[name].state() == "Stable" for name in group_ids if name in groups) and all(
            consumer.error is ErrorCode.NONE for consumer in consumers
        ):
            return
    raise AssertionError("the group did not settle")
