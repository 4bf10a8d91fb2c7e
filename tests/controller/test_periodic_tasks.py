"""Periodic tasks on virtual time: when they run, and when not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.controller.controller import Controller
from kbroker.controller.periodic_tasks import (
    PeriodicTask,
    PeriodicTasks,
    TaskFunction,
    periodic_tasks,
)
from kbroker.controller.result import ControllerResult, in_steps
from kbroker.controller.session_watch import SessionWatch
from kbroker.model import InvariantError
from kbroker.ports import Deferred, at_once
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.broker import BrokerConfig
from tests.controller.cluster import Cluster
from tests.sim.timers import SimTimers


class World:
    """One task of 100 ms. more: how many runs say that there is more to do."""

    def __init__(self) -> None:
        self.timers = SimTimers()
        self.start_ms = self.timers.time_ms
        self.runs: list[int] = []
        self.more = 0
        self.error: Exception | None = None
        self.waiting: list[Callable[[], None]] = []
        self.is_queue_busy = False
        self._controller = Cluster().controller
        task = PeriodicTask("task", 100, self._run)
        self.tasks = PeriodicTasks([task], self.timers, self._submit)

    def _run(self, controller: Controller, now_ms: int) -> ControllerResult[bool]:
        self.runs.append(self.timers.time_ms - self.start_ms)
        if self.error is not None:
            raise self.error
        self.more -= 1
        return ControllerResult([], self.more >= 0)

    def _submit(self, run: TaskFunction) -> Deferred[bool]:
        if not self.is_queue_busy:
            return Deferred.of(at_once(in_steps(run(self._controller, 0))).response)
        self.waiting.append(lambda: at_once(in_steps(run(self._controller, 0))))
        return Deferred()


def test_a_task_runs_once_per_period_between_start_and_stop() -> None:
    world = World()
    world.timers.advance(500)
    world.tasks.start()
    world.timers.advance(350)
    assert world.runs == [600, 700, 800]
    world.tasks.stop()
    world.timers.advance(1000)
    assert world.runs == [600, 700, 800]
    world.tasks.start()
    world.timers.advance(100)
    assert world.runs == [600, 700, 800, 1950]


def test_a_task_with_more_to_do_runs_again_soon() -> None:
    world = World()
    world.more = 2
    world.tasks.start()
    world.timers.advance(250)
    assert world.runs == [100, 110, 120, 220]


def test_a_second_start_begins_the_periods_anew() -> None:
    world = World()
    world.tasks.start()
    world.timers.advance(60)
    world.tasks.start()
    world.timers.advance(190)
    assert world.runs == [160]


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NOT_CONTROLLER])
def test_a_task_that_fails_runs_again_after_five_minutes(code: ErrorCode) -> None:
    world = World()
    world.error = KafkaError(code, "no")
    world.tasks.start()
    world.timers.advance(300_000)
    assert world.runs == [100]
    world.error = None
    world.timers.advance(200)
    assert world.runs == [100, 300_100, 300_200]


def test_a_broken_invariant_is_not_survived() -> None:
    world = World()
    world.error = InvariantError("broken")
    world.tasks.start()
    with pytest.raises(InvariantError):
        world.timers.advance(100)


def test_a_run_that_waited_over_a_stop_plans_no_other() -> None:
    world = World()
    world.is_queue_busy = True
    world.tasks.start()
    world.timers.advance(100)
    world.tasks.stop()
    world.tasks.start()
    for run in world.waiting:
        run()
    world.is_queue_busy = False
    world.timers.advance(199)
    assert world.runs == [100, 200]


@pytest.mark.parametrize(
    ("settings", "periods"),
    [
        pytest.param(
            {},
            {
                "maybeFenceStaleBroker": 1125,
                "electUnclean": 300_000,
                "electPreferred": 300_000,
                "writeNoOpRecord": 500,
            },
            id="Kafka's defaults",
        ),
        pytest.param(
            {"auto.leader.rebalance.enable": "false", "metadata.max.idle.interval.ms": "0"},
            {"maybeFenceStaleBroker": 1125, "electUnclean": 300_000},
            id="switched off",
        ),
        pytest.param(
            {
                "broker.session.timeout.ms": "4",
                "leader.imbalance.check.interval.seconds": "7",
                "unclean.leader.election.interval.ms": "8",
                "metadata.max.idle.interval.ms": "9",
            },
            {
                "maybeFenceStaleBroker": 1,
                "electUnclean": 8,
                "electPreferred": 7000,
                "writeNoOpRecord": 9,
            },
            id="configured",
        ),
    ],
)
def test_the_tasks_and_their_periods(settings: dict[str, str], periods: dict[str, int]) -> None:
    config = BrokerConfig.from_properties({"node.id": "1", **settings})
    sessions = SessionWatch(config.get_int("broker.session.timeout.ms"), SimTimers())
    found = {task.name: task.period_ms for task in periodic_tasks(config, sessions)}
    assert found == periods


def test_each_task_decides_on_the_controller() -> None:
    cluster = Cluster(brokers=(1, 2))
    config = BrokerConfig.from_properties({"node.id": "1"})
    tasks = {t.name: t for t in periodic_tasks(config, SessionWatch(9000, SimTimers()))}
    written = {
        name: at_once(in_steps(task.run(cluster.controller, 0))).records
        for name, task in tasks.items()
    }
    assert {name: len(records) for name, records in written.items()} == {
        "maybeFenceStaleBroker": 0,
        "electUnclean": 0,
        "electPreferred": 0,
        "writeNoOpRecord": 1,
    }
