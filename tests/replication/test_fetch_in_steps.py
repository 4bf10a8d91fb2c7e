"""A fetch of very many partitions, read in steps: it answers what one in a single pass does."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from tests.replication.world import World, batch, fetch_request, partitions_of, record_bytes

UNKNOWN = 200
HOSTED = 24
STEP_PARTITIONS = 4


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.replication.fetch.STEP_PARTITIONS", STEP_PARTITIONS)


class Steps:
    """A fetch under way. pauses: how often it let the loop have its turn."""

    def __init__(self, world: World, request: FetchRequest) -> None:
        self.steps = world.replicas.fetch_in_steps(
            request, api_version=12, now_ms=world.timers.now_ms()
        )
        self.pauses = 0
        self.response: FetchResponse | None = None

    def run(self) -> Deferred[Any] | None:
        """Up to the answer, or to what it waits for."""
        while self.step():
            if self.waits_for is not None:
                return self.waits_for
        return None

    def step(self) -> bool:
        try:
            self.waits_for = next(self.steps)
        except StopIteration as end:
            self.response = end.value
            return False
        self.pauses += 1
        return True

    @property
    def answer(self) -> FetchResponse:
        assert self.response is not None
        return self.response


def waiting(world: World) -> int:
    return world.replicas._reader._purgatory.waiting


def described(response: FetchResponse) -> dict[int, tuple[int, int, bytes]]:
    return {
        index: (data.error_code, data.high_watermark, record_bytes(data))
        for index, data in partitions_of(response).items()
    }


def test_unknown_partitions_are_looked_up_in_steps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[int] = []
    reader = world.replicas._reader
    whole = reader._find
    monkeypatch.setattr(reader, "_find", lambda key, i: looked_up.append(i) or whole(key, i))
    fetch = Steps(world, fetch_request({index: 0 for index in range(UNKNOWN)}))
    before = 0
    while fetch.step():
        assert len(looked_up) - before <= STEP_PARTITIONS
        before = len(looked_up)
    assert len(looked_up) == UNKNOWN
    codes = [data.error_code for data in partitions_of(fetch.answer).values()]
    assert codes[10:] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * (UNKNOWN - 10)


@pytest.mark.parametrize("max_bytes", [0, 1000, 1 << 20])
def test_the_answer_is_that_of_a_single_pass(world: World, max_bytes: int) -> None:
    """The limits too: they hold for all steps together."""
    for index in range(1, HOSTED):
        world.host(index)
    for index in range(0, HOSTED, 3):
        world.append(index, batch(2))
    request = fetch_request({index: 0 for index in range(HOSTED + 50)}, max_bytes=max_bytes)
    fetch = Steps(world, request)
    assert fetch.run() is None
    assert not world.host()._watchers
    assert fetch.pauses > HOSTED // STEP_PARTITIONS
    whole = world.fetch_now(request)
    assert described(fetch.answer) == described(whole)
    assert any(data.records for data in partitions_of(whole).values())


def test_it_waits_and_reads_what_came(world: World) -> None:
    request = fetch_request({0: 0, 7: 0}, max_wait_ms=500)
    fetch = Steps(world, request)
    waits_for = fetch.run()
    assert waits_for is not None
    world.timers.advance(100)
    assert not waits_for.done
    made = batch(3)
    world.append(batches=made)
    world.timers.advance(0)
    assert waits_for.done
    assert fetch.run() is None
    data = partitions_of(fetch.answer)
    assert record_bytes(data[0]) == bytes(made)
    assert data[7].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert waiting(world) == 0


@pytest.mark.parametrize("session", [(0, -1), (0, 0)])
def test_what_comes_behind_the_reader_is_answered_without_a_wait(
    world: World, session: tuple[int, int]
) -> None:
    asked = {index: 0 for index in range(UNKNOWN)}
    fetch = Steps(world, fetch_request(asked, max_wait_ms=500, session=session))
    for _ in range(3):
        assert fetch.step()
    world.append(batches=batch(3))
    assert fetch.run() is not None
    world.timers.advance(0)
    assert fetch.run() is None
    assert partitions_of(fetch.answer)[0].records
    assert waiting(world) == 0


@pytest.mark.parametrize("steps", [0, 1, 2, 10])
def test_one_that_ends_while_it_reads_leaves_nothing_behind(world: World, steps: int) -> None:
    fetch = Steps(world, fetch_request({index: 0 for index in range(UNKNOWN)}))
    for _ in range(steps):
        assert fetch.step()
    fetch.steps.close()
    assert not world.host()._watchers


def test_one_that_ends_while_it_waits_leaves_nothing_behind(world: World) -> None:
    fetch = Steps(world, fetch_request({0: 0}, max_wait_ms=500))
    assert fetch.run() is not None
    assert waiting(world) == 1
    fetch.steps.close()
    assert waiting(world) == 0
    partition = world.host()
    assert not partition._watchers


def test_a_session_goes_on(world: World) -> None:
    first = Steps(world, fetch_request({0: 0, 5: 0}, session=(0, 0)))
    assert first.run() is None
    session_id = first.answer.session_id
    world.append(batches=batch(3))
    following = world.fetch_now(fetch_request({}, session=(session_id, 1)))
    assert len(record_bytes(partitions_of(following)[0])) > 0


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_another_request_takes_the_session_over(world: World, steps: int) -> None:
    """The one that is under way answers what it has found, and does not wait."""
    for index in range(1, HOSTED):
        world.host(index)
    asked = {index: 0 for index in range(HOSTED)}
    opened = world.fetch_now(fetch_request(asked, session=(0, 0)))
    session_id = opened.session_id
    old = Steps(world, fetch_request(asked, session=(session_id, 1), max_wait_ms=500))
    for _ in range(steps):
        assert old.step()
    following = fetch_request({}, session=(session_id, 2), max_wait_ms=500)
    world.fetch(following)
    assert old.run() is None
    assert waiting(world) == 1
    world.timers.advance(500)
    assert waiting(world) == 0


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_session_ends_meanwhile(world: World, steps: int) -> None:
    for index in range(1, HOSTED):
        world.host(index)
    asked = {index: 0 for index in range(HOSTED)}
    session_id = world.fetch_now(fetch_request(asked, session=(0, 0))).session_id
    old = Steps(world, fetch_request(asked, session=(session_id, 1), max_wait_ms=500))
    for _ in range(steps):
        assert old.step()
    world.fetch_now(fetch_request({0: 0}, session=(session_id, -1)))
    assert old.run() is None
    assert all(not world.host(index)._watchers for index in range(3))
