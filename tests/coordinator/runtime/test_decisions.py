"""Decisions of a shard as the runtime executes them: when records are replayed, when responses are
sent, and what fails when a write is rejected or leadership is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from kbroker.coordinator.group.records import decode_record, offset_commit_record
from kbroker.coordinator.runtime.coordinator_log import Transactional
from kbroker.coordinator.runtime.host import HostStatus
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import (
    CoordinatorResult,
    DeferredResponse,
    OutgoingRequest,
    Reply,
    Results,
    in_batches,
)
from kbroker.coordinator.runtime.runtime import CoordinatorRuntime
from kbroker.model import InvariantError
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.groups import HeartbeatResponse
from kbroker.protocol.messages.stored.group_records import OffsetCommitKey, OffsetCommitValue
from tests.coordinator.simulation import MemoryLog
from tests.sim.timers import SimTimers

E = ErrorCode
TOPIC = "__numbers"


def number_record(name: str, number: int) -> CoordinatorRecord:
    return offset_commit_record(name, "numbers", 0, OffsetCommitValue(offset=number))


class Ask(OutgoingRequest):
    """Asks for a number to store under name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Numbers:
    """A shard: numbers by name. events: the callbacks of decisions, in order."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.pending: dict[str, int] = {}
        self.waiting: list[DeferredResponse] = []
        self.events: list[tuple[object, ...]] = []

    def decode(self, key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
        return decode_record(key, value)

    def replay(self, record: CoordinatorRecord) -> None:
        assert isinstance(record.key, OffsetCommitKey)
        assert isinstance(record.value, OffsetCommitValue)
        self.numbers[record.key.group] = record.value.offset

    def replay_transactional(self, producer_id: int, record: CoordinatorRecord) -> None:
        assert isinstance(record.key, OffsetCommitKey)
        assert isinstance(record.value, OffsetCommitValue)
        self.pending[record.key.group] = record.value.offset

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        pending, self.pending = self.pending, {}
        if commit:
            self.numbers |= pending

    def on_loaded(self, now_ms: int) -> Results:
        return []

    def unload(self, error: ErrorCode) -> Results:
        return [Reply(waiter, HeartbeatResponse(error_code=error)) for waiter in self.waiting]

    def next_deadline_ms(self) -> int | None:
        return None

    def on_deadline(self, now_ms: int) -> Results:
        return []

    def changes(self, record: CoordinatorRecord) -> str | None:
        return None

    # -- decisions -------------------------------------------------------------------------------

    def store(self, name: str, number: int) -> CoordinatorResult[int]:
        def on_written(now_ms: int) -> Results:
            self.events.append(("written", name, self.numbers[name]))
            return []

        def on_completion(error: ErrorCode, now_ms: int) -> Results:
            self.events.append(("completed", name, error))
            return []

        return CoordinatorResult(
            [number_record(name, number)],
            self.numbers.get(name, 0),
            on_written=on_written,
            on_completion=on_completion,
        )

    def read(self, name: str) -> CoordinatorResult[int | None]:
        return CoordinatorResult([], self.numbers.get(name))

    def wait(self) -> CoordinatorResult[object]:
        waiter: DeferredResponse = Deferred()
        self.waiting.append(waiter)
        return CoordinatorResult([], waiter)

    def wake(self) -> CoordinatorResult[int]:
        waiting, self.waiting = self.waiting, []
        replies = [Reply(waiter, HeartbeatResponse()) for waiter in waiting]
        return CoordinatorResult([number_record("woken", len(waiting))], 0, replies=replies)


@dataclass
class Sender:
    """Numbers come from elsewhere, in their own time. epochs: of the shard that asked."""

    answers: list[Deferred[Callable[[int], Results]]] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    is_slow: bool = False

    def send(
        self, request: OutgoingRequest, *, coordinator_epoch: int
    ) -> Deferred[Callable[[int], Results]]:
        assert isinstance(request, Ask)
        self.epochs.append(coordinator_epoch)
        answer: Deferred[Callable[[int], Results]] = Deferred()
        self.answers.append(answer)
        if not self.is_slow:
            answer.resolve(partial(self.follow, request.name))
        return answer

    def follow(self, name: str, now_ms: int) -> Results:
        return [CoordinatorResult([number_record(name, 42)], None)]


class World:
    """A runtime that leads partition 0 in epoch 3."""

    def __init__(self, sender: Sender | None = None) -> None:
        self.timers = SimTimers()
        self.log = MemoryLog()
        self.runtime: CoordinatorRuntime[Numbers] = CoordinatorRuntime(
            TOPIC, log=self.log, timers=self.timers, make_shard=Numbers, sender=sender
        )
        self.runtime.on_leadership(0, 3)

    @property
    def shard(self) -> Numbers:
        return self.runtime.host(0).shard

    def store(self, name: str, number: int) -> Deferred[int]:
        return self.runtime.decide(0, lambda shard, now_ms: shard.store(name, number))

    def read(self, name: str) -> Deferred[int | None]:
        return self.runtime.decide(0, lambda shard, now_ms: shard.read(name))

    def wait(self) -> Deferred[object]:
        return self.runtime.decide(0, lambda shard, now_ms: shard.wait())


@pytest.fixture
def world() -> World:
    return World()


def code(answer: Deferred[int]) -> ErrorCode:
    """Why it failed."""
    assert answer.error is not None
    return answer.error.code


def test_a_record_is_replayed_when_written_and_its_answer_leaves_when_committed(
    world: World,
) -> None:
    world.log.delayed = True
    shard = world.shard
    answer = world.store("a", 7)
    assert shard.numbers == {"a": 7}
    assert shard.events == [("written", "a", 7)]
    assert not answer.done
    world.log.commit()
    assert shard.events == [("written", "a", 7), ("completed", "a", E.NONE)]
    assert answer.value == 0  # decided upon the state before its record


def test_a_read_waits_for_the_records_before_it(world: World) -> None:
    world.log.delayed = True
    stored, read = world.store("a", 7), world.read("a")
    assert not read.done
    world.log.commit()
    assert (stored.value, read.value) == (0, 7)
    assert world.read("a").value == 7  # nothing to wait for


@pytest.mark.parametrize(
    ("error", "told", "is_replayed", "is_reloaded"),
    [
        pytest.param(E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE, False, False, id="few"),
        pytest.param(E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR, False, False, id="large"),
        pytest.param(E.REQUEST_TIMED_OUT, E.COORDINATOR_NOT_AVAILABLE, True, False, id="late"),
        pytest.param(E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR, False, True, id="disk"),
    ],
)
def test_a_write_that_fails_fails_its_request(
    world: World, error: ErrorCode, told: ErrorCode, is_replayed: bool, is_reloaded: bool
) -> None:
    shard = world.shard
    world.log.errors = [error]
    assert code(world.store("a", 7)) is told
    assert shard.numbers == ({"a": 7} if is_replayed else {})
    assert shard.events == [("written", "a", 7)] * is_replayed + [("completed", "a", told)]
    world.timers.advance(0)
    assert (world.shard is not shard) == is_reloaded


def test_a_failed_write_fails_what_comes_before_the_reload_and_leaves_nothing_waiting(
    world: World,
) -> None:
    """In the turn of the loop in which the write fails, the shard still has its record."""
    world.log.delayed = True
    shard = world.shard
    stored = world.store("a", 7)
    world.log.commit(E.KAFKA_STORAGE_ERROR)
    assert code(stored) is E.NOT_COORDINATOR
    read = world.read("a")
    assert read.error is not None
    assert read.error.code is E.NOT_COORDINATOR
    waiter: DeferredResponse = Deferred()
    reply = Reply(waiter, HeartbeatResponse())
    decision: CoordinatorResult[object] = CoordinatorResult([], waiter, lambda now_ms: [reply])
    answer = world.runtime.handle(world.runtime.host(0), decision)
    assert answer.done, "a request that is answered by a reply has its reply"
    world.timers.advance(0)
    assert world.shard is not shard


def test_leadership_that_is_lost_fails_every_request_that_waits(world: World) -> None:
    world.log.delayed = True
    shard = world.shard
    stored, read, waiting = world.store("a", 7), world.read("a"), world.wait()
    world.runtime.on_leadership(0, None)
    assert code(stored) is E.NOT_COORDINATOR
    assert read.error is not None
    assert read.error.code is E.NOT_COORDINATOR
    response = waiting.value
    assert isinstance(response, HeartbeatResponse)
    assert response.error_code == E.NOT_COORDINATOR
    assert shard.events == [("written", "a", 7)]  # its shard is closed: nothing completes there
    world.log.commit()
    assert code(world.store("a", 8)) is E.NOT_COORDINATOR


def test_a_shard_that_loads_fails_requests(world: World) -> None:
    world.store("a", 7)
    world.runtime.on_leadership(0, None)
    world.runtime.on_leadership(0, 4)
    assert code(world.store("b", 8)) is E.COORDINATOR_LOAD_IN_PROGRESS
    world.timers.advance(0)
    assert world.shard.numbers == {"a": 7}


def test_a_decision_that_refuses_fails_its_request(world: World) -> None:
    def refuse(shard: Numbers, now_ms: int) -> CoordinatorResult[int]:
        raise KafkaError(E.INVALID_REQUEST, "no")

    refused = world.runtime.decide(0, refuse)
    assert code(refused) is E.INVALID_REQUEST
    assert world.log.batches == {}


def test_waiting_requests_are_answered_after_the_append(world: World) -> None:
    """By the callback of a response, which sees the replayed record and may make another
    decision.
    """
    first, second = world.wait(), world.wait()
    seen: list[object] = []

    def on_answer(response: object) -> None:
        seen.append(dict(world.shard.numbers))
        world.store("b", len(seen)).on_done(seen.append)
        seen.append("next request decided")

    first.on_done(on_answer)
    second.on_done(lambda response: seen.append("second answered"))
    world.runtime.decide(0, lambda shard, now_ms: shard.wake())
    assert seen == [{"woken": 2}, 0, "next request decided", "second answered"]


def test_records_of_a_transaction_count_from_its_commit_on(world: World) -> None:
    transaction = Transactional(9, 0)
    host = world.runtime.host(0)
    result = CoordinatorResult([number_record("a", 7)], "stored")
    answer = world.runtime.handle(host, result, transaction=transaction)
    assert answer.value == "stored"
    assert (world.shard.numbers, world.shard.pending) == ({}, {"a": 7})
    ended = world.runtime.write_marker(
        0, transaction, commit=True, coordinator_epoch=1, transaction_version=2
    )
    assert ended.value is E.NONE
    assert (world.shard.numbers, world.shard.pending) == ({"a": 7}, {})


def test_an_error_may_have_another_name_for_some_requests(world: World) -> None:
    world.log.errors = [E.MESSAGE_TOO_LARGE]
    result = CoordinatorResult([number_record("a", 7)], 0)
    answer = world.runtime.handle(
        world.runtime.host(0), result, error_of=lambda error: E.INVALID_COMMIT_OFFSET_SIZE
    )
    assert code(answer) is E.INVALID_COMMIT_OFFSET_SIZE


def test_what_follows_is_carried_out_after_the_decisions_before_it(world: World) -> None:
    def follow(now_ms: int) -> Results:
        return [CoordinatorResult([number_record("third", 3)], None)]

    world.runtime.carry_out(
        world.runtime.host(0),
        [
            CoordinatorResult([number_record("first", 1)], None, on_written=follow),
            *in_batches([number_record("second", 2)], 10),
        ],
    )
    assert list(world.shard.numbers) == ["first", "second", "third"]


def test_records_in_batches_of_a_size(world: World) -> None:
    records = [number_record(str(number), number) for number in range(5)]
    assert [len(result.records) for result in in_batches(records, 2)] == [2, 2, 1]
    assert in_batches([], 2) == []


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_request_to_another_part_of_the_cluster(is_slow: bool) -> None:
    sender = Sender(is_slow=is_slow)
    world = World(sender)
    world.runtime.carry_out(
        world.runtime.host(0), [CoordinatorResult([], None, requests=[Ask("a")])]
    )
    if is_slow:
        assert world.shard.numbers == {}
        sender.answers[0].resolve(partial(sender.follow, "a"))
    assert world.shard.numbers == {"a": 42}
    assert sender.epochs == [3]


def test_nothing_follows_a_request_that_failed_or_whose_shard_was_unloaded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sender = Sender(is_slow=True)
    world = World(sender)
    host, shard = world.runtime.host(0), world.shard
    ask = CoordinatorResult([], None, requests=[Ask("a")])
    world.runtime.carry_out(host, [ask, ask])
    sender.answers[0].fail(KafkaError(E.NOT_CONTROLLER))
    assert "NOT_CONTROLLER" in caplog.text
    world.runtime.on_leadership(0, None)
    assert host.status is HostStatus.CLOSED
    sender.answers[1].resolve(partial(sender.follow, "a"))
    assert shard.numbers == {}


def test_shards_without_a_sender_send_nothing(world: World) -> None:
    with pytest.raises(InvariantError):
        world.runtime.carry_out(
            world.runtime.host(0), [CoordinatorResult([], None, requests=[Ask("a")])]
        )
