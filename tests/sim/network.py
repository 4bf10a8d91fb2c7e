"""The network between simulated nodes: messages that are lost, delayed, doubled and reordered, and
connections that break; both are subject to cuts, of one direction or of both.

`send` carries messages as values, each on its own way: the harshest network, for cores whose
messages are requests and responses. `open` makes a connection: bytes in order, in pieces of any
size, late, stalled by a cut until it heals, and reset by `break_connections` or by the death of the
other end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from kbroker.client.channel.streams import StreamReceiver
from tests.sim.process import SimProcess
from tests.sim.timers import SimTimers

RETRANSMISSION_MS = 200
"""How long after a cut has healed the bytes that it stalled arrive, at most."""


@dataclass
class Conditions:
    """How bad the network is. Delays in ms, from `min_delay_ms` to `max_delay_ms`; a share of the
    messages takes up to `late_ms` longer, is lost, or arrives twice.
    """

    min_delay_ms: float = 0.2
    max_delay_ms: float = 3.0
    late: float = 0.0
    late_ms: float = 0.0
    loss: float = 0.0
    duplication: float = 0.0

    @classmethod
    def drawn(cls, random: Random) -> Conditions:
        """Conditions of one seed: each trouble is absent in some of the seeds."""
        return cls(
            max_delay_ms=random.choice((1.0, 10.0, 60.0)),
            late=random.choice((0.0, 0.02, 0.2)),
            late_ms=random.choice((100.0, 1_000.0, 5_000.0)),
            loss=random.choice((0.0, 0.01, 0.15)),
            duplication=random.choice((0.0, 0.01, 0.2)),
        )


Receive = Callable[[int, object], None]
"""(source, message): a message has arrived at a node."""


Accept = Callable[["SimStream"], StreamReceiver]
"""Called with the accepting end of a new connection; returns its receiver."""


class SimNetwork:
    """Nodes are numbers. `attach` a node's process to receive messages, and to accept connections
    where accept is given.
    """

    def __init__(
        self, timers: SimTimers, random: Random, conditions: Conditions | None = None
    ) -> None:
        self.conditions = conditions or Conditions()
        self.random = random
        self._timers = timers
        self._nodes: dict[int, tuple[SimProcess, Receive | None, Accept | None]] = {}
        self._cuts: set[tuple[int, int]] = set()
        self._streams: list[SimStream] = []

    def attach(
        self,
        node: int,
        process: SimProcess,
        *,
        receive: Receive | None = None,
        accept: Accept | None = None,
    ) -> None:
        """The node's process is there."""
        self._nodes[node] = process, receive, accept

    def detach(self, node: int, *, silently: bool = False) -> None:
        """The node's process has ended. silently: by a loss of power, so that its peers are told of
        nothing.
        """
        del self._nodes[node]
        for stream in list(self._streams):
            if stream.node == node:
                if silently:
                    self.forget(stream)
                else:
                    stream.reset()

    # -- cuts -------------------------------------------------------------------------------------

    def cut(self, source: int, target: int) -> None:
        """From now on nothing of source reaches target."""
        self._cuts.add((source, target))

    def isolate(self, node: int, others: list[int]) -> None:
        """Cut a node off, in both directions."""
        for other in others:
            if other != node:
                self._cuts |= {(node, other), (other, node)}

    def is_cut(self, source: int, target: int) -> bool:
        """Whether nothing of source reaches target."""
        return (source, target) in self._cuts

    def heal(self, source: int, target: int) -> None:
        """End the cut from source to target."""
        self._cuts.discard((source, target))
        for stream in self._streams:
            if stream.node == target and stream.peer_node == source:
                stream.continue_after_cut()

    def heal_all(self) -> None:
        """End every cut; the network is a good one from now on."""
        self.conditions = Conditions()
        for source, target in sorted(self._cuts):
            self.heal(source, target)

    # -- messages ---------------------------------------------------------------------------------

    def delay_ms(self) -> float:
        """How long something takes that is sent now."""
        conditions, random = self.conditions, self.random
        delay_ms = random.uniform(conditions.min_delay_ms, conditions.max_delay_ms)
        if conditions.late and random.random() < conditions.late:
            delay_ms += random.uniform(0, conditions.late_ms)
        return delay_ms

    def send(self, source: int, target: int, message: object) -> None:
        """Send a message; it may arrive, once or twice, before or after those sent after it."""
        if (source, target) in self._cuts:
            return
        conditions, random = self.conditions, self.random
        if conditions.loss and random.random() < conditions.loss:
            return
        arrive = partial(self._arrive, source, target, message)
        self._timers.call_later(self.delay_ms(), arrive)
        if conditions.duplication and random.random() < conditions.duplication:
            self._timers.call_later(self.delay_ms(), arrive)

    def _arrive(self, source: int, target: int, message: object) -> None:
        node = self._nodes.get(target)
        if node is not None and node[1] is not None:
            process, receive, _ = node
            process.run(partial(receive, source, message))

    # -- connections ------------------------------------------------------------------------------

    def open(self, source: int, target: int, receiver: StreamReceiver) -> SimStream:
        """Begin a connection. receiver is told `connected` or `connection_lost`, or nothing while
        the direction there or the one back is cut.
        """
        process = self._nodes[source][0]
        stream = SimStream(self, self._timers, source, target, process, receiver)
        self._streams.append(stream)
        self._timers.call_later(self.delay_ms(), partial(self._accept, stream))
        return stream

    def _accept(self, stream: SimStream) -> None:
        source, target = stream.node, stream.peer_node
        if stream.is_closed or self.is_cut(source, target):
            return
        node = self._nodes.get(target)
        if node is None or node[2] is None:
            stream.lose("connection refused")
            return
        process, _, accept = node
        other = SimStream(self, self._timers, target, source, process, None)
        other.peer, stream.peer = stream, other
        self._streams.append(other)

        def accepted() -> None:
            other.receiver = accept(other)
            other.receiver.connected()

        process.run(accepted)
        stream.arrive(None)

    def break_connections(self, node: int, other: int) -> None:
        """Reset every connection between two nodes; an end that a cut separates is told of it only
        once the cut has healed.
        """
        for stream in list(self._streams):
            if (stream.node, stream.peer_node) == (node, other):
                stream.reset()

    def forget(self, stream: SimStream) -> None:
        """The end of a connection is closed."""
        stream.is_closed = True
        if stream in self._streams:
            self._streams.remove(stream)


class SimStream:
    """One end of a connection. `write` and `close` are its process's; the rest is the network's."""

    def __init__(
        self,
        network: SimNetwork,
        timers: SimTimers,
        node: int,
        peer_node: int,
        process: SimProcess,
        receiver: StreamReceiver | None,
    ) -> None:
        self.node = node
        self.peer_node = peer_node
        self.peer: SimStream | None = None
        self.receiver = receiver
        self.is_closed = False
        self._network = network
        self._timers = timers
        self._process = process
        self._incoming: deque[bytes | str | None] = deque()
        """What is on its way here, in order: None is the connection itself, a str its end."""
        self._last_arrival_ms = 0.0
        self._stalled_count = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes; they arrive in order, in pieces of any size."""
        if self.is_closed or self.peer is None or not data:
            return
        content = bytes(data)
        if self._network.random.random() < 0.2:
            at = self._network.random.randrange(len(content) + 1)
            self.peer.arrive(content[:at])
            content = content[at:]
        self.peer.arrive(content)

    def close(self) -> None:
        """Close this end, after what was written."""
        if not self.is_closed:
            self._network.forget(self)
            if self.peer is not None:
                self.peer.arrive("the peer closed the connection")

    def reset(self) -> None:
        """End the connection: both ends are told, the other one after what is on its way."""
        if not self.is_closed:
            self.lose("connection reset")
            if self.peer is not None:
                self.peer.arrive("connection reset")

    def lose(self, reason: str) -> None:
        """This end is closed, and its process is told."""
        self._network.forget(self)
        if self.receiver is not None:
            self._process.run(partial(self.receiver.connection_lost, reason))

    def arrive(self, item: bytes | str | None) -> None:
        """Something is on its way to this end."""
        if self.is_closed:
            return
        self._incoming.append(item)
        now_ms = self._timers.time_ms
        arrival_ms = max(self._last_arrival_ms, now_ms + self._network.delay_ms())
        self._last_arrival_ms = arrival_ms
        self._timers.call_later(arrival_ms - now_ms, self._next_arrived)

    def continue_after_cut(self) -> None:
        """What the cut held back arrives now."""
        stalled, self._stalled_count = self._stalled_count, 0
        delay_ms = self._network.random.uniform(0, RETRANSMISSION_MS)
        self._last_arrival_ms = max(self._last_arrival_ms, self._timers.time_ms + delay_ms)
        for _ in range(stalled):
            self._timers.call_later(delay_ms, self._next_arrived)

    def _next_arrived(self) -> None:
        if self.is_closed:
            return
        if self._stalled_count or self._network.is_cut(self.peer_node, self.node):
            self._stalled_count += 1
            return
        item = self._incoming.popleft()
        if isinstance(item, str):
            self.lose(item)
        else:
            self._process.run(partial(self._deliver, item))

    def _deliver(self, item: bytes | None) -> None:
        receiver = self.receiver
        if self.is_closed or receiver is None:
            return
        if item is None:
            receiver.connected()
        else:
            receiver.data_received(item)
