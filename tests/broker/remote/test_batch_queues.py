"""Entries leave together once the request before them is answered, whatever becomes of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kbroker.broker.remote.batch_queues import MAX_ENTRIES, MAX_HELD_BYTES, BatchQueues
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.server.network.memory_pool import MemoryPool


class World:
    """sent: (key, entries, response). outcomes: of entries, True if they were settled. size: of
    each entry.
    """

    def __init__(self, *, size: int = 100, memory: MemoryPool | None = None) -> None:
        self.memory = memory or MemoryPool()
        self.sent: list[tuple[str, list[int], Deferred[MetadataResponse]]] = []
        self.outcomes: dict[int, bool] = {}
        self.again: list[tuple[str, int]] = []
        self.fails_at_once = False
        self.breaks = False
        self.queues: BatchQueues[str, int, MetadataResponse] = BatchQueues(
            self.send, self.settle, self.fail, size=lambda entry: size, memory=self.memory
        )

    def send(self, key: str, entries: Sequence[int]) -> Deferred[MetadataResponse]:
        response: Deferred[MetadataResponse] = Deferred()
        self.sent.append((key, list(entries), response))
        if self.fails_at_once:
            response.fail(KafkaError(ErrorCode.NETWORK_EXCEPTION))
        return response

    def settle(self, entries: Sequence[int], response: MetadataResponse) -> None:
        self.outcomes |= dict.fromkeys(entries, True)
        if self.breaks:
            raise ValueError("malformed")
        self.follow()

    def fail(self, entries: Sequence[int], error: KafkaError) -> None:
        self.outcomes |= dict.fromkeys(entries, False)
        self.follow()

    def follow(self) -> None:
        again, self.again = self.again, []
        for key, entry in again:
            self.queues.add(key, entry)

    def answer(self, index: int = -1) -> None:
        self.sent[index][2].resolve(MetadataResponse())

    def batches(self) -> list[tuple[str, list[int]]]:
        return [(key, entries) for key, entries, _ in self.sent]


def test_entries_wait_for_the_request_before_them_and_leave_together() -> None:
    world = World()
    for entry in range(4):
        world.queues.add("a", entry)
    world.queues.add("b", 9)
    assert world.batches() == [("a", [0]), ("b", [9])]
    world.answer(0)
    assert world.batches()[2:] == [("a", [1, 2, 3])]
    world.answer()
    assert world.outcomes == dict.fromkeys(range(4), True)
    world.queues.add("a", 5)
    assert world.batches()[3:] == [("a", [5])]


def test_a_failed_request_does_not_hold_up_the_queue() -> None:
    world = World()
    world.queues.add("a", 0)
    world.queues.add("a", 1)
    world.sent[0][2].fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    assert world.outcomes == {0: False}
    assert world.batches()[1:] == [("a", [1])]


def test_entries_added_by_an_outcome_leave_in_one_request() -> None:
    world = World()
    world.queues.add("a", 0)
    world.again = [("a", 1), ("a", 2)]
    world.answer()
    assert world.batches()[1:] == [("a", [1, 2])]


def test_a_request_that_fails_at_once_does_not_recurse() -> None:
    world = World()
    world.queues.add("a", 0)
    for entry in range(1, 3 * MAX_ENTRIES):
        world.queues.add("a", entry)
    world.fails_at_once = True
    world.again = [("a", 3 * MAX_ENTRIES)]
    world.answer()
    assert [len(entries) for _, entries in world.batches()] == [1, *[MAX_ENTRIES] * 3]
    assert world.outcomes == {0: True} | dict.fromkeys(range(1, 3 * MAX_ENTRIES + 1), False)


def test_a_response_that_cannot_be_read_does_not_stop_the_queue() -> None:
    world = World()
    world.queues.add("a", 0)
    world.queues.add("a", 1)
    world.breaks = True
    with pytest.raises(ValueError, match="malformed"):
        world.answer()
    world.breaks = False
    assert world.batches()[1:] == [("a", [1])]


def test_waiting_entries_may_be_taken_out() -> None:
    world = World()
    for entry in range(5):
        world.queues.add("a", entry)
    world.queues.remove("a", 3)
    assert world.queues.remove_all(lambda entry: entry % 2 == 0) == [2, 4]
    world.answer()
    assert world.batches() == [("a", [0]), ("a", [1])]
    world.queues.add("a", 6)
    assert world.queues.remove_all(lambda entry: True) == [6]
    world.answer()
    assert len(world.sent) == 2


def test_entries_are_charged_until_they_have_their_outcome() -> None:
    world = World()
    for entry in range(4):
        assert world.queues.add("a", entry)
    assert world.queues.add("b", 9)
    assert world.memory.used == 500
    world.queues.remove("a", 3)
    assert world.memory.used == 400
    assert world.queues.remove_all(lambda entry: entry == 2) == [2]
    assert world.memory.used == 300
    world.answer(0)
    assert world.memory.used == 200, "1 is in flight now"
    world.sent[1][2].fail(KafkaError(ErrorCode.NETWORK_EXCEPTION))
    world.breaks = True
    with pytest.raises(ValueError, match="malformed"):
        world.answer(2)
    assert world.memory.used == 0


def test_entries_whose_request_fails_at_once_are_released() -> None:
    world = World()
    world.fails_at_once = True
    for entry in range(3):
        assert world.queues.add("a", entry)
    assert world.outcomes == dict.fromkeys(range(3), False)
    assert world.memory.used == 0


def test_a_broker_that_does_not_answer_does_not_collect_entries_without_a_bound() -> None:
    size = MAX_HELD_BYTES // 4
    world = World(size=size)
    assert [world.queues.add(key, entry) for entry, key in enumerate("aaabbb")] == [
        *[True] * 4,
        *[False] * 2,
    ]
    assert world.memory.used == MAX_HELD_BYTES
    world.answer(0)
    assert world.queues.add("a", 6)
    assert not world.queues.add("a", 7)


def test_without_memory_entries_are_refused_but_for_the_first() -> None:
    world = World(memory=MemoryPool(250))
    world.memory.charge(200)
    assert world.queues.add("a", 0), "else nothing would ever leave"
    assert not world.queues.add("a", 1)
    assert not world.queues.add("b", 2)
    world.memory.release(200)
    assert world.queues.add("b", 2)
    assert world.batches() == [("a", [0]), ("b", [2])]


def test_an_entry_larger_than_the_bound_is_sent() -> None:
    world = World(size=MAX_HELD_BYTES + 1)
    assert world.queues.add("a", 0)
    assert not world.queues.add("a", 1)
    world.answer()
    assert world.queues.add("a", 1)
