"""The life of this broker in its cluster (Kafka's BrokerLifecycleManager): register, heartbeat,
unfence, controlled shutdown.

`LifecycleCore` decides what to send to the controller and when; `BrokerLifecycle` is its loop over
the ports `BrokerChannel` and `Timers`. The controller's side is
`controller/brokers/broker_heartbeat`.

    NOT_RUNNING -> STARTING                      start
    STARTING -> RECOVERY                         registered, and its metadata has the registration
    RECOVERY -> RUNNING                          a heartbeat unfenced the broker
    RUNNING -> PENDING_CONTROLLED_SHUTDOWN       shut_down
    PENDING_CONTROLLED_SHUTDOWN -> SHUTTING_DOWN the controller has fenced the broker, or has
                                                 not answered for a session timeout
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, assert_never

import msgspec

from kbroker.broker.controller_channel import BrokerChannel, BrokerRegistrationData
from kbroker.controller.brokers.broker_heartbeat import HeartbeatReply
from kbroker.metadata.image import MetadataImage
from kbroker.model import NO_BROKER_EPOCH, Uuid
from kbroker.ports import Deferred, TimerHandle, Timers, broker_stopping
from kbroker.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

FIRST_RETRY_MS: Final = 100
"""Doubled with each failure in a row, up to the heartbeat interval."""

CATCH_UP_MS: Final = 10
LEAVING_MS: Final = 50
"""The first pauses before the controller is asked whether this broker has caught up, and whether it
may stop. They double up to the heartbeat interval; Kafka repeats the first and makes one of the
second.
"""


_REPLACED: Final = (
    ": another process has registered with this node.id since, or the broker was unregistered; "
    "this process no longer belongs to the cluster until it is restarted"
)


class BrokerState(IntEnum):
    """Kafka's BrokerState, by the values its metric has."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class SendRegistration(msgspec.Struct, frozen=True):
    """Register this broker; answer with `registered` or `registration_failed`."""


class SendHeartbeat(msgspec.Struct, frozen=True):
    """Send a heartbeat; answer with `heartbeat_answered` or `heartbeat_failed`."""

    broker_epoch: int
    want_fence: bool
    want_shut_down: bool


class Registered(msgspec.Struct, frozen=True):
    """The controller knows this broker, fenced."""

    broker_epoch: int


class CaughtUp(msgspec.Struct, frozen=True):
    """This broker's metadata contains its registration, and so all that was committed before."""


class RegistrationRefused(msgspec.Struct, frozen=True):
    """The broker cannot start."""

    error: KafkaError


class Unfenced(msgspec.Struct, frozen=True):
    """This broker may lead partitions."""


class ShutDownComplete(msgspec.Struct, frozen=True):
    """No other node needs this broker: it may stop."""


class ShutDownAbandoned(msgspec.Struct, frozen=True):
    """No heartbeat has succeeded for silent_ms, the last one with that error: the broker may stop
    without a controlled shutdown.
    """

    silent_ms: int
    error: KafkaError


Effect = (
    SendRegistration
    | SendHeartbeat
    | Registered
    | CaughtUp
    | RegistrationRefused
    | Unfenced
    | ShutDownComplete
    | ShutDownAbandoned
)


class LifecycleCore:
    """Decides; every method returns effects. Times are monotonic.

    At most one request is under way, so the controller's responses arrive in order.
    registration_timeout_ms: for how long a registration is retried. session_timeout_ms: of this
    broker at the controller. answered_ms: when the controller answered last; None before its first
    answer.
    """

    def __init__(
        self, *, heartbeat_interval_ms: int, registration_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        self._interval_ms = heartbeat_interval_ms
        self._registration_timeout_ms = registration_timeout_ms
        self._session_timeout_ms = session_timeout_ms
        self._give_up_ms = 0
        self._failures = 0
        self._is_waiting = False
        self._due_ms: int | None = None
        self._want_fence = True
        self._told_want_fence = True
        self._catch_up_requests = 0
        self._shut_down_requests = 0
        self.state = BrokerState.NOT_RUNNING
        self.broker_epoch = NO_BROKER_EPOCH
        self.answered_ms: int | None = None

    def next_deadline_ms(self) -> int | None:
        """When `on_deadline` must be called."""
        return self._due_ms

    def start(self, now_ms: int) -> list[Effect]:
        """Register. The broker is fenced until `unfence`."""
        self.state = BrokerState.STARTING
        self._give_up_ms = now_ms + self._registration_timeout_ms
        return self._send()

    def unfence(self, now_ms: int) -> list[Effect]:
        """The broker has caught up with the metadata and may lead."""
        self._want_fence = False
        return self._send_soon(now_ms)

    def shut_down(self, now_ms: int) -> list[Effect]:
        """Hand over all leaderships, then leave."""
        if self.state >= BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            return []
        self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
        return self._send_soon(now_ms)

    def on_deadline(self, now_ms: int) -> list[Effect]:
        """Send what is due."""
        if self._due_ms is None or now_ms < self._due_ms:
            return []
        return self._send()

    def registered(self, broker_epoch: int, now_ms: int) -> list[Effect]:
        """The controller's response to a registration: ask at once whether the metadata here
        contains it.
        """
        self._answered()
        self.answered_ms = now_ms
        self.broker_epoch = broker_epoch
        return [Registered(broker_epoch), *self._send()]

    def registration_failed(self, error: KafkaError, now_ms: int) -> list[Effect]:
        """Retried until `registration_timeout_ms` if the error may pass: the controller changes, or
        has not yet fenced this broker's previous process.
        """
        may_pass = error.code.retriable or error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        if not may_pass or now_ms >= self._give_up_ms:
            self._answered()
            self._due_ms = None
            return [RegistrationRefused(error)]
        self._retry(now_ms)
        return []

    def heartbeat_answered(self, reply: HeartbeatReply, now_ms: int) -> list[Effect]:
        """The controller's response to a heartbeat."""
        self._answered()
        self.answered_ms = now_ms
        if self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            if reply.should_shut_down:
                self.state = BrokerState.SHUTTING_DOWN
                self._due_ms = None
                return [ShutDownComplete()]
            return self._send_next(now_ms)
        changes: list[Effect] = []
        if self.state is BrokerState.STARTING and reply.is_caught_up:
            self.state = BrokerState.RECOVERY
            changes.append(CaughtUp())
        if self.state is BrokerState.RECOVERY and not reply.is_fenced:
            self.state = BrokerState.RUNNING
            changes.append(Unfenced())
        return [*changes, *self._send_next(now_ms)]

    def heartbeat_failed(self, error: KafkaError, now_ms: int) -> list[Effect]:
        """Sent again: the controller fences a broker whose heartbeats do not arrive. A controlled
        shutdown ends after the session timeout: a controller that is there has fenced this broker
        by then, as the shutdown asks for. (Kafka goes on for 5 minutes.)
        """
        silent_ms = now_ms - (self.answered_ms or 0)
        is_leaving = self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
        if is_leaving and silent_ms >= self._session_timeout_ms:
            self._answered()
            self.state = BrokerState.SHUTTING_DOWN
            return [ShutDownAbandoned(silent_ms, error)]
        self._retry(now_ms)
        return []

    def _answered(self) -> None:
        self._is_waiting = False
        self._failures = 0

    def _retry(self, now_ms: int) -> None:
        self._is_waiting = False
        delay_ms = min(FIRST_RETRY_MS << min(self._failures, 16), self._interval_ms)
        self._failures += 1
        self._due_ms = now_ms + delay_ms

    def _send_soon(self, now_ms: int) -> list[Effect]:
        """Now, or with the response to the request that is under way."""
        if self.broker_epoch == NO_BROKER_EPOCH or self._is_waiting:
            return []
        self._due_ms = now_ms
        return self._send()

    def _send_next(self, now_ms: int) -> list[Effect]:
        """After a response: at once if the controller does not know yet that this broker wants to
        lead, or to shut down; also after the first request to shut down, whose answer says only
        that the leaderships are being moved. Otherwise after a pause.
        """
        is_leaving = self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
        if self._want_fence != self._told_want_fence or (
            is_leaving and self._shut_down_requests < 2
        ):
            return self._send()
        pause_ms = self._interval_ms
        if is_leaving:
            pause_ms = min(pause_ms, LEAVING_MS << min(self._shut_down_requests - 2, 16))
        elif self.state is BrokerState.STARTING:
            pause_ms = min(pause_ms, CATCH_UP_MS << min(self._catch_up_requests, 16))
            self._catch_up_requests += 1
        self._due_ms = now_ms + pause_ms
        return []

    def _send(self) -> list[Effect]:
        self._due_ms = None
        self._is_waiting = True
        if self.broker_epoch == NO_BROKER_EPOCH:
            return [SendRegistration()]
        is_leaving = self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
        self._shut_down_requests += is_leaving
        self._told_want_fence = self._want_fence
        return [SendHeartbeat(self.broker_epoch, self._want_fence, is_leaving)]


class BrokerLifecycle:
    """The loop around the core. cordoned: the log directories that each heartbeat names as getting
    no new partitions; None: it says nothing of them. Loop thread only.
    """

    def __init__(
        self,
        core: LifecycleCore,
        channel: BrokerChannel,
        timers: Timers,
        *,
        node_id: int,
        registration: BrokerRegistrationData,
        cordoned: Callable[[], Sequence[Uuid] | None] = lambda: None,
    ) -> None:
        self._core = core
        self._cordoned = cordoned
        self._channel = channel
        self._timers = timers
        self._node_id = node_id
        self._registration = registration
        self._timer: TimerHandle | None = None
        self._registered = Deferred[int]()
        self._caught_up = Deferred[None]()
        self._unfenced = Deferred[None]()
        self._unfenced_here = Deferred[None]()
        self._shut_down = Deferred[None]()
        self._is_closed = False

    @property
    def state(self) -> BrokerState:
        """Where the broker is in its life."""
        return self._core.state

    @property
    def broker_epoch(self) -> int:
        """The epoch of the registration, -1 before."""
        return self._core.broker_epoch

    @property
    def silent_ms(self) -> int:
        """For how long the active controller has not answered; 0 before its first answer."""
        answered_ms = self._core.answered_ms
        return 0 if answered_ms is None else self._timers.monotonic_ms() - answered_ms

    def start(self) -> Deferred[int]:
        """Register; resolves with the broker epoch. Fails with the controller's error if it refuses
        the broker, or does not answer within initial.broker.registration.timeout.ms.
        """
        self._carry_out(self._core.start(self._timers.monotonic_ms()))
        return self._registered

    def when_caught_up(self) -> Deferred[None]:
        """Resolves once the metadata here contains this broker's registration, with everything
        that was committed before it.
        """
        return self._caught_up

    def unfence(self) -> Deferred[None]:
        """This broker is ready to lead; resolves once it is unfenced."""
        self._carry_out(self._core.unfence(self._timers.monotonic_ms()))
        return self._unfenced

    def when_unfenced_here(self) -> Deferred[None]:
        """Resolves once an image passed to `on_image` has this broker unfenced: until then its
        clients would see a cluster without it.
        """
        return self._unfenced_here

    def on_image(self, _: MetadataImage, new: MetadataImage) -> None:
        """This node's own metadata has changed."""
        broker = new.brokers.get(self._node_id)
        if self._unfenced_here.done or broker is None or broker.epoch != self.broker_epoch:
            return
        if not broker.fenced:
            self._unfenced_here.resolve(None)

    def shut_down(self) -> Deferred[None]:
        """Controlled shutdown, before the logs close: resolves once the controller has moved all
        leaderships away and fenced this broker. Fails with REQUEST_TIMED_OUT if no heartbeat has
        succeeded for broker.session.timeout.ms.
        """
        self._carry_out(self._core.shut_down(self._timers.monotonic_ms()))
        return self._shut_down

    def close(self) -> None:
        """Send nothing more; what was not completed fails with BROKER_NOT_AVAILABLE."""
        self._is_closed = True
        self._cancel_timer()
        pending = (
            self._registered,
            self._caught_up,
            self._unfenced,
            self._unfenced_here,
            self._shut_down,
        )
        for deferred in pending:
            if not deferred.done:
                deferred.on_done(lambda _: None, lambda _: None)  # the caller may have given up
                deferred.fail(broker_stopping())

    def _carry_out(self, effects: list[Effect]) -> None:
        if self._is_closed:
            return
        for effect in effects:
            match effect:
                case SendRegistration():
                    self._send_registration()
                case SendHeartbeat():
                    self._send_heartbeat(effect)
                case Registered():
                    self._registered.resolve(effect.broker_epoch)
                case CaughtUp():
                    self._caught_up.resolve(None)
                case RegistrationRefused():
                    self._registered.fail(effect.error)
                case Unfenced():
                    self._unfenced.resolve(None)
                case ShutDownComplete():
                    self._shut_down.resolve(None)
                case ShutDownAbandoned():
                    self._shut_down.fail(_abandoned(effect))
                case _:
                    assert_never(effect)
        self._plan()

    def _send_registration(self) -> None:
        core, now_ms = self._core, self._timers.monotonic_ms

        def failed(error: KafkaError) -> None:
            if not self._is_closed:
                logger.warning("node %d: the registration failed: %s", self._node_id, error)
            self._carry_out(core.registration_failed(error, now_ms()))

        try:
            answer = self._channel.register_broker(self._registration)
        except KafkaError as error:
            failed(error)
            return
        answer.on_done(lambda epoch: self._carry_out(core.registered(epoch, now_ms())), failed)

    def _send_heartbeat(self, heartbeat: SendHeartbeat) -> None:
        core, now_ms = self._core, self._timers.monotonic_ms

        def failed(error: KafkaError) -> None:
            if not self._is_closed:
                logger.warning(
                    "node %d: a heartbeat failed: %s%s",
                    self._node_id,
                    error,
                    _REPLACED if error.code is ErrorCode.STALE_BROKER_EPOCH else "",
                )
            self._carry_out(core.heartbeat_failed(error, now_ms()))

        try:
            answer = self._channel.heartbeat(
                heartbeat.broker_epoch,
                want_fence=heartbeat.want_fence,
                want_shut_down=heartbeat.want_shut_down,
                cordoned=self._cordoned(),
            )
        except KafkaError as error:
            failed(error)
            return
        answer.on_done(
            lambda reply: self._carry_out(core.heartbeat_answered(reply, now_ms())), failed
        )

    def _plan(self) -> None:
        self._cancel_timer()
        due_ms = self._core.next_deadline_ms()
        if due_ms is not None and not self._is_closed:
            delay_ms = max(due_ms - self._timers.monotonic_ms(), 0)
            self._timer = self._timers.call_later(delay_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._carry_out(self._core.on_deadline(self._timers.monotonic_ms()))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _abandoned(effect: ShutDownAbandoned) -> KafkaError:
    message = (
        f"no heartbeat to the active controller has succeeded for {effect.silent_ms} ms, the last"
        f" one failed with {effect.error.code.name}"
    )
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, message)
