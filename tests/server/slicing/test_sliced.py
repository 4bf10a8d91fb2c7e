"""Handlers in slices: what is answered at once, what later, and what ends with the connection."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.model import InvariantError
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.framing import encode_request_frame
from kbroker.protocol.messages.coordinators.groups import HeartbeatRequest, HeartbeatResponse
from kbroker.replication.time_slices import FairSlices, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.api_policy import NO_AUTHORISATION, ApiPolicy, Versions
from kbroker.server.dispatch import Dispatcher
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.requests import Outcome, RequestContext
from kbroker.server.session import Session
from kbroker.server.slicing.large_requests import FREED_ITEMS
from kbroker.server.slicing.sliced import UNFINISHED_BYTES, AnswerSize, sliced
from kbroker.settings.broker import BrokerConfig
from tests.replication.test_time_slices import Ticks, Turns

STEPS_PER_SLICE = 4


def error_response(request: HeartbeatRequest, code: ErrorCode, message: str) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=code)


class World:
    """A handler of as many steps as the request's generation says."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.slices = FairSlices(self.turns, seconds=STEPS_PER_SLICE / 1000, clock=Ticks())
        self.done: list[str] = []
        self.fails_with: Exception | None = None
        self.memory = MemoryPool(1 << 20)

        @sliced
        def handle(
            services: Any, context: RequestContext, request: HeartbeatRequest
        ) -> Steps[HeartbeatResponse]:
            for _ in range(request.generation_id):
                self.done.append(request.group_id)
                yield
            if self.fails_with is not None:
                raise self.fails_with
            return HeartbeatResponse(throttle_time_ms=request.generation_id)

        self._handle = handle

    def ask(self, name: str, steps: int) -> Outcome:
        services: Any = SimpleNamespace(slices=self.slices, memory=self.memory, node_id=1)
        request = HeartbeatRequest(group_id=name, generation_id=steps)
        return self._handle(services, RequestContext(ApiKey.HEARTBEAT, 4), request)

    def answer(self, name: str, steps: int) -> Deferred[Any]:
        """The response as a connection gets it from `dispatch`."""
        policy = ApiPolicy(Versions(0, 4), NO_AUTHORISATION)
        handler = ApiHandler(ApiKey.HEARTBEAT, self._handle, error_response, policy)
        services: Any = SimpleNamespace(slices=self.slices, memory=self.memory, node_id=1)
        request = HeartbeatRequest(group_id=name, generation_id=steps)
        parts = cast(list[bytes], encode_request_frame(request, 4, 7, "c"))
        frame = memoryview(bytearray(b"".join(parts)[4:]))
        pending = Dispatcher((handler,), services).dispatch(Session(), frame, 0)
        assert pending is not None and pending.deferred is not None
        answer: Deferred[Any] = Deferred()
        pending.deferred.on_done(
            answer.resolve, lambda error: answer.resolve(pending.error_response(error))
        )
        return answer


def test_what_fits_into_a_slice_is_answered_at_once() -> None:
    world = World()
    assert world.ask("a", 2) == HeartbeatResponse(throttle_time_ms=2)
    world.turns.turn()
    assert not world.turns.due


def test_the_loop_has_its_turn_after_each_slice() -> None:
    world = World()
    answer = world.ask("a", 10)
    assert isinstance(answer, Deferred)
    assert not answer.done
    counts = [len(world.done)]
    while not answer.done:
        world.turns.turn()
        counts.append(len(world.done))
    assert max(b - a for a, b in pairwise(counts)) <= STEPS_PER_SLICE
    assert answer.value == HeartbeatResponse(throttle_time_ms=10)


def test_requests_of_one_turn_share_a_slice_but_each_has_a_step() -> None:
    world = World()
    for name in "abcdef":
        world.ask(name, 100)
    assert len(world.done) <= STEPS_PER_SLICE + 5
    assert set(world.done) == set("abcdef")


def test_they_take_turns() -> None:
    world = World()
    long, short = world.ask("long", 1000), world.ask("short", 5)
    assert isinstance(long, Deferred)
    assert isinstance(short, Deferred)
    for _ in range(6):
        world.turns.turn()
    assert short.done
    assert not long.done


def test_a_cancelled_one_takes_no_further_step() -> None:
    world = World()
    answer = world.ask("a", 100)
    assert isinstance(answer, Deferred)
    done = len(world.done)
    answer.cancel()
    world.turns.turn()
    assert len(world.done) == done
    assert not answer.done
    assert not world.slices.waiting


def test_what_is_not_done_in_its_first_slice_is_charged_until_it_is() -> None:
    world = World()
    world.ask("short", 1)
    assert world.memory.used == 0
    outcomes = [world.ask(name, 5 * STEPS_PER_SLICE) for name in "abc"]
    assert world.memory.used == 3 * UNFINISHED_BYTES
    assert world.memory.is_pressed, "others with large responses wait"
    assert isinstance(outcomes[0], Deferred)
    outcomes[0].cancel()
    outcomes[0].cancel()
    assert world.memory.used == 2 * UNFINISHED_BYTES
    world.fails_with = KafkaError(ErrorCode.INVALID_REQUEST, "no")
    while world.turns.due:
        world.turns.turn()
    assert world.memory.used == 0


@pytest.mark.parametrize("error", [KafkaError(ErrorCode.INVALID_REQUEST, ""), ValueError("x")])
def test_what_the_first_slice_raises_is_dispatchs(error: Exception) -> None:
    world = World()
    world.fails_with = error
    with pytest.raises(type(error)) as raised:
        world.ask("a", 1)
    assert raised.value is error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaError(ErrorCode.INVALID_REQUEST, ""), ErrorCode.INVALID_REQUEST),
        (ValueError("x"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_a_later_slice_raises_is_answered(error: Exception, code: ErrorCode) -> None:
    world = World()
    world.fails_with = error
    answer = world.answer("a", 10)
    assert isinstance(answer, Deferred)
    while not answer.done:
        world.turns.turn()
    assert answer.value == HeartbeatResponse(error_code=code)


def test_a_broken_invariant_leaves_the_loop_to_stop_the_broker() -> None:
    world = World()
    world.fails_with = InvariantError("x")
    other = world.ask("other", 10)
    world.ask("a", 10)
    assert isinstance(other, Deferred)
    with pytest.raises(InvariantError):
        while world.turns.due:
            world.turns.turn()


def test_the_size_of_an_answer_is_charged_and_bounded() -> None:
    memory = MemoryPool()
    config = BrokerConfig.from_properties({"kbroker.response.max.bytes": "1024"})
    services: Any = SimpleNamespace(memory=memory, config=config)
    with AnswerSize(services) as size:
        assert size.add(1000)
        assert memory.used == 1000
        assert not size.add(25)
        assert size.is_full
        assert not size.add(1)
    assert memory.used == 0


def test_unfinished_work_fails_when_the_broker_stops() -> None:
    turns = Turns()
    slices = FairSlices(turns, seconds=STEPS_PER_SLICE / 1000, clock=Ticks())
    failures: list[Exception | None] = []
    waited_for: Deferred[int] = Deferred()

    def waits() -> Iterator[Deferred[int] | None]:
        yield waited_for
        raise AssertionError("no step is taken after the close")

    slices.begin(waits(), failures.append)
    slices.begin(iter([None] * 100), failures.append)
    slices.close()
    assert len(failures) == 1
    waited_for.resolve(1)
    slices.begin(iter([None] * 100), failures.append)
    assert len(failures) == 3
    for failure in failures:
        assert isinstance(failure, KafkaError)
        assert failure.code is ErrorCode.BROKER_NOT_AVAILABLE


def test_a_step_may_wait() -> None:
    """The loop is not kept busy meanwhile, and a cancelled work is not taken up again."""
    turns = Turns()
    slices = FairSlices(turns, seconds=STEPS_PER_SLICE / 1000, clock=Ticks())
    done: list[object] = []

    def steps(waits_for: Deferred[int]) -> Iterator[Deferred[int] | None]:
        yield waits_for
        done.append(waits_for.value)

    first: Deferred[int] = Deferred()
    second: Deferred[int] = Deferred()
    slices.begin(steps(first), done.append)
    slices.begin(steps(second), done.append).cancel()
    slices.begin(steps(Deferred.of(3)), done.append)
    assert done == [3, None]
    while turns.due:
        turns.turn()
    first.resolve(1)
    second.resolve(2)
    assert done == [3, None]
    while turns.due:
        turns.turn()
    assert done == [3, None, 1, None]


class Item:
    """One of what a handler makes; tells when it is freed."""

    freed = 0

    def __del__(self) -> None:
        Item.freed += 1


def test_what_a_handler_has_made_is_freed_in_slices_when_its_connection_is_closed() -> None:
    turns = Turns()
    slices = FairSlices(turns, seconds=STEPS_PER_SLICE / 1000, clock=Ticks())
    closed: list[str] = []

    def inner() -> Steps[HeartbeatResponse]:
        made = [Item() for _ in range(20 * FREED_ITEMS)]
        try:
            while made:
                yield None
        finally:
            closed.append("inner")
        return HeartbeatResponse()

    @sliced
    def handle(
        services: Any, context: RequestContext, request: HeartbeatRequest
    ) -> Steps[HeartbeatResponse]:
        made = [(Item(), "with another") for _ in range(20 * FREED_ITEMS)]
        response = yield from inner()
        del made
        return response

    Item.freed = 0
    services: Any = SimpleNamespace(slices=slices, memory=MemoryPool(), node_id=1)
    answer = handle(services, RequestContext(ApiKey.HEARTBEAT, 4), HeartbeatRequest())
    assert isinstance(answer, Deferred)
    answer.cancel()
    assert closed == ["inner"]
    at_once = [Item.freed]
    while slices.waiting:
        turns.turn()
        at_once.append(Item.freed)
    assert Item.freed == 40 * FREED_ITEMS
    assert (
        max(after - before for before, after in pairwise([0, *at_once]))
        <= (STEPS_PER_SLICE + 1) * FREED_ITEMS
    )
