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
        self.answers: list[Deferred[Any]] = []
        self.refusal: KafkaError | None = None

    def assign_directories(
        self, epoch: int, assignments: Sequence[Assignment]
    ) -> Deferred[list[ErrorCode]]:
        return self._asked("assign", epoch, list(assignments))

    def directories_failed(self, epoch: int, failed: Sequence[Uuid]) -> Deferred[None]:
        return self._asked("failed", epoch, list(failed))

    def answer(self, number: int, *errors: ErrorCode) -> None:
        """Answer that request of assignments; without errors all are committed."""
        assignments = self.requests[number][2]
        self.answers[number].resolve(list(errors) or [ErrorCode.NONE] * len(assignments))

    def _asked(self, kind: str, epoch: int, content: list[Any]) -> Deferred[Any]:
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
        self.gone: set[tuple[TopicPartition, Uuid]] = set()
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
            is_assigned=lambda *replica: replica not in self.gone,
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
    world.channel.answer(0)
    assert all(each.done and each.error is None for each in waiting)


def test_the_last_directory_of_a_replica_counts() -> None:
    world = World()
    waiting = [world.reporter.assign(P0, TOPIC_ID, each) for each in (A_ID, B_ID)]
    world.turn()
    assert world.channel.requests == [("assign", 5, [Assignment(TOPIC_ID, 0, B_ID)])]
    world.channel.answer(0)
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
    world.channel.answer(1)
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
    world.channel.answer(-1)
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


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ],
    ids=lambda code: code.name,
)
def test_a_replica_that_the_controller_does_not_know_keeps_no_other_waiting(
    code: ErrorCode,
) -> None:
    world = World()
    gone, here = (world.reporter.assign(each, TOPIC_ID, A_ID) for each in (P0, P1))
    world.turn()
    world.channel.answer(0, code, ErrorCode.NONE)
    assert gone.error is not None and gone.error.code is code
    assert here.done and here.error is None
    world.timers.advance(20_000)
    assert len(world.channel.requests) == 1, "neither is sent again"


def test_a_replica_that_is_gone_is_not_sent() -> None:
    world = World()
    gone, here = (world.reporter.assign(each, TOPIC_ID, A_ID) for each in (P0, P1))
    world.gone.add((P0, TOPIC_ID))
    world.turn()
    assert world.channel.requests == [("assign", 5, [Assignment(TOPIC_ID, 1, A_ID)])]
    assert gone.error is not None and gone.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.channel.answers[0].fail(KafkaError(ErrorCode.NOT_CONTROLLER))
    assert here.error is not None
    world.gone.add((P1, TOPIC_ID))
    world.timers.advance(20_000)
    assert len(world.channel.requests) == 1


def test_a_new_topic_of_the_same_name_is_another_replica() -> None:
    world = World()
    new_id = b"u" * 16
    gone, here = (world.reporter.assign(P0, each, A_ID) for each in (TOPIC_ID, new_id))
    world.gone.add((P0, TOPIC_ID))
    world.turn()
    assert world.channel.requests == [("assign", 5, [Assignment(new_id, 0, A_ID)])]
    world.channel.answer(0)
    assert gone.error is not None and here.done and here.error is None


def test_an_error_of_one_replica_that_is_none_of_absence_is_tried_again() -> None:
    world = World()
    waiting = [world.reporter.assign(each, TOPIC_ID, A_ID) for each in (P0, P1)]
    world.turn()
    for number, pause_ms in enumerate((100, 200)):
        world.channel.answer(number, ErrorCode.UNKNOWN_SERVER_ERROR, *[ErrorCode.NONE][number:])
        world.timers.advance(pause_ms - 1)
        assert len(world.channel.requests) == number + 1
        world.timers.advance(1)
        assert world.channel.requests[number + 1] == ("assign", 5, [Assignment(TOPIC_ID, 0, A_ID)])
    assert [each.error is None for each in waiting] == [False, True]


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
)
def test_a_request_that_fails_as_a_whole_is_sent_again(code: ErrorCode) -> None:
    world = World()
    waiting = [world.reporter.assign(each, TOPIC_ID, A_ID) for each in (P0, P1)]
    world.turn()
    world.channel.answers[0].fail(KafkaError(code))
    assert [each.error.code for each in waiting if each.error] == [code] * 2
    world.timers.advance(99)
    assert len(world.channel.requests) == 1
    world.timers.advance(1)
    assert world.channel.requests[1] == world.channel.requests[0]


def test_an_older_directory_that_fails_is_not_sent_behind_the_newer_one() -> None:
    """Else the metadata would have the replica where it was before."""
    world = World()
    older = world.reporter.assign(P0, TOPIC_ID, A_ID)
    world.turn()
    newer = world.reporter.assign(P0, TOPIC_ID, B_ID)
    world.turn()
    world.channel.answers[0].fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    assert older.error is not None and not newer.done
    world.channel.answer(1)
    assert newer.value is None
    world.timers.advance(20_000)
    assert [each[2] for each in world.channel.requests] == [
        [Assignment(TOPIC_ID, 0, A_ID)],
        [Assignment(TOPIC_ID, 0, B_ID)],
    ]


def test_who_is_told_may_report_at_once() -> None:
    world = World()
    again: list[Deferred[None]] = []

    def report_both(_: KafkaError) -> None:
        again.extend(world.reporter.assign(each, TOPIC_ID, B_ID) for each in (P0, P1))

    first, second = (world.reporter.assign(each, TOPIC_ID, A_ID) for each in (P0, P1))
    first.on_done(lambda _: None, report_both)
    world.turn()
    world.channel.answers[0].fail(KafkaError(ErrorCode.NOT_CONTROLLER))
    assert second.error is not None and not any(each.done for each in again)
    world.turn()
    expected = [Assignment(TOPIC_ID, 0, B_ID), Assignment(TOPIC_ID, 1, B_ID)]
    assert world.channel.requests[1:] == [("assign", 5, expected)]
    world.channel.answer(1)
    assert all(each.done and each.error is None for each in again)


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
