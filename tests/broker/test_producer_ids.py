"""Producer ids from blocks: each once, waiting only where there is none."""

from __future__ import annotations

import pytest

from kbroker.broker.producer_ids import WAIT_MS, ProducerIdManager
from kbroker.controller.producer_ids import ProducerIdBlock
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.sim.timers import SimTimers


class Blocks:
    """The controller's side: answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Deferred[ProducerIdBlock]] = []
        self.refuse = False

    def allocate(self) -> Deferred[ProducerIdBlock]:
        if self.refuse:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        self.asked.append(Deferred())
        return self.asked[-1]

    def answer(self) -> None:
        number = len(self.asked) - 1
        self.asked[-1].resolve(ProducerIdBlock(number * 1000, 1000))


def test_the_first_ids_wait_and_come_in_order() -> None:
    blocks = Blocks()
    manager = ProducerIdManager(blocks.allocate, SimTimers())
    waiting = [manager.next_id() for _ in range(3)]
    assert len(blocks.asked) == 1
    blocks.answer()
    assert [each.value for each in waiting] == [0, 1, 2]
    assert manager.next_id().value == 3


def test_the_next_block_is_asked_for_before_it_is_needed() -> None:
    blocks = Blocks()
    manager = ProducerIdManager(blocks.allocate, SimTimers())
    manager.next_id()
    blocks.answer()
    ids = [manager.next_id().value for _ in range(950)]
    assert len(blocks.asked) == 2
    blocks.answer()
    waiting = [manager.next_id() for _ in range(100)]
    ids += [each.value for each in waiting]
    assert ids == list(range(1, 1051))


def test_more_waiting_than_a_block_holds() -> None:
    blocks = Blocks()
    manager = ProducerIdManager(blocks.allocate, SimTimers())
    waiting = [manager.next_id() for _ in range(1500)]
    blocks.answer()
    blocks.answer()
    assert [each.value for each in waiting] == list(range(1500))


def test_a_refusal_is_the_callers_only_when_none_is_left() -> None:
    blocks = Blocks()
    blocks.refuse = True
    manager = ProducerIdManager(blocks.allocate, SimTimers())
    with pytest.raises(KafkaError):
        _ = manager.next_id().value
    blocks.refuse = False
    manager.next_id()
    blocks.answer()
    blocks.refuse = True
    assert [manager.next_id().value for _ in range(999)] == list(range(1, 1000))
    with pytest.raises(KafkaError):
        _ = manager.next_id().value


def test_who_waits_for_a_block_fails_with_the_controller_and_may_try_again() -> None:
    blocks = Blocks()
    manager = ProducerIdManager(blocks.allocate, SimTimers())
    waiting = [manager.next_id() for _ in range(2)]
    blocks.asked[0].fail(KafkaError(ErrorCode.NOT_CONTROLLER))
    for each in waiting:
        assert each.error is not None and each.error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    again = manager.next_id()
    blocks.answer()
    assert again.value == 1000


def test_all_that_wait_fail_if_a_further_block_is_refused() -> None:
    """1500 wait, a block holds 1000, and the controller resigned before the second request."""
    blocks = Blocks()
    manager = ProducerIdManager(blocks.allocate, SimTimers())
    waiting = [manager.next_id() for _ in range(1500)]
    blocks.refuse = True
    blocks.answer()
    assert [each.value for each in waiting[:1000]] == list(range(1000))
    for each in waiting[1000:]:
        assert each.error is not None
        assert each.error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    blocks.refuse = False
    again = manager.next_id()
    blocks.answer()
    assert again.value == 1000


def test_no_one_waits_for_long_and_a_late_block_is_used() -> None:
    blocks, timers = Blocks(), SimTimers()
    manager = ProducerIdManager(blocks.allocate, timers)
    first = manager.next_id()
    timers.advance(WAIT_MS - 1)
    second = manager.next_id()
    assert not first.done
    timers.advance(1)
    assert first.error is not None
    assert first.error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not second.done
    timers.advance(WAIT_MS - 1)
    assert second.error is not None
    assert len(blocks.asked) == 1, "the request for the block goes on"
    blocks.answer()
    assert manager.next_id().value == 0
    timers.advance(WAIT_MS)
