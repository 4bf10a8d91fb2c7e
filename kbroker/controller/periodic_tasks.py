"""Periodic work of the active controller (Kafka's PeriodicTaskControlManager): fencing of silent
brokers, elections, records of an idle log.

A run is an operation of the controller like any other: it waits for its turn. The next run is
planned when it was decided, not when its records are committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from kbroker.controller.controller import Controller
from kbroker.controller.result import Decision, DecisionSteps, in_steps
from kbroker.controller.session_watch import SessionWatch
from kbroker.model import InvariantError
from kbroker.ports import Deferred, TimerHandle, Timers
from kbroker.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

AGAIN_MS: Final = 10
"""Until the next run of a task that has more to do; other operations have their turn meanwhile."""

AFTER_ERROR_MS: Final = 300_000
"""Until the next run of a task that failed, so that it does not fail again and again."""

LONGEST_MS: Final = 1 << 40
"""35 years: periods may be configured that no timer takes."""

TaskFunction = Callable[[Controller, int], Decision[bool]]
"""One run of a task: gets the controller and the time, as any operation. The response is whether
there is more to do at once.
"""


class PeriodicTask(msgspec.Struct, frozen=True):
    """name: Kafka's, for log lines."""

    name: str
    period_ms: int
    run: TaskFunction


class PeriodicConfig(Protocol):
    """The part of BrokerConfig that the tasks read."""

    def get_int(self, name: str) -> int: ...
    def get_bool(self, name: str) -> bool: ...


def periodic_tasks(config: PeriodicConfig, sessions: SessionWatch) -> list[PeriodicTask]:
    """The tasks of an active controller, as far as they are configured."""
    tasks = [
        PeriodicTask(
            "maybeFenceStaleBroker",
            sessions.check_ms,
            lambda controller, _: sessions.fence_one(controller),
        ),
        PeriodicTask(
            "electUnclean",
            config.get_int("unclean.leader.election.interval.ms"),
            lambda controller, _: controller.elect_unclean_leaders(),
        ),
    ]
    if config.get_bool("auto.leader.rebalance.enable"):
        tasks.append(
            PeriodicTask(
                "electPreferred",
                config.get_int("leader.imbalance.check.interval.seconds") * 1000,
                lambda controller, _: controller.balance_leaders(),
            )
        )
    if idle_ms := config.get_int("metadata.max.idle.interval.ms"):
        tasks.append(
            PeriodicTask("writeNoOpRecord", idle_ms, lambda controller, _: controller.idle_record())
        )
    return tasks


class PeriodicTasks:
    """Tasks that run between `start` and `stop`. submit: `ControllerService.submit`."""

    __slots__ = ("_activation", "_handles", "_submit", "_tasks", "_timers")

    def __init__(
        self,
        tasks: Sequence[PeriodicTask],
        timers: Timers,
        submit: Callable[[TaskFunction], Deferred[bool]],
    ) -> None:
        self._tasks = tasks
        self._timers = timers
        self._submit = submit
        self._handles: dict[str, TimerHandle] = {}
        self._activation = 0
        """Counts starts: a run that was submitted before a stop plans no next one."""

    def start(self) -> None:
        """This node is the active controller: the first run of each task is due after a period."""
        self.stop()
        for task in self._tasks:
            self._plan(task, task.period_ms)

    def stop(self) -> None:
        """This node is not the active controller any more."""
        self._activation += 1
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def _plan(self, task: PeriodicTask, delay_ms: int) -> None:
        delay_ms = min(delay_ms, LONGEST_MS)
        self._handles[task.name] = self._timers.call_later(delay_ms, lambda: self._run(task))

    def _run(self, task: PeriodicTask) -> None:
        activation = self._activation

        def run(controller: Controller, now_ms: int) -> DecisionSteps[bool]:
            try:
                result = yield from in_steps(task.run(controller, now_ms))
            except InvariantError:
                raise
            except Exception:
                if activation == self._activation:
                    self._plan(task, AFTER_ERROR_MS)
                raise
            if activation == self._activation:
                self._plan(task, AGAIN_MS if result.response else task.period_ms)
            return result

        def failed(error: KafkaError) -> None:
            if error.code is not ErrorCode.NOT_CONTROLLER:
                logger.warning("periodic task %s failed: %s", task.name, error)

        try:
            outcome = self._submit(run)
        except KafkaError as error:
            failed(error)
            return
        outcome.on_done(lambda _: None, failed)
