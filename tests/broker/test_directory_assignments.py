"""Reports of log directories: one request per turn, and what a failure of a disk means."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.broker.directory_assignments import LogDirectoryReporter
from kbroker.controller.partitions.directories import Assignment
from kbroker.model import TopicPartition, Uuid
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.sim.timers import SimTimers

A, B = Path("/a"), Path("/b")
A_ID, B_ID, TOPIC_ID = b"a" * 16, b"b" * 16, b"t" * 16
FAILURE_TIMEOUT_MS = 3_000
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Channel:
    """The controller's side: keeps requests, answers when the test says so."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, int, list[Any]]] = []
        self.answers: list[Deferred[None]] = []
        self.refusal: KafkaError | None = None

    def assign_directories(self, epoch: int, assignments: Sequence[Assignment]) -> Deferred[None]:
        return self._asked("assign", epoch, list(assignments))

    def directories_failed(self, epoch: int, failed: Sequence[Uuid]) -> Deferred[None]:
        return self._asked("failed", epoch, list(failed))

    def _asked(self, kind: str, epoch: int, content: list[Any]) -> Deferred[None]:
        if self.refusal is not None:
            raise self.refusal
        self.requests.append((kind, epoch, content))
        self.answers.append(Deferred())
        return self.answers[-1]


class World:
    """A broker with the directories A (which has the metadata log) and B."""

    def __init__(self) -> None:
        self.timers = SimTimers()
        self.channel = Channel()
        self.epoch = 5
        self.stopped: list[BaseException] = []
        self.offline: dict[Path, OSError] = {}
        each = [
            SimpleNamespace(path=A, directory_id=A_ID),
            SimpleNamespace(path=B, directory_id=B_ID),
        ]
        self.logs = SimpleNamespace(
            offline_directories=self.offline, all_directories=each, directories=list(each)
        )
        logs: Any = self.logs
        channel: Any = self.channel
        self.reporter = LogDirectoryReporter(
            logs,
            channel,
            self.timers,
            broker_epoch=lambda: self.epoch,
            metadata_directory=A,
            failure_timeout_ms=FAILURE_TIMEOUT_MS,
            fail=self.stopped.append,
        )

    def turn(self) -> None:
        self.timers.advance(0)

    def break_disk(self, path: Path) -> OSError:
        error = self.offline[path] = OSError(5, "broken", str(path))
        self.logs.directories = [each for each in self.logs.directories if each.path != path]
        self.reporter.directory_failed(path)
        return error


def test_the_assignments_of_one_turn_are_one_request() -> None:
    world = World()
    waiting = [world.reporter.assign(P0, TOPIC_ID, A_ID), world.reporter.assign(P1, TOPIC_ID, B_ID)]
    assert world.channel.requests == []
    world.turn()
    expected = [Assignment(TOPIC_ID, 0, A_ID), Assignment(TOPIC_ID, 1, B_ID)]
    assert world.channel.requests == [("assign", 5, expected)]
    assert not any(each.done for each in waiting)
    world.channel.answers[0].resolve(None)
    assert all(each.done and each.error is None for each in waiting)


def test_the_last_directory_of_a_replica_counts() -> None:
    world = World()
    waiting = [world.reporter.assign(P0, TOPIC_ID, each) for each in (A_ID, B_ID)]
    world.turn()
    assert world.channel.requests == [("assign", 5, [Assignment(TOPIC_ID, 0, B_ID)])]
    world.channel.answers[0].resolve(None)
    assert all(each.done for each in waiting)


def test_the_next_turn_is_another_request_with_the_epoch_of_then() -> None:
    world = World()
    first = world.reporter.assign(P0, TOPIC_ID, A_ID)
    world.turn()
    world.turn()
    assert len(world.channel.requests) == 1, "nothing is sent twice"
    world.epoch = 6
    second = world.reporter.assign(P1, TOPIC_ID, A_ID)
    world.turn()
    assert world.channel.requests[1] == ("assign", 6, [Assignment(TOPIC_ID, 1, A_ID)])
    world.channel.answers[1].resolve(None)
    assert second.done and not first.done


def test_who_waits_fails_with_the_controllers_error(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.INFO):
        waiting = world.reporter.assign(P0, TOPIC_ID, A_ID)
        world.turn()
        world.channel.answers[0].fail(KafkaError(ErrorCode.NOT_CONTROLLER))
    assert waiting.error is not None and waiting.error.code is ErrorCode.NOT_CONTROLLER
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_a_channel_that_raises_fails_who_waits(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.channel.refusal = KafkaError(ErrorCode.NOT_CONTROLLER)
    with caplog.at_level(logging.INFO):
        waiting = [world.reporter.assign(each, TOPIC_ID, A_ID) for each in (P0, P1)]
        world.turn()
    assert [each.error.code for each in waiting if each.error] == [ErrorCode.NOT_CONTROLLER] * 2
    assert len(caplog.records) == 1
    world.channel.refusal = None
    world.reporter.assign(P0, TOPIC_ID, B_ID)
    world.turn()
    expected = [Assignment(TOPIC_ID, 0, B_ID), Assignment(TOPIC_ID, 1, A_ID)]
    assert world.channel.requests == [("assign", 5, expected)]


def test_an_assignment_is_sent_again_after_growing_pauses() -> None:
    world = World()
    world.reporter.assign(P0, TOPIC_ID, A_ID)
    sent = []
    for _ in range(10):
        world.timers.advance(20_000) if sent else world.turn()
        world.channel.answers[-1].fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
        began_ms = world.timers.time_ms
        count = len(world.channel.requests)
        while len(world.channel.requests) == count:
            assert world.timers.run_next(began_ms + 20_000)
        sent.append(world.timers.time_ms - began_ms)
    assert sent == [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000]
    world.channel.answers[-1].resolve(None)
    count = len(world.channel.requests)
    world.timers.advance(20_000)
    assert len(world.channel.requests) == count


def test_an_assignment_that_is_refused_is_not_sent_again() -> None:
    world = World()
    world.reporter.assign(P0, TOPIC_ID, A_ID)
    world.turn()
    world.channel.answers[0].fail(KafkaError(ErrorCode.STALE_BROKER_EPOCH))
    world.timers.advance(20_000)
    assert len(world.channel.requests) == 1


def test_a_newer_assignment_replaces_the_one_that_failed() -> None:
    world = World()
    world.reporter.assign(P0, TOPIC_ID, A_ID)
    world.turn()
    world.reporter.assign(P0, TOPIC_ID, B_ID)
    world.channel.answers[0].fail(KafkaError(ErrorCode.NOT_CONTROLLER))
    world.turn()
    assert world.channel.requests[1:] == [("assign", 5, [Assignment(TOPIC_ID, 0, B_ID)])]


def test_a_failed_disk_that_is_acknowledged_stops_nothing() -> None:
    world = World()
    world.break_disk(B)
    world.turn()
    world.channel.answers[0].fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    world.timers.advance(100)
    assert world.channel.requests == [("failed", 5, [B_ID])] * 2
    world.channel.answers[1].resolve(None)
    world.timers.advance(2 * FAILURE_TIMEOUT_MS)
    assert world.stopped == []
    assert len(world.channel.requests) == 2


def test_a_failed_disk_that_is_not_acknowledged_in_time_stops_the_broker() -> None:
    world = World()
    error = world.break_disk(B)
    world.timers.advance(FAILURE_TIMEOUT_MS - 1)
    assert world.stopped == []
    world.timers.advance(1)
    assert world.stopped == [error]


def test_nothing_is_sent_after_the_end() -> None:
    world = World()
    waiting = world.reporter.assign(P0, TOPIC_ID, A_ID)
    world.break_disk(B)
    world.reporter.close()
    assert waiting.error is not None
    world.timers.advance(2 * FAILURE_TIMEOUT_MS)
    assert world.channel.requests == [] and world.stopped == []


def test_a_failed_disk_is_reported_before_the_assignments_of_its_turn() -> None:
    world = World()
    world.reporter.assign(P0, TOPIC_ID, A_ID)
    world.break_disk(B)
    world.turn()
    assert world.channel.requests == [
        ("failed", 5, [B_ID]),
        ("assign", 5, [Assignment(TOPIC_ID, 0, A_ID)]),
    ]
    assert world.stopped == []


def test_the_disk_of_the_metadata_log_stops_the_broker() -> None:
    world = World()
    error = world.break_disk(A)
    world.turn()
    assert world.stopped == [error]
    assert world.channel.requests == []


def test_the_last_disk_stops_the_broker() -> None:
    world = World()
    world.logs.directories = [each for each in world.logs.all_directories if each.path == B]
    error = world.break_disk(B)
    world.turn()
    assert world.stopped == [error]
    assert world.channel.requests == []
