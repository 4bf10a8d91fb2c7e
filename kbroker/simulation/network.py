"""The network of a simulated cluster: connections whose bytes arrive late, in order and in pieces
of any size; a cut of one or both directions delays them until it is healed, as TCP retransmission
does. The connections of a killed process are reset. All addresses are ports of one host. Responses
on single connections can be delayed too, as if the packets of one flow were lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Any, Final, NamedTuple

from kbroker.protocol.apis import ApiKey
from kbroker.simulation.process import PROCESS, SimulatedProcess
from kbroker.simulation.unanswered import Conversation, UnansweredRequest

HOST: Final = "127.0.0.1"
SYN_RETRY_S: Final = 1.0
"""A connection request that was lost in a cut is sent again after this time."""
RETRANSMISSION_S: Final = 0.2
"""The maximum time until delayed bytes arrive after a cut has healed."""
SPLIT_SHARE: Final = 0.1
"""The share of writes that arrive in two pieces."""
FIRST_CLIENT_PORT: Final = 50_000


@dataclass
class Conditions:
    """The quality of the network. Delays in seconds; a share of the data takes up to `late_s`
    longer.
    """

    min_delay_s: float = 0.0002
    max_delay_s: float = 0.002
    late_share: float = 0.0
    late_s: float = 0.0

    @classmethod
    def drawn(cls, random: Random) -> Conditions:
        """Conditions of one seed."""
        return cls(
            max_delay_s=random.choice((0.001, 0.005, 0.03)),
            late_share=random.choice((0.0, 0.0, 0.01, 0.05)),
            late_s=random.choice((0.1, 1.0)),
        )


class Flow(NamedTuple):
    """The connections of one process to one port on which it has sent requests of one API."""

    api_key: ApiKey
    source: int
    port: int


class End(Enum):
    """How the other side of a connection closed it."""

    CLOSED = auto()
    RESET = auto()


class SimulatedSocket:
    """A bound port."""

    def __init__(self, network: SimulatedNetwork, port: int) -> None:
        self._network = network
        self.port = port

    def getsockname(self) -> tuple[str, int]:
        """See `socket.socket`."""
        return HOST, self.port

    def close(self) -> None:
        """Refuse new connections; open ones stay."""
        self._network.unlisten(self.port, self)


@dataclass(frozen=True)
class Listener:
    """The listener of a port. context: that of the listening process."""

    socket: SimulatedSocket
    process: SimulatedProcess
    context: Context
    protocol_factory: Callable[[], asyncio.BaseProtocol]


class SimulatedServer:
    """What `create_server` of the loop returns."""

    def __init__(self, socket: SimulatedSocket) -> None:
        self._socket = socket

    def close(self) -> None:
        """Stop accepting connections."""
        self._socket.close()


class SimulatedNetwork:
    """See the module. Processes are identified by their node ids."""

    def __init__(self, random: Random) -> None:
        self.conditions = Conditions()
        self._random = random
        self._listeners: dict[int, Listener] = {}
        self._cuts: set[tuple[int, int]] = set()
        self._held: set[Flow] = set()
        self._transports: dict[SimulatedTransport, None] = {}
        """In the order of creation."""
        self._conversations: dict[SimulatedTransport, Conversation] = {}
        """By the open client ends."""
        self._next_client_port = FIRST_CLIENT_PORT

    def unanswered(self) -> Iterator[UnansweredRequest]:
        """The requests without a response, on connections that their clients keep open."""
        for conversation in self._conversations.values():
            yield from conversation.unanswered

    # -- addresses --------------------------------------------------------------------------------

    def bind(self, port: int) -> SimulatedSocket:
        """A socket at the port, without a listener."""
        return SimulatedSocket(self, port)

    def listen(
        self,
        loop: asyncio.AbstractEventLoop,
        socket: SimulatedSocket,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
    ) -> SimulatedServer:
        """Accept connections from now on, in the calling process."""
        del loop
        listener = Listener(socket, _process(), copy_context(), protocol_factory)
        self._listeners[socket.port] = listener
        return SimulatedServer(socket)

    def unlisten(self, port: int, socket: SimulatedSocket) -> None:
        """Called when the socket is closed."""
        listener = self._listeners.get(port)
        if listener is not None and listener.socket is socket:
            del self._listeners[port]

    # -- connections ------------------------------------------------------------------------------

    async def connect(self, loop: asyncio.AbstractEventLoop, port: int) -> SimulatedTransport:
        """A connection of the calling process, without a protocol yet. Raises
        ConnectionRefusedError.
        """
        connected: asyncio.Future[SimulatedTransport] = loop.create_future()
        source, context = _process(), copy_context()
        outside = Context()

        def request() -> None:
            if connected.done() or not source.is_alive:
                return
            listener = self._listeners.get(port)
            if listener is None:
                connected.set_exception(ConnectionRefusedError(111, f"port {port}"))
                return
            target = listener.process
            if self.is_cut(source, target) or self.is_cut(target, source):
                loop.call_later(SYN_RETRY_S, request, context=outside)
                return
            connected.set_result(self._pair(loop, source, context, listener))

        loop.call_later(self.delay_s(), request, context=outside)
        return await connected

    def _pair(
        self,
        loop: asyncio.AbstractEventLoop,
        source: SimulatedProcess,
        context: Context,
        listener: Listener,
    ) -> SimulatedTransport:
        """Both ends of a connection; returns the client's."""
        self._next_client_port += 1
        near, far = (HOST, self._next_client_port), listener.socket.getsockname()
        client = SimulatedTransport(self, loop, source, context, near, far)
        server = SimulatedTransport(self, loop, listener.process, listener.context, far, near)
        client.peer, server.peer = server, client
        conversation = Conversation(source.node_id, listener.process.node_id)
        client.wrote = lambda data: conversation.asked(data, loop.time())
        server.wrote = conversation.answered
        self._conversations[client] = conversation
        self._transports[client] = self._transports[server] = None

        def accept() -> None:
            if not server.is_closing():
                protocol = listener.protocol_factory()
                server.set_protocol(protocol)
                protocol.connection_made(server)

        loop.call_soon(accept, context=listener.context.copy())
        return client

    def forget(self, transport: SimulatedTransport) -> None:
        """Called when one end is closed."""
        self._transports.pop(transport, None)
        self._conversations.pop(transport, None)

    def process_ended(self, process: SimulatedProcess) -> None:
        """The system resets the connections of a killed process and closes its sockets."""
        for port, listener in list(self._listeners.items()):
            if listener.process is process:
                del self._listeners[port]
        for transport in list(self._transports):
            if transport.process is process:
                transport.abort()

    # -- faults -----------------------------------------------------------------------------------

    def delay_s(self) -> float:
        """The delay of data that is sent now."""
        conditions, random = self.conditions, self._random
        delay_s = random.uniform(conditions.min_delay_s, conditions.max_delay_s)
        if conditions.late_share and random.random() < conditions.late_share:
            delay_s += random.uniform(0, conditions.late_s)
        return delay_s

    def pieces(self, data: bytes) -> list[bytes]:
        """The pieces in which one write arrives."""
        if len(data) > 1 and self._random.random() < SPLIT_SHARE:
            at = self._random.randrange(1, len(data))
            return [data[:at], data[at:]]
        return [data]

    def retransmission_s(self) -> float:
        """The time until bytes arrive that a cut has delayed."""
        return self._random.uniform(0, RETRANSMISSION_S)

    def cut(self, source: int, target: int) -> None:
        """Deliver no data from one process to another from now on."""
        self._cuts.add((source, target))

    def heal(self, source: int, target: int) -> None:
        """End the cut; delayed data arrives."""
        self._cuts.discard((source, target))
        for transport in list(self._transports):
            peer = transport.peer
            if peer is not None and (peer.process.node_id, transport.process.node_id) == (
                source,
                target,
            ):
                transport.continue_after_cut()

    def hold_answers(self, flow: Flow) -> None:
        """Deliver no response of the flow from now on, also on later connections."""
        self._held.add(flow)

    def release_answers(self, flow: Flow) -> None:
        """Deliver the delayed responses."""
        self._held.discard(flow)
        for transport in list(self._conversations):
            if self._is_of(transport, flow):
                transport.continue_after_cut()

    def is_held(self, transport: SimulatedTransport) -> bool:
        """Whether no data arrives at this end of a connection, that of a client or a server."""
        return bool(self._held) and any(self._is_of(transport, flow) for flow in self._held)

    def last_asked_s(self, flow: Flow) -> float:
        """When the flow's last request was sent on an open connection; -1 if none was."""
        times = [
            conversation.last_asked_s[flow.api_key]
            for transport, conversation in self._conversations.items()
            if self._is_of(transport, flow)
        ]
        return max(times, default=-1.0)

    def _is_of(self, transport: SimulatedTransport, flow: Flow) -> bool:
        conversation = self._conversations.get(transport)
        return (
            conversation is not None
            and flow.api_key in conversation.last_asked_s
            and transport.process.node_id == flow.source
            and transport.get_extra_info("peername")[1] == flow.port
        )

    def is_cut(self, source: SimulatedProcess, target: SimulatedProcess) -> bool:
        """Whether no data is delivered from source to target."""
        return (source.node_id, target.node_id) in self._cuts


def _process() -> SimulatedProcess:
    process = PROCESS.get()
    if process is None:
        raise RuntimeError("only a process has connections")
    return process


def _ignore(data: bytes) -> None:
    """Ignore written data."""


class SimulatedTransport(asyncio.Transport):
    """One end of a connection. Buffers have no limit."""

    def __init__(
        self,
        network: SimulatedNetwork,
        loop: asyncio.AbstractEventLoop,
        process: SimulatedProcess,
        context: Context,
        address: tuple[str, int],
        peer_address: tuple[str, int],
    ) -> None:
        super().__init__({"sockname": address, "peername": peer_address})
        self.process = process
        self.peer: SimulatedTransport | None = None
        self.wrote: Callable[[bytes], None] = _ignore
        """Called with the data that this end writes."""
        self._network = network
        self._loop = loop
        self._context = context
        self._protocol: asyncio.BaseProtocol | None = None
        self._on_the_way: deque[bytes | End] = deque()
        self._held_back = 0
        """How many of these bytes a cut has delayed."""
        self._unread: deque[bytes | End] = deque()
        """Data that has arrived and was not passed to the protocol."""
        self._last_arrival_s = 0.0
        self._is_reading = True
        self._is_closing = False

    # -- asyncio.Transport ------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See asyncio."""
        self._protocol = protocol
        self._plan_reading()

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See asyncio."""
        if self._protocol is None:
            raise RuntimeError("a connection without a protocol")
        return self._protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See asyncio."""
        if self._is_closing or self.peer is None:
            return
        sent = bytes(data)
        self.wrote(sent)
        for piece in self._network.pieces(sent):
            self.peer.send(piece)

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._is_closing

    def close(self) -> None:
        """See asyncio."""
        self._end(End.CLOSED)

    def abort(self) -> None:
        """See asyncio."""
        self._end(End.RESET)

    def can_write_eof(self) -> bool:
        """See asyncio."""
        return False

    def pause_reading(self) -> None:
        """See asyncio."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """See asyncio."""
        self._is_reading = True
        self._plan_reading()

    def is_reading(self) -> bool:
        """See asyncio."""
        return self._is_reading and not self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Does nothing: all data is sent at once."""

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return 0

    # -- the network ------------------------------------------------------------------------------

    def send(self, item: bytes | End) -> None:
        """The peer has sent an item, which arrives here after its earlier items."""
        if self._is_closing:
            return
        self._on_the_way.append(item)
        now_s = self._loop.time()
        self._last_arrival_s = max(self._last_arrival_s, now_s + self._network.delay_s())
        self._loop.call_at(self._last_arrival_s, self._arrived, context=Context())

    def _arrived(self) -> None:
        if self._is_closing or self.peer is None:
            return
        network = self._network
        if (
            self._held_back
            or network.is_cut(self.peer.process, self.process)
            or network.is_held(self)
        ):
            self._held_back += 1
            return
        self._unread.append(self._on_the_way.popleft())
        self._plan_reading()

    def continue_after_cut(self) -> None:
        """Deliver the data that a cut has delayed."""
        count, self._held_back = self._held_back, 0
        at_s = self._loop.time() + self._network.retransmission_s()
        self._last_arrival_s = max(self._last_arrival_s, at_s)
        for _ in range(count):
            self._loop.call_at(self._last_arrival_s, self._arrived, context=Context())

    # -- the process ------------------------------------------------------------------------------

    def _plan_reading(self) -> None:
        if self._unread and self._protocol is not None:
            self._loop.call_soon(self._read, context=self._context.copy())

    def _read(self) -> None:
        """Pass the data that has arrived to the protocol."""
        while self._unread and self._is_reading and not self._is_closing:
            item = self._unread.popleft()
            if item is End.RESET:
                self._lost(ConnectionResetError(104, "connection reset"))
            elif item is End.CLOSED:
                self._peer_closed()
            else:
                self._receive(item)

    def _receive(self, data: bytes | End) -> None:
        protocol = self.get_protocol()
        if isinstance(data, End):
            return
        if isinstance(protocol, asyncio.Protocol):
            protocol.data_received(data)
            return
        if not isinstance(protocol, asyncio.BufferedProtocol):
            raise TypeError(f"{protocol} receives no bytes")
        while data and self._is_reading and not self._is_closing:
            buffer: Any = protocol.get_buffer(len(data))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            protocol.buffer_updated(count)
            data = data[count:]
        if data:
            self._unread.appendleft(data)

    def _peer_closed(self) -> None:
        protocol = self.get_protocol()
        keeps_open = False
        if isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol):
            keeps_open = bool(protocol.eof_received())
        if not keeps_open:
            self.close()

    def _end(self, end: End) -> None:
        """Close this end; the peer sees that after all written data."""
        if self._is_closing:
            return
        if self.peer is not None:
            self.peer.send(end)
        self._lost(None)

    def _lost(self, error: Exception | None) -> None:
        self._is_closing = True
        self._network.forget(self)
        self._unread.clear()
        self._on_the_way.clear()
        if self._protocol is not None:
            self._loop.call_soon(
                self._protocol.connection_lost, error, context=self._context.copy()
            )
