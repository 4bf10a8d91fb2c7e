"""Members of streams groups (KIP-1071) that behave like Kafka Streams: heartbeat, revoke, get
tasks, rejoin; and the topics its broker creates for them.
"""

from __future__ import annotations

from typing import Any

from kbroker.coordinator.group.streams.group import StreamsGroup
from kbroker.coordinator.group.streams.membership import StreamsHeartbeat
from kbroker.coordinator.group.streams.tasks import Task
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from tests.coordinator.simulation import Context, World

FENCED = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
)
_Request = StreamsGroupHeartbeatRequest


def topology(
    group_id: str = "s", source: str = "other", *, epoch: int = 0, stateful: bool = True
) -> _Request.Topology:
    """Subtopology 0 reads the source and writes a repartition topic, 1 reads that, with a state."""
    changelogs = [_Request.TopicInfo(name=f"{group_id}-log")] if stateful else []
    return _Request.Topology(
        epoch=epoch,
        subtopologies=[
            _Request.Subtopology(
                subtopology_id="0",
                source_topics=[source],
                repartition_sink_topics=[f"{group_id}-rep"],
            ),
            _Request.Subtopology(
                subtopology_id="1",
                repartition_source_topics=[_Request.TopicInfo(name=f"{group_id}-rep")],
                state_changelog_topics=changelogs,
            ),
        ],
    )


def task_ids(tasks: set[Task]) -> list[_Request.TaskIds]:
    partitions: dict[str, list[int]] = {}
    for name, partition in sorted(tasks):
        partitions.setdefault(name, []).append(partition)
    return [
        _Request.TaskIds(subtopology_id=key, partitions=value) for key, value in partitions.items()
    ]


def decide(world: World, request: _Request) -> Deferred[StreamsGroupHeartbeatResponse]:
    """One heartbeat; the topics it finds missing exist with the answer. Raises KafkaError."""

    def create(heartbeat: StreamsHeartbeat) -> StreamsGroupHeartbeatResponse:
        for topic in heartbeat.missing:
            if topic.name not in world.topics.topics:
                world.topics.add(topic.name, topic.num_partitions)
        return heartbeat.response

    return world.coordinator.streams_heartbeat(Context(0), request).then(create)


def ask(world: World, **fields: Any) -> StreamsGroupHeartbeatResponse:
    """One heartbeat on its own; a refusal is its response."""
    try:
        return decide(world, _Request(**{"group_id": "s", **fields})).value
    except KafkaError as error:
        return StreamsGroupHeartbeatResponse(error_code=error.code, error_message=error.message)


class StreamsThread:
    """One member. active, standby: the tasks it has. unsure: it missed a response or got an error,
    and sends a full heartbeat again. stubborn: it revokes nothing.
    """

    def __init__(self, world: World, member_id: str, process_id: str = "", **fields: Any) -> None:
        self.world = world
        self.member_id = member_id
        self.group_id = str(fields.pop("group_id", "s"))
        self.fields = {
            "topology": topology(self.group_id),
            "process_id": process_id or f"process of {member_id}",
            "rebalance_timeout_ms": 30_000,
            **fields,
        }
        self.epoch = 0
        self.active: set[Task] = set()
        self.standby: set[Task] = set()
        self.error = ErrorCode.NONE
        self.deaf = False
        self.unsure = False
        self.stubborn = False
        self.waiting = False
        self.status: list[int] = []

    @property
    def group(self) -> StreamsGroup:
        return self.world.shard().streams.groups[self.group_id]

    def request(self) -> _Request:
        request = _Request(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            active_tasks=task_ids(self.active),
            standby_tasks=task_ids(self.standby),
            warmup_tasks=[],
        )
        if self.epoch == 0 or self.unsure:
            for name, value in self.fields.items():
                if name != "topology" or self.epoch == 0:
                    setattr(request, name, value)
        return request

    def poll(self) -> None:
        """A heartbeat, unless one is unanswered, and what a client does upon the answer (if it is
        not deaf).
        """
        if self.waiting:
            return
        try:
            answer = decide(self.world, self.request())
        except KafkaError as error:
            self._heard(StreamsGroupHeartbeatResponse(error_code=error.code))
            return
        self.waiting = not answer.done
        answer.on_done(
            self._heard,
            lambda error: self._heard(StreamsGroupHeartbeatResponse(error_code=error.code)),
        )

    def _heard(self, answer: StreamsGroupHeartbeatResponse) -> None:
        self.waiting = False
        if self.deaf:
            self.unsure = True
            return
        self.error = ErrorCode(answer.error_code)
        self.unsure = self.error is not ErrorCode.NONE
        if self.error in FENCED:
            self.epoch = 0
            self.active, self.standby = set(), set()
        if self.error is not ErrorCode.NONE:
            return
        assert answer.member_epoch >= self.epoch, "a member epoch went back"
        self.epoch = answer.member_epoch
        self.status = [status.status_code for status in answer.status or ()]
        if answer.active_tasks is not None:
            kept_active, kept_standby = (
                (self.active, self.standby) if self.stubborn else (set(), set())
            )
            self.active = kept_active | _tasks(answer.active_tasks)
            self.standby = kept_standby | _tasks(answer.standby_tasks or ())

    def leave(self) -> None:
        request = self.request()
        request.member_epoch = -1
        request.topology = None
        decide(self.world, request)
        self.epoch = 0
        self.active, self.standby = set(), set()


def _tasks(told: Any) -> set[Task]:
    return {(one.subtopology_id, partition) for one in told for partition in one.partitions}


def settle(world: World, threads: list[StreamsThread], *, rounds: int = 40) -> None:
    """Heartbeat until all members have reached their targets."""
    for _ in range(rounds):
        world.timers.advance(1_000)
        for thread in threads:
            thread.poll()
        groups = world.shard().streams.groups
        group_ids = {thread.group_id for thread in threads}
        if all(groups[name].state() == "Stable" for name in group_ids) and all(
            thread.error is ErrorCode.NONE and not thread.unsure for thread in threads
        ):
            return
    raise AssertionError("the group did not settle")
