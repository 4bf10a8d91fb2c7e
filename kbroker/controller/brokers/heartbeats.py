"""The state of brokers at the active controller that is in no record, and the state that a
heartbeat leads to. Kafka: BrokerHeartbeatManager.

    FENCED -> UNFENCED                  it has caught up with its registration
    FENCED -> SHUTDOWN_NOW              it wants to shut down
    UNFENCED -> FENCED                  it wants to be fenced
    UNFENCED -> CONTROLLED_SHUTDOWN     it wants to shut down, and leads partitions
    UNFENCED -> SHUTDOWN_NOW            it wants to shut down, and leads none, or to be fenced too
    CONTROLLED_SHUTDOWN -> SHUTDOWN_NOW it leads none, and all active brokers know that

Nothing here is written: a new active controller starts anew and learns from the next heartbeats.
What a heartbeat writes is decided in `broker_heartbeat`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final

import msgspec

from kbroker.metadata.image import BrokerRegistration
from kbroker.model import InvariantError

UNKNOWN_OFFSET: Final = -1
NO_ACTIVE_BROKERS: Final = (1 << 63) - 1
"""The lowest offset of no brokers."""


class BrokerControlState(Enum):
    """Kafka's name. SHUTDOWN_NOW: fenced, and the broker may stop."""

    FENCED = auto()
    UNFENCED = auto()
    CONTROLLED_SHUTDOWN = auto()
    SHUTDOWN_NOW = auto()

    @property
    def is_fenced(self) -> bool:
        """Whether the broker is fenced in this state."""
        return self in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW)


class BrokerStatus(msgspec.Struct):
    """One registered broker. metadata_offset: the newest it reported.

    registration_offset: of its registration record, or later. controlled_shutdown_offset: of the
    records that moved its leaderships away; UNKNOWN_OFFSET unless it shuts down.
    """

    is_fenced: bool
    registration_offset: int
    metadata_offset: int = UNKNOWN_OFFSET
    controlled_shutdown_offset: int = UNKNOWN_OFFSET

    @property
    def is_shutting_down(self) -> bool:
        return self.controlled_shutdown_offset != UNKNOWN_OFFSET

    @property
    def state(self) -> BrokerControlState:
        """The present one."""
        if self.is_shutting_down:
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.FENCED if self.is_fenced else BrokerControlState.UNFENCED


class Wishes(msgspec.Struct, frozen=True):
    """The wishes of a heartbeat, and the newest offset of the broker (BrokerHeartbeatRequest)."""

    want_fence: bool
    want_shut_down: bool
    metadata_offset: int


class BrokerHeartbeats:
    """All registered brokers."""

    __slots__ = ("_brokers",)

    def __init__(self) -> None:
        self._brokers: dict[int, BrokerStatus] = {}

    def follow(
        self,
        old: Mapping[int, BrokerRegistration],
        new: Mapping[int, BrokerRegistration],
        *,
        offset: int,
    ) -> None:
        """Take over the change of the registrations. offset: of the records that changed them."""
        if new is old:
            return
        for broker_id in old.keys() - new.keys():
            self._brokers.pop(broker_id, None)
        for broker_id, broker in new.items():
            before = old.get(broker_id)
            if before is broker:
                continue
            status = self._brokers.get(broker_id)
            if status is None or before is None or before.epoch != broker.epoch:
                self._brokers[broker_id] = BrokerStatus(broker.fenced, offset)
            else:
                self._set_fenced(status, broker.fenced)

    def status(self, broker_id: int) -> BrokerStatus:
        """That of a registered broker."""
        status = self._brokers.get(broker_id)
        if status is None:
            raise InvariantError(f"broker {broker_id} is not registered")
        return status

    def touch(self, broker_id: int, *, is_fenced: bool, metadata_offset: int) -> None:
        """A heartbeat was decided on: the broker's state after it, and the offset it reported."""
        status = self.status(broker_id)
        self._set_fenced(status, is_fenced)
        status.metadata_offset = metadata_offset

    def begin_controlled_shutdown(self, broker_id: int, offset: int) -> None:
        """The leaderships of the broker move by records up to that offset. Only the first time
        counts: later heartbeats write nothing that others would have to wait for.
        """
        status = self.status(broker_id)
        if status.is_fenced:
            raise InvariantError(f"broker {broker_id} is fenced and begins a controlled shutdown")
        if not status.is_shutting_down:
            status.controlled_shutdown_offset = offset

    def lowest_active_offset(self) -> int:
        """The lowest metadata offset of the brokers that are neither fenced nor shutting down."""
        return min(
            (
                status.metadata_offset
                for status in self._brokers.values()
                if status.state is BrokerControlState.UNFENCED
            ),
            default=NO_ACTIVE_BROKERS,
        )

    def next_state(
        self, broker_id: int, wishes: Wishes, *, has_leaderships: Callable[[], bool]
    ) -> BrokerControlState:
        """The state that a heartbeat leads to. has_leaderships: whether the broker leads any
        partition.
        """
        status = self.status(broker_id)
        match status.state:
            case BrokerControlState.FENCED:
                if wishes.want_shut_down:
                    return BrokerControlState.SHUTDOWN_NOW
                has_caught_up = wishes.metadata_offset >= status.registration_offset
                if not wishes.want_fence and has_caught_up:
                    return BrokerControlState.UNFENCED
            case BrokerControlState.UNFENCED:
                if wishes.want_shut_down:
                    if not wishes.want_fence and has_leaderships():
                        return BrokerControlState.CONTROLLED_SHUTDOWN
                    return BrokerControlState.SHUTDOWN_NOW
                if wishes.want_fence:
                    return BrokerControlState.FENCED
            case _:
                moved = status.controlled_shutdown_offset
                if not has_leaderships() and moved <= self.lowest_active_offset():
                    return BrokerControlState.SHUTDOWN_NOW
        return status.state

    @staticmethod
    def _set_fenced(status: BrokerStatus, is_fenced: bool) -> None:
        """A broker that is fenced is in no controlled shutdown any more: its next heartbeat that
        wants to shut down ends it at once.
        """
        status.is_fenced = is_fenced
        if is_fenced:
            status.controlled_shutdown_offset = UNKNOWN_OFFSET
