"""The broker's life in its cluster: the core by tables on now_ms, the loop on simulated timers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from kbroker.broker.controller_channel import BrokerRegistrationData
from kbroker.broker.lifecycle import (
    BrokerLifecycle,
    BrokerState,
    CaughtUp,
    Effect,
    LifecycleCore,
    Registered,
    RegistrationRefused,
    SendHeartbeat,
    SendRegistration,
    ShutDownAbandoned,
    ShutDownComplete,
    Unfenced,
)
from kbroker.controller.brokers.broker_heartbeat import HeartbeatReply
from kbroker.metadata.image import BrokerRegistration, MetadataImage
from kbroker.model import Uuid
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.sim.timers import SimTimers

INTERVAL_MS = 2000
TIMEOUT_MS = 10_000
SESSION_MS = 1_000
EPOCH = 7

FENCED = HeartbeatReply(is_caught_up=True, is_fenced=True, should_shut_down=False)
BEHIND = replace(FENCED, is_caught_up=False)
IN_SERVICE = replace(FENCED, is_fenced=False)
MAY_STOP = replace(FENCED, should_shut_down=True)
NOT_CONTROLLER = KafkaError(ErrorCode.NOT_CONTROLLER)
INVALID = KafkaError(ErrorCode.INVALID_REGISTRATION)

Step = tuple[int, Callable[[LifecycleCore, int], list[Effect]], list[Effect], int | None]
"""(now_ms, event, effects, the next deadline)."""


def new_core() -> LifecycleCore:
    return LifecycleCore(
        heartbeat_interval_ms=INTERVAL_MS,
        registration_timeout_ms=TIMEOUT_MS,
        session_timeout_ms=SESSION_MS,
    )


def beat(*, want_fence: bool = False, want_shut_down: bool = False) -> SendHeartbeat:
    return SendHeartbeat(EPOCH, want_fence, want_shut_down)


def start(core: LifecycleCore, now_ms: int) -> list[Effect]:
    return core.start(now_ms)


def registered(core: LifecycleCore, now_ms: int) -> list[Effect]:
    return core.registered(EPOCH, now_ms)


def refused(error: KafkaError) -> Callable[[LifecycleCore, int], list[Effect]]:
    return lambda core, now_ms: core.registration_failed(error, now_ms)


def unfence(core: LifecycleCore, now_ms: int) -> list[Effect]:
    return core.unfence(now_ms)


def shut_down(core: LifecycleCore, now_ms: int) -> list[Effect]:
    return core.shut_down(now_ms)


def due(core: LifecycleCore, now_ms: int) -> list[Effect]:
    return core.on_deadline(now_ms)


def reply(of: HeartbeatReply) -> Callable[[LifecycleCore, int], list[Effect]]:
    return lambda core, now_ms: core.heartbeat_answered(of, now_ms)


def lost(core: LifecycleCore, now_ms: int) -> list[Effect]:
    return core.heartbeat_failed(NOT_CONTROLLER, now_ms)


REGISTER: list[Step] = [
    (0, start, [SendRegistration()], None),
    (5, registered, [Registered(EPOCH), beat(want_fence=True)], None),
    (5, reply(FENCED), [CaughtUp()], 2005),
]
RUN: list[Step] = [
    *REGISTER,
    (10, unfence, [beat()], None),
    (12, reply(IN_SERVICE), [Unfenced()], 2012),
]
LEAVE: list[Step] = [
    *RUN,
    (100, shut_down, [beat(want_shut_down=True)], None),
]


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        pytest.param(RUN, BrokerState.RUNNING, id="register, unfence"),
        pytest.param(
            [
                *REGISTER,
                (2004, due, [], 2005),
                (2005, due, [beat(want_fence=True)], None),
                (2006, reply(FENCED), [], 4006),
            ],
            BrokerState.RECOVERY,
            id="fenced until it is ready to lead",
        ),
        pytest.param(
            [
                *REGISTER,
                (2005, due, [beat(want_fence=True)], None),
                (2006, unfence, [], None),
                (2007, reply(FENCED), [beat()], None),
                (2008, reply(FENCED), [], 4008),
                (4008, due, [beat()], None),
                (4009, reply(IN_SERVICE), [Unfenced()], 6009),
            ],
            BrokerState.RUNNING,
            id="ready while a heartbeat is under way; the controller takes its time",
        ),
        pytest.param(
            [
                (0, start, [SendRegistration()], None),
                (3, unfence, [], None),
                (5, registered, [Registered(EPOCH), beat()], None),
                (6, reply(IN_SERVICE), [CaughtUp(), Unfenced()], 2006),
            ],
            BrokerState.RUNNING,
            id="ready before the registration is answered",
        ),
        pytest.param(
            [
                *REGISTER[:2],
                (6, reply(BEHIND), [], 16),
                (16, due, [beat(want_fence=True)], None),
                (17, reply(BEHIND), [], 37),
                (37, due, [beat(want_fence=True)], None),
                (38, lost, [], 138),
                (138, due, [beat(want_fence=True)], None),
                (139, reply(BEHIND), [], 179),
                (179, due, [beat(want_fence=True)], None),
                (180, reply(FENCED), [CaughtUp()], 2180),
            ],
            BrokerState.RECOVERY,
            id="starting until the metadata contains the registration",
        ),
        pytest.param(
            [
                *RUN,
                (2012, due, [beat()], None),
                (2013, lost, [], 2113),
                (2113, due, [beat()], None),
                (2114, lost, [], 2314),
                (2314, due, [beat()], None),
                (2315, reply(IN_SERVICE), [], 4315),
                (4315, due, [beat()], None),
                (4316, lost, [], 4416),
            ],
            BrokerState.RUNNING,
            id="heartbeats that fail are repeated with a growing pause",
        ),
        pytest.param(
            [
                *LEAVE,
                (101, reply(IN_SERVICE), [beat(want_shut_down=True)], None),
                (102, reply(MAY_STOP), [ShutDownComplete()], None),
                (103, shut_down, [], None),
                (9000, due, [], None),
            ],
            BrokerState.SHUTTING_DOWN,
            id="controlled shutdown in two heartbeats",
        ),
        pytest.param(
            [
                *LEAVE,
                (101, reply(IN_SERVICE), [beat(want_shut_down=True)], None),
                (102, reply(IN_SERVICE), [], 152),
                (152, due, [beat(want_shut_down=True)], None),
                (153, reply(IN_SERVICE), [], 253),
                (253, due, [beat(want_shut_down=True)], None),
                (254, reply(MAY_STOP), [ShutDownComplete()], None),
            ],
            BrokerState.SHUTTING_DOWN,
            id="the controller needs more time for the shutdown",
        ),
        pytest.param(
            [
                *RUN,
                (2012, due, [beat()], None),
                (2013, shut_down, [], None),
                (2014, reply(IN_SERVICE), [beat(want_shut_down=True)], None),
                (2015, lost, [], 2115),
                (2115, due, [beat(want_shut_down=True)], None),
                (2116, reply(MAY_STOP), [ShutDownComplete()], None),
            ],
            BrokerState.SHUTTING_DOWN,
            id="shutdown while a heartbeat is under way, and the controller changes",
        ),
        pytest.param(
            [
                *LEAVE,
                (500, lost, [], 600),
                (600, due, [beat(want_shut_down=True)], None),
                (700, reply(IN_SERVICE), [], 750),
                (750, due, [beat(want_shut_down=True)], None),
                (1_699, lost, [], 1_799),
                (1_799, due, [beat(want_shut_down=True)], None),
                (1_800, lost, [ShutDownAbandoned(1_100, NOT_CONTROLLER)], None),
                (1_801, shut_down, [], None),
                (9_000, due, [], None),
            ],
            BrokerState.SHUTTING_DOWN,
            id="no controller answers the shutdown for a session timeout",
        ),
        pytest.param(
            [
                *RUN,
                (2012, due, [beat()], None),
                (8_000, lost, [], 8_100),
                (8_100, due, [beat()], None),
                (8_200, shut_down, [], None),
                (12_000, lost, [ShutDownAbandoned(11_988, NOT_CONTROLLER)], None),
            ],
            BrokerState.SHUTTING_DOWN,
            id="a shutdown long after the last controller was lost",
        ),
        pytest.param(
            [
                (0, start, [SendRegistration()], None),
                (1, refused(NOT_CONTROLLER), [], 101),
                (101, due, [SendRegistration()], None),
                (102, refused(KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION)), [], 302),
                (302, due, [SendRegistration()], None),
                (303, registered, [Registered(EPOCH), beat(want_fence=True)], None),
            ],
            BrokerState.STARTING,
            id="a registration is repeated while the error may pass",
        ),
        pytest.param(
            [
                (0, start, [SendRegistration()], None),
                (TIMEOUT_MS, refused(NOT_CONTROLLER), [RegistrationRefused(NOT_CONTROLLER)], None),
            ],
            BrokerState.STARTING,
            id="the registration takes too long",
        ),
        pytest.param(
            [
                (0, start, [SendRegistration()], None),
                (1, refused(INVALID), [RegistrationRefused(INVALID)], None),
            ],
            BrokerState.STARTING,
            id="a registration that cannot succeed",
        ),
    ],
)
def test_the_core(steps: list[Step], state: BrokerState) -> None:
    core = new_core()
    for now_ms, event, effects, deadline in steps:
        assert event(core, now_ms) == effects, now_ms
        assert core.next_deadline_ms() == deadline, now_ms
    assert core.state is state


def test_retries_are_no_rarer_than_heartbeats() -> None:
    core = new_core()
    core.start(0)
    core.registered(EPOCH, 0)
    core.heartbeat_answered(FENCED, 0)
    pauses = []
    for _ in range(7):
        core.heartbeat_failed(NOT_CONTROLLER, 0)
        pauses.append(core.next_deadline_ms())
    assert pauses == [100, 200, 400, 800, 1600, 2000, 2000]


class HeldChannel:
    """A controller that answers when the test says so."""

    def __init__(self) -> None:
        self.registrations: list[Deferred[int]] = []
        self.heartbeats: list[tuple[SendHeartbeat, Deferred[HeartbeatReply]]] = []
        self.refuses = False

    def register_broker(self, registration: BrokerRegistrationData) -> Deferred[int]:
        self.registrations.append(Deferred())
        return self.registrations[-1]

    def heartbeat(
        self,
        broker_epoch: int,
        *,
        want_fence: bool,
        want_shut_down: bool,
        cordoned: Sequence[Uuid] | None = None,
    ) -> Deferred[HeartbeatReply]:
        if self.refuses:
            raise NOT_CONTROLLER
        sent = SendHeartbeat(broker_epoch, want_fence, want_shut_down)
        self.heartbeats.append((sent, Deferred()))
        return self.heartbeats[-1][1]

    def answer(self, of: HeartbeatReply) -> None:
        self.heartbeats[-1][1].resolve(of)


class World:
    def __init__(self) -> None:
        self.channel = HeldChannel()
        self.timers = SimTimers()
        self.lifecycle = BrokerLifecycle(
            new_core(),
            self.channel,  # type: ignore[arg-type]  # the part of the port that is used here
            self.timers,
            node_id=1,
            registration=BrokerRegistrationData(bytes(16), {}, ()),
        )


def test_the_loop_from_start_to_stop() -> None:
    world = World()
    channel, lifecycle = world.channel, world.lifecycle
    started = lifecycle.start()
    assert lifecycle.broker_epoch == -1 and not started.done
    channel.registrations[0].resolve(EPOCH)
    assert started.value == lifecycle.broker_epoch == EPOCH
    assert not lifecycle.when_caught_up().done
    channel.answer(FENCED)
    assert lifecycle.when_caught_up().done
    unfenced = lifecycle.unfence()
    channel.answer(IN_SERVICE)
    assert unfenced.done and lifecycle.state is BrokerState.RUNNING
    world.timers.advance(INTERVAL_MS)
    assert [sent for sent, _ in channel.heartbeats] == [beat(want_fence=True), beat(), beat()]
    channel.answer(IN_SERVICE)
    stopped = lifecycle.shut_down()
    channel.answer(IN_SERVICE)
    assert not stopped.done
    channel.answer(MAY_STOP)
    assert stopped.done
    world.timers.advance(10 * INTERVAL_MS)
    assert len(channel.heartbeats) == 5


def test_a_shutdown_that_no_controller_answers_fails() -> None:
    world = World()
    channel, lifecycle = world.channel, world.lifecycle
    lifecycle.start()
    channel.registrations[0].resolve(EPOCH)
    channel.answer(FENCED)
    lifecycle.unfence()
    channel.answer(IN_SERVICE)
    stopped = lifecycle.shut_down()
    for _ in range(2):
        world.timers.advance(SESSION_MS // 2)
        assert not stopped.done
        channel.heartbeats[-1][1].fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
        world.timers.advance(200)
    assert stopped.error is not None and stopped.error.code is ErrorCode.REQUEST_TIMED_OUT
    assert "has succeeded for 1200 ms" in stopped.error.message
    sent = len(channel.heartbeats)
    world.timers.advance(10 * INTERVAL_MS)
    assert len(channel.heartbeats) == sent


def test_the_silence_of_the_controller_is_measured() -> None:
    world = World()
    channel, lifecycle = world.channel, world.lifecycle
    lifecycle.start()
    world.timers.advance(700)
    assert lifecycle.silent_ms == 0, "it has not been heard of yet"
    channel.registrations[0].resolve(EPOCH)
    world.timers.advance(300)
    channel.heartbeats[-1][1].fail(NOT_CONTROLLER)
    assert lifecycle.silent_ms == 300, "an error is no answer of the active controller"
    world.timers.advance(100)
    assert lifecycle.silent_ms == 400
    channel.answer(FENCED)
    assert lifecycle.silent_ms == 0


def test_a_channel_that_raises_is_asked_again() -> None:
    world = World()
    world.lifecycle.start()
    world.channel.registrations[0].resolve(EPOCH)
    world.channel.answer(FENCED)
    world.channel.refuses = True
    unfenced = world.lifecycle.unfence()
    assert len(world.channel.heartbeats) == 1
    world.channel.refuses = False
    world.timers.advance(100)
    world.channel.answer(IN_SERVICE)
    assert unfenced.done


def test_a_broker_that_was_replaced_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """A process that was paused for longer than its session, and whose id another one has now."""
    world = World()
    world.lifecycle.start()
    world.channel.registrations[0].resolve(EPOCH)
    stale = KafkaError(ErrorCode.STALE_BROKER_EPOCH, "the active controller refused it")
    world.channel.heartbeats[-1][1].fail(stale)
    assert [record.getMessage() for record in caplog.records] == [
        "node 1: a heartbeat failed: STALE_BROKER_EPOCH: the active controller refused it: another "
        "process has registered with this node.id since, or the broker was unregistered; this "
        "process no longer belongs to the cluster until it is restarted"
    ]


def registration(*, epoch: int, fenced: bool, broker_id: int = 1) -> MetadataImage:
    broker = BrokerRegistration(broker_id, epoch, bytes(16), {}, fenced=fenced)
    return MetadataImage(brokers={broker_id: broker})


def test_unfenced_here_once_the_nodes_own_metadata_says_so() -> None:
    world = World()
    world.lifecycle.start()
    world.channel.registrations[0].resolve(EPOCH)
    unfenced = world.lifecycle.when_unfenced_here()
    before = MetadataImage()
    for image in (
        before,
        registration(epoch=EPOCH, fenced=False, broker_id=2),
        registration(epoch=EPOCH - 1, fenced=False),
        registration(epoch=EPOCH, fenced=True),
    ):
        world.lifecycle.on_image(before, image)
        assert not unfenced.done
    for _ in range(2):
        world.lifecycle.on_image(before, registration(epoch=EPOCH, fenced=False))
        assert unfenced.done and unfenced.error is None


def test_close_fails_what_waits_and_sends_nothing_more() -> None:
    world = World()
    started = world.lifecycle.start()
    world.lifecycle.close()
    assert started.error is not None and started.error.code is ErrorCode.BROKER_NOT_AVAILABLE
    world.channel.registrations[0].fail(NOT_CONTROLLER)
    world.timers.advance(TIMEOUT_MS)
    assert len(world.channel.registrations) == 1


def test_close_fails_every_wait_of_a_start() -> None:
    """Also for this node's metadata, which may never change again."""
    world = World()
    world.lifecycle.start()
    world.channel.registrations[0].resolve(EPOCH)
    waits = [
        world.lifecycle.when_caught_up(),
        world.lifecycle.unfence(),
        world.lifecycle.when_unfenced_here(),
    ]
    world.lifecycle.close()
    codes = [None if wait.error is None else wait.error.code for wait in waits]
    assert codes == [ErrorCode.BROKER_NOT_AVAILABLE] * 3
    world.lifecycle.on_image(MetadataImage(), registration(epoch=EPOCH, fenced=False))
