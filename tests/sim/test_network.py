"""The simulated network and processes: what they promise to the simulations built on them."""

from __future__ import annotations

from random import Random

import pytest

from tests.sim.network import Conditions, SimNetwork, SimStream
from tests.sim.process import SimProcess
from tests.sim.timers import SimTimers


class End:
    """A receiver that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.data = b""

    def connected(self) -> None:
        self.events.append("connected")

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, reason: str) -> None:
        self.events.append(reason)


class Net:
    """Two nodes, 1 and 2; node 2 accepts connections."""

    def __init__(self, seed: int = 0, conditions: Conditions | None = None) -> None:
        self.timers = SimTimers()
        self.random = Random(seed)
        self.network = SimNetwork(self.timers, self.random, conditions or Conditions())
        self.steps = 0
        self.received: list[tuple[int, object]] = []
        self.accepted: list[tuple[SimStream, End]] = []
        self.processes = {node: self._process() for node in (1, 2)}
        self.network.attach(1, self.processes[1])
        self.network.attach(
            2,
            self.processes[2],
            receive=lambda source, message: self.received.append((source, message)),
            accept=self._accept,
        )

    def _process(self) -> SimProcess:
        return SimProcess(self.timers, self.random, self._count)

    def _count(self) -> None:
        self.steps += 1

    def _accept(self, stream: SimStream) -> End:
        end = End()
        self.accepted.append((stream, end))
        return end

    def open(self) -> tuple[SimStream, End]:
        end = End()
        stream = self.network.open(1, 2, end)
        return stream, end


def test_messages_arrive_within_the_delays_and_a_step_follows_each() -> None:
    net = Net()
    net.network.send(1, 2, "hello")
    assert net.received == []
    net.timers.advance(10)
    assert net.received == [(1, "hello")] and net.steps == 1


def test_messages_are_lost_doubled_and_reordered_as_the_conditions_say() -> None:
    conditions = Conditions(max_delay_ms=50, loss=0.2, duplication=0.2)
    net = Net(conditions=conditions)
    for number in range(500):
        net.network.send(1, 2, number)
    net.timers.advance(60)
    numbers = [message for _, message in net.received]
    assert 350 < len(set(numbers)) < 450 < len(numbers)
    assert numbers != sorted(numbers, key=lambda each: (isinstance(each, int), each))


def test_a_cut_has_a_direction() -> None:
    net = Net()
    net.network.attach(
        1, net.processes[1], receive=lambda source, _: net.received.append((1, source))
    )
    net.network.cut(1, 2)
    net.network.send(1, 2, "lost")
    net.network.send(2, 1, "arrives")
    net.timers.advance(10)
    assert net.received == [(1, 2)]
    net.network.heal(1, 2)
    net.network.send(1, 2, "again")
    net.timers.advance(10)
    assert net.received[-1] == (1, "again")


@pytest.mark.parametrize("seed", range(5))
def test_the_bytes_of_a_connection_arrive_in_order_across_a_cut(seed: int) -> None:
    net = Net(seed, Conditions(max_delay_ms=40, late=0.3, late_ms=200))
    stream, end = net.open()
    net.timers.advance(500)
    assert end.events == ["connected"]
    other, far = net.accepted[0]
    sent = b""
    for number in range(50):
        if number == 20:
            net.network.cut(1, 2)
        if number == 40:
            assert len(far.data) < len(sent)
            net.network.heal(1, 2)
        stream.write(b"%03d" % number)
        sent += b"%03d" % number
        net.timers.advance(7)
    other.write(b"answer")
    net.timers.advance(1000)
    assert (far.data, end.data) == (sent, b"answer")
    stream.close()
    net.timers.advance(1000)
    assert far.events == ["connected", "the peer closed the connection"]
    assert other.is_closed


def test_a_connection_to_a_node_that_is_down_is_refused_and_to_one_cut_off_hangs() -> None:
    net = Net()
    net.network.detach(2)
    _, refused = net.open()
    net.timers.advance(100)
    net.network.cut(1, 2)
    _, hanging = net.open()
    net.timers.advance(10_000)
    assert refused.events == ["connection refused"] and hanging.events == []


@pytest.mark.parametrize("silently", [False, True])
def test_a_kill_ends_the_connections_of_its_process_and_a_power_loss_tells_nothing(
    silently: bool,
) -> None:
    net = Net()
    stream, end = net.open()
    net.timers.advance(100)
    net.processes[2].kill()
    net.network.detach(2, silently=silently)
    stream.write(b"x")
    net.timers.advance(10_000)
    assert end.events == ["connected"] + ([] if silently else ["connection reset"])
    assert net.accepted[0][1].data == b""


def test_a_reset_reaches_an_end_that_is_cut_off_once_the_cut_heals() -> None:
    net = Net()
    _, end = net.open()
    net.timers.advance(100)
    net.network.cut(1, 2)
    net.network.break_connections(1, 2)
    net.timers.advance(1_000)
    assert end.events == ["connected", "connection reset"]
    assert net.accepted[0][1].events == ["connected"]
    net.network.heal(1, 2)
    net.timers.advance(1_000)
    assert net.accepted[0][1].events == ["connected", "connection reset"]


def test_a_paused_process_runs_nothing_and_then_all_that_was_due() -> None:
    net = Net()
    process = net.processes[2]
    fired: list[int] = []
    process.call_later(10, lambda: fired.append(10))
    process.call_later(5, lambda: fired.append(5))
    cancelled = process.call_later(7, lambda: fired.append(7))
    process.pause()
    net.network.send(1, 2, "message")
    net.timers.advance(100)
    assert fired == [] and net.received == []
    cancelled.cancel()
    process.resume()
    assert fired == [5, 10] and net.received == [(1, "message")]


def test_a_killed_process_never_runs_again_and_its_successor_has_another_clock() -> None:
    net = Net()
    process = net.processes[2]
    fired: list[int] = []
    process.call_later(10, lambda: fired.append(1))
    before_ms = process.monotonic_ms()
    process.kill()
    net.timers.advance(20)
    assert fired == [] and net.steps == 0
    successor = SimProcess(net.timers, net.random, lambda: None)
    assert successor.monotonic_ms() != before_ms + 20
    successor.jump()
    assert successor.now_ms() == net.timers.time_ms + successor.wall_jump_ms


def test_the_same_seed_gives_the_same_network() -> None:
    def run() -> list[tuple[int, object]]:
        net = Net(3, Conditions(loss=0.3, duplication=0.3, late=0.3, late_ms=50))
        for number in range(100):
            net.network.send(1, 2, number)
        net.timers.advance(100)
        return net.received

    assert run() == run()
