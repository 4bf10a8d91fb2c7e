"""Classic group members that behave like clients: join, assign if leader, heartbeat, rejoin when
told.
"""

from __future__ import annotations

from typing import Any

from kbroker.ports import Deferred
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from kbroker.protocol.messages.coordinators.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.coordinator.simulation import Context, World

PARTITION_COUNT = 12
REJOIN = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
LOST = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)


def subscription(topics: list[str]) -> bytes:
    return b"\0\1" + encode(ConsumerProtocolSubscription(topics=topics), 1)


def assignment(topic: str, partitions: list[int]) -> bytes:
    value = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=partitions)
        ]
    )
    return b"\0\1" + encode(value, 1)


def assigned(data: bytes) -> list[int]:
    if not data:
        return []
    value, _ = decode(ConsumerProtocolAssignment, data, 1, 2)
    return [index for entry in value.assigned_partitions for index in entry.partitions]


class ClientMember:
    """One client. `errors` keeps what was answered, newest last; `joining` is true while it
    waits.
    """

    def __init__(
        self,
        world: World,
        name: str,
        *,
        group: str = "g",
        version: int = 9,
        instance_id: str | None = None,
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 30_000,
        protocols: tuple[str, ...] = ("range", "roundrobin"),
    ) -> None:
        self.world = world
        self.name = name
        self.group = group
        self.version = version
        self.instance_id = instance_id
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.topics = ["events"]
        self.member_id = ""
        self.generation = -1
        self.leader = ""
        self.partitions: list[int] | None = None
        self.errors: list[ErrorCode] = []
        self.generations: list[int] = []
        self.joining = False
        self.crashed = False
        self.auto_sync = True
        self.last_join: JoinGroupResponse | None = None

    def _when(self, answer: Deferred[Message], callback: object) -> None:
        assert callable(callback)
        if answer.done:
            callback(answer.value)
        else:
            answer.on_done(lambda message: None if self.crashed else callback(message))

    def join(self) -> None:
        self.joining = True
        self.partitions = None
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(
                    name=name, metadata=subscription(self.topics)
                )
                for name in self.protocols
            ],
        )
        context = Context(self.version, client_id=self.name)
        self._when(self.world.coordinator.join_group(context, request), self._joined)

    def _joined(self, response: JoinGroupResponse) -> None:
        error = ErrorCode(response.error_code)
        self.errors.append(error)
        self.joining = False
        self.last_join = response
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self.join()
        elif error is ErrorCode.NONE:
            self.member_id = response.member_id
            self.generation = response.generation_id
            self.generations.append(response.generation_id)
            self.leader = response.leader
            if self.auto_sync:
                self.sync(response)
        elif error in LOST:
            self.member_id = ""

    def sync(self, response: JoinGroupResponse) -> None:
        assignments = []
        if response.leader == response.member_id and not response.skip_assignment:
            size = len(response.members)
            for index, member in enumerate(response.members):
                share = list(range(index, PARTITION_COUNT, size))
                assignments.append(
                    SyncGroupRequest.SyncGroupRequestAssignment(
                        member_id=member.member_id, assignment=assignment("events", share)
                    )
                )
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name=response.protocol_name,
            assignments=assignments,
        )
        self._when(self.world.coordinator.sync_group(Context(5), request), self._synced)

    def dawdle(self) -> None:
        """From now on it does not ask for its part when it has joined; or it does again."""
        self.auto_sync = not self.auto_sync
        self.hurry()

    def hurry(self) -> None:
        """It asks at last, if it has joined and may."""
        joined = self.last_join
        has_joined = self.errors[-1:] == [ErrorCode.NONE] and not self.joining
        if self.auto_sync and joined is not None and has_joined and self.partitions is None:
            self.sync(joined)

    def _synced(self, response: SyncGroupResponse) -> None:
        error = ErrorCode(response.error_code)
        self.errors.append(error)
        if error is ErrorCode.NONE:
            self.partitions = assigned(bytes(response.assignment))
        elif error in LOST:
            self.member_id = ""

    def heartbeat(self) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        response = self.world.coordinator.heartbeat(Context(4), request)
        return ErrorCode(response.error_code)

    def poll(self) -> None:
        """A heartbeat, and what a client does upon it."""
        if self.joining or self.crashed:
            return
        if not self.member_id or self.generation < 0 or self.errors[-1:] != [ErrorCode.NONE]:
            self.join()
            return
        error = self.heartbeat()
        if error in LOST:
            self.member_id = ""
        if error in (*LOST, *REJOIN):
            self.join()

    def leave(self) -> ErrorCode:
        identity = LeaveGroupRequest.MemberIdentity(
            member_id=self.member_id, group_instance_id=self.instance_id
        )
        request = LeaveGroupRequest(group_id=self.group, members=[identity])
        response: Any = self.world.coordinator.leave_group(Context(5), request)
        self.member_id, self.generation, self.partitions = "", -1, None
        if not response.done:
            return ErrorCode.NONE  # the answer comes behind that which is given now
        response = response.value
        if response.error_code:
            return ErrorCode(response.error_code)
        return ErrorCode(response.members[0].error_code)

    def crash(self) -> None:
        """Send and receive nothing any more."""
        self.crashed = True
        self.partitions = None


def settle(world: World, members: list[ClientMember], *, rounds: int = 60) -> None:
    """Advance time while all members poll, until all own partitions of one generation."""
    for _ in range(rounds):
        world.timers.advance(1_000)
        for member in members:
            member.poll()
        alive = [member for member in members if not member.crashed]
        if (
            all(member.partitions is not None for member in alive)
            and len({member.generation for member in alive}) <= 1
            and all(member.heartbeat() is ErrorCode.NONE for member in alive)
        ):
            return
    raise AssertionError("the group did not settle")
