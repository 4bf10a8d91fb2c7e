"""Long work on the loop in slices, by a clock that only the steps move."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from kbroker.log.manager import LogManager
from kbroker.metadata.publisher import HostPartition, Order, RemovePartition
from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.time_slices import TimeSlices
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig
from tests.own_threads import own_threads
from tests.sim.offload import always, run_inline
from tests.sim.timers import SimTimer, SimTimers

STEPS_PER_SLICE = 4


class Turns(SimTimers):
    """What is due at once is done when the test says that the loop has its next turn."""

    def __init__(self) -> None:
        super().__init__()
        self.due: deque[Callable[[], None]] = deque()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> SimTimer:
        if delay_ms:
            return super().call_later(delay_ms, callback)
        self.due.append(callback)
        return SimTimer()

    def turn(self) -> None:
        self.due.popleft()()


class Ticks:
    """A clock that goes on by a millisecond whenever it is looked at."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> float:
        self.ms += 1
        return self.ms / 1000


def slices_of(turns: Turns) -> TimeSlices:
    return TimeSlices(turns, seconds=STEPS_PER_SLICE / 1000, clock=Ticks())


def steps(done: list[object], *names: object) -> Iterator[None]:
    for name in names:
        done.append(name)
        yield


def test_the_loop_has_its_turn_after_each_slice() -> None:
    turns, done = Turns(), list[object]()
    slices = slices_of(turns)
    slices.add(steps(done, *range(10)), lambda: done.append("end"))
    assert done == [0, 1, 2, 3]
    assert not slices.idle
    turns.turn()
    assert done == [*range(8)]
    turns.turn()
    assert done == [*range(10), "end"]
    assert slices.idle
    assert not turns.due
    assert slices.slices == 3


def test_what_fits_into_a_slice_is_done_at_once() -> None:
    turns, done = Turns(), list[object]()
    slices = slices_of(turns)
    slices.add(steps(done, 1), lambda: done.append("end"))
    slices.when_done().on_done(lambda _: done.append("idle"))
    assert done == [1, "end", "idle"]
    assert not turns.due


def test_pieces_keep_their_order() -> None:
    turns, done = Turns(), list[object]()
    slices = slices_of(turns)
    slices.add(steps(done, *"abcde"), lambda: done.append("first"))
    slices.when_done().on_done(lambda _: done.append("waiter"))
    slices.add(steps(done, "f"), lambda: done.append("second"))
    assert done == [*"abcd"]
    turns.turn()
    assert done == [*"abcde", "first", "waiter", "f", "second"]


def test_what_a_callback_adds_comes_last() -> None:
    turns, done = Turns(), list[object]()
    slices = slices_of(turns)
    slices.add(steps(done, *"abcde"), lambda: slices.add(steps(done, "added")))
    slices.add(steps(done, "f"))
    turns.turn()
    assert done == [*"abcdef", "added"]
    assert slices.idle


def test_finish_takes_all_and_cuts_nothing_from_then_on() -> None:
    turns, done = Turns(), list[object]()
    slices = slices_of(turns)
    slices.add(steps(done, *range(10)), lambda: done.append("end"))
    slices.finish()
    assert done == [*range(10), "end"]
    slices.add(steps(done, *range(10, 20)))
    assert done[-1] == 19
    turns.turn()  # planned before: finds nothing
    assert slices.idle


def test_close_drops_what_is_left() -> None:
    turns, done = Turns(), list[object]()
    slices = slices_of(turns)
    slices.add(steps(done, *range(10)), lambda: done.append("end"))
    slices.close()
    slices.add(steps(done, "late"))
    turns.turn()
    assert done == [0, 1, 2, 3]
    assert not turns.due


def test_what_waits_for_dropped_work_fails_and_so_does_a_later_wait() -> None:
    turns = Turns()
    slices = slices_of(turns)
    slices.add(steps([], *range(10)))
    waiting = slices.when_done()
    assert not waiting.done
    slices.close()
    for each in (waiting, slices.when_done()):
        assert each.error is not None and each.error.code is ErrorCode.BROKER_NOT_AVAILABLE


def test_a_step_may_close() -> None:
    turns, done = Turns(), list[object]()
    slices = slices_of(turns)

    def closing() -> Iterator[None]:
        slices.close()
        yield

    slices.add(closing(), lambda: done.append("end"))
    assert done == []
    assert slices.idle


def test_a_step_that_fails_takes_no_other_with_it() -> None:
    turns, done = Turns(), list[object]()
    slices = slices_of(turns)

    def one(name: str) -> None:
        if name == "b":
            raise OSError(name)
        done.append(name)

    with pytest.raises(OSError, match="b"):
        slices.add(map(one, "abc"), lambda: done.append("end"))
    turns.turn()
    assert done == ["a", "c", "end"]


# -- what a broker does in slices ------------------------------------------------------------------


class SlicedWorld:
    """Replicas whose manager needs a slice for every four orders."""

    def __init__(self, folder: Path) -> None:
        self.config = BrokerConfig.from_properties({"log.dirs": str(folder), "node.id": "1"})
        self.turns = Turns()
        self.logs = LogManager(
            self.config, now_ms=self.turns.now_ms, random=Random(1), threads=own_threads
        )
        self.logs.lock()
        self.logs.load()
        self.replicas = ReplicaManager(
            1, self.logs, self.turns, self.config, offloads=always(run_inline), random=Random(2),
            knows=lambda topic, index: topic in ("t", bytes(15) + b"\x01"),
            slices=lambda: slices_of(self.turns),
        )  # fmt: skip
        self.log_config = LogConfig.from_configs(self.config, {})

    def host(self, index: int, topic_id: bytes = bytes(15) + b"\x01") -> Order:
        return HostPartition(
            TopicPartition("t", index), topic_id, 1, 0, 0, (1,), (1,), self.log_config
        )

    def error(self, index: int) -> ErrorCode:
        found = self.replicas.find("t", index)
        return found if isinstance(found, ErrorCode) else ErrorCode.NONE

    def close(self) -> None:
        self.replicas.close()
        self.logs.close()


@pytest.fixture
def sliced(tmp_path: Path) -> Iterator[SlicedWorld]:
    world = SlicedWorld(tmp_path)
    yield world
    world.close()


def test_partitions_are_hosted_four_a_turn(sliced: SlicedWorld) -> None:
    done: list[int] = []
    sliced.replicas.apply([sliced.host(index) for index in range(10)])
    sliced.replicas.when_applied().on_done(lambda _: done.append(len(sliced.logs.logs)))
    assert len(sliced.logs.logs) == 4
    assert sliced.error(3) == ErrorCode.NONE
    assert sliced.error(4) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    sliced.turns.turn()
    assert len(sliced.logs.logs) == 8
    assert done == []
    sliced.turns.turn()
    assert done == [10]
    assert sliced.error(9) == ErrorCode.NONE


def test_a_topic_deleted_and_made_anew_in_between(sliced: SlicedWorld) -> None:
    other = bytes(15) + b"\x02"
    sliced.replicas.apply([sliced.host(index) for index in range(6)])
    sliced.replicas.apply([RemovePartition(TopicPartition("t", index)) for index in range(6)])
    sliced.replicas.apply([sliced.host(index, other) for index in range(6)])
    while sliced.turns.due:
        sliced.turns.turn()
    assert {log.topic_id for log in sliced.logs.logs.values()} == {other}
    topic = sliced.replicas.topic("t")
    assert topic is not None
    assert topic.topic_id == other
    assert sorted(topic.partitions) == [*range(6)]
    assert sliced.replicas.topic_by_id(bytes(15) + b"\x01") is None


def test_a_stop_in_the_middle(sliced: SlicedWorld) -> None:
    sliced.replicas.apply([sliced.host(index) for index in range(10)])
    sliced.replicas.drop_orders()
    sliced.turns.turn()
    assert len(sliced.logs.logs) == 4


def test_orders_are_finished_before_a_stop(sliced: SlicedWorld) -> None:
    sliced.replicas.apply([sliced.host(index) for index in range(10)])
    sliced.replicas.finish_orders()
    assert len(sliced.logs.logs) == 10


def test_retention_looks_at_four_logs_a_turn(sliced: SlicedWorld) -> None:
    sliced.replicas.apply([sliced.host(index) for index in range(10)])
    sliced.replicas.finish_orders()
    sliced.turns.turn()  # planned before the finish
    sliced.replicas.start()
    sliced.turns.advance(sliced.config.get_int("log.retention.check.interval.ms"))
    turns = 0
    while sliced.turns.due:
        sliced.replicas.apply([RemovePartition(TopicPartition("t", turns))])  # harmless meanwhile
        sliced.turns.turn()
        turns += 1
    assert turns == 2
