"""One client connection: frames in, stage one, responses out in order, back-pressure both ways.

The next request starts after stage one of the last; its response waits in a queue until all earlier
ones have left. Reading stops while too many responses wait or the peer does not take what is sent,
and nothing is rendered while earlier bytes are not with the kernel: a slow reader costs one
response, not all of them. No task, no coroutine: everything happens in the callbacks of asyncio's
BufferedProtocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, Protocol

from kbroker.log.files import LogDirectoryError
from kbroker.model import InvariantError, Timers
from kbroker.protocol.codec import Part, part_size
from kbroker.protocol.errors import MalformedRequest
from kbroker.server.dispatch import CloseConnection, ConnectionInfo, PendingResponse
from kbroker.server.limits import ConnectionLimits, LogThrottle, PipelineBudget
from kbroker.server.receive_buffer import KEEP_BYTES, ReceiveBuffer
from kbroker.server.response_writer import ResponseWriter
from kbroker.server.stall_probe import StallProbe

logger = logging.getLogger(__name__)

MAX_PIPELINED: Final = 100
"""Requests of one connection that may wait for their response."""

FRAMES_PER_TURN: Final = 16
"""Requests of one connection handled before others get their turn."""

RENDER_BYTES: Final = 64 * 1024
"""Responses that are ready together leave in one write up to this size."""


class RequestDispatcher(Protocol):
    """What a connection needs of `dispatch.Dispatcher`."""

    def dispatch(
        self, connection: ConnectionInfo, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None: ...
    def render(self, pending: PendingResponse) -> list[Part]: ...


@dataclass(slots=True)
class ConnectionShared:
    """What the connections of a broker share. on_fatal: called for a broken invariant, which stops
    the broker. on_storage_error: called for records that cannot be read while they are sent.
    """

    loop: asyncio.AbstractEventLoop
    dispatcher: RequestDispatcher
    timers: Timers
    limits: ConnectionLimits
    budget: PipelineBudget
    max_frame_bytes: int
    executor: Executor | None
    on_fatal: Callable[[BaseException], None]
    node_id: int = -1
    max_buffered_bytes: int = 1 << 30
    """What all connections together may hold of requests that are not whole yet."""
    buffered_bytes: int = 0
    stalls: StallProbe | None = None
    connections: set[Connection] = field(default_factory=set)
    refused: LogThrottle = field(default_factory=lambda: LogThrottle(logger))
    next_number: int = 0
    on_empty: Callable[[], None] = lambda: None
    """Called when the last connection is gone."""
    on_storage_error: Callable[[LogDirectoryError], object] = lambda error: None
    on_lost: Callable[[str], None] = lambda connection_id: None
    """Called with the id of a connection that is gone."""


class Connection(asyncio.BufferedProtocol):
    """See the module's docstring. Made by `listener`; lives in `shared.connections` while it is
    open.
    """

    __slots__ = (
        "_buffer",
        "_closing",
        "_counted",
        "_extra",
        "_flush_planned",
        "_held_bytes",
        "_host",
        "_info",
        "_last_active",
        "_listener_name",
        "_peer",
        "_pump_planned",
        "_queue",
        "_reading",
        "_shared",
        "_transport",
        "_writer",
    )

    _transport: asyncio.Transport
    _writer: ResponseWriter
    _buffer: ReceiveBuffer
    _info: ConnectionInfo

    def __init__(self, shared: ConnectionShared, listener_name: str) -> None:
        self._shared = shared
        self._listener_name = listener_name
        self._queue: deque[PendingResponse] = deque()
        self._reading = True
        self._closing = False
        self._counted = False
        self._pump_planned = False
        self._flush_planned = False
        self._held_bytes = 0  # of the buffer, as counted in shared.buffered_bytes
        self._extra = 0  # places taken in the pipeline budget
        self._last_active = 0.0

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        shared = self._shared
        self._transport = transport  # type: ignore[assignment] # a stream server gives a Transport
        peer = transport.get_extra_info("peername") or ("unknown", 0)
        self._host = plain_host(str(peer[0]))
        self._peer = f"{self._host}:{peer[1]}"
        self._last_active = shared.loop.time()
        refusal = shared.limits.admit(self._host)
        if refusal is not None:
            self._closing = True
            shared.refused.log(
                self._last_active * 1000,
                "node %d: refused a connection from %s on %s: %s",
                shared.node_id, self._peer, self._listener_name, refusal,
            )  # fmt: skip
            self._transport.abort()
            return
        self._counted = True
        shared.next_number += 1
        local = transport.get_extra_info("sockname") or ("unknown", 0)
        self._info = ConnectionInfo(
            f"{plain_host(str(local[0]))}:{local[1]}-{self._peer}-{shared.next_number}",
            self._listener_name,
            self._host,
        )
        self._buffer = ReceiveBuffer(shared.max_frame_bytes)
        self._writer = ResponseWriter(
            self._transport,
            shared.loop,
            shared.executor,
            on_idle=self._drained,
            on_error=self._failed,
        )
        shared.connections.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.writable()

    def buffer_updated(self, nbytes: int) -> None:
        self._buffer.received(nbytes)
        shared = self._shared
        self._last_active = shared.loop.time()
        if shared.stalls is not None and shared.stalls.resting:
            shared.stalls.wake()
        if self._buffer.capacity_bytes != self._held_bytes and not self._may_hold():
            return
        if not self._pump_planned:
            self._pump()

    def pause_writing(self) -> None:
        self._writer.pause()

    def resume_writing(self) -> None:
        self._last_active = self._shared.loop.time()
        self._writer.resume()

    def eof_received(self) -> bool | None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if not self._counted:
            return
        self._counted = False
        self._writer.close()
        while self._queue:
            _abandon(self._queue.popleft())
        self._account()
        self._shared.limits.release(self._host)
        self._shared.buffered_bytes -= self._held_bytes
        self._held_bytes = 0
        self._shared.connections.discard(self)
        self._shared.on_lost(self._info.connection_id)
        if not self._shared.connections:
            self._shared.on_empty()

    # the broker's side

    @property
    def outstanding(self) -> int:
        """Requests whose response has not left."""
        return len(self._queue) + (not self._writer.idle)

    @property
    def buffered_bytes(self) -> int:
        """Memory held for reading."""
        return self._buffer.capacity_bytes

    def sweep(self, now: float, max_idle_seconds: float) -> None:
        """Give memory back; end a connection idle for too long. now: the loop's clock."""
        self._buffer.trim()
        self._hold()
        if now - self._last_active <= max_idle_seconds:
            return
        waiting_for_us = self._queue and self._queue[0].message is None
        if waiting_for_us and not self._closing:
            return
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("node %d: idle connection from %s ended", self._shared.node_id, self._peer)
        self.abort()

    def stop(self) -> None:
        """Read no more requests; close once the outstanding responses have left."""
        self._closing = True
        self._pause_reading()
        if not self.outstanding:
            self._transport.close()

    def abort(self) -> None:
        """Close now; what has not left is lost."""
        self._closing = True
        self._transport.abort()

    # requests

    def _hold(self) -> None:
        """Count what the buffer has grown or shrunk by."""
        held = self._buffer.capacity_bytes
        self._shared.buffered_bytes += held - self._held_bytes
        self._held_bytes = held

    def _may_hold(self) -> bool:
        """Whether the buffer may be as large as it is now; if not, the connection has ended."""
        self._hold()
        shared = self._shared
        if self._held_bytes <= KEEP_BYTES or shared.buffered_bytes <= shared.max_buffered_bytes:
            return True
        self._end(
            f"requests not yet whole fill {shared.buffered_bytes} bytes,"
            " more than queued.max.request.bytes allows"
        )
        return False

    def _pump(self) -> None:
        """Handle the whole frames in the buffer, as far as limits and fairness allow."""
        self._pump_planned = False
        shared = self._shared
        dispatcher, buffer, info = shared.dispatcher, self._buffer, self._info
        arrived_ms = shared.timers.now_ms()
        handled = 0
        try:
            while not self._closing:
                if self._queue and self._must_wait():
                    self._pause_reading()
                    break
                frame = buffer.next_frame()
                if frame is None:
                    if not self._reading:
                        self._resume_reading()
                    break
                pending = dispatcher.dispatch(info, frame, arrived_ms)
                del frame
                if pending is not None:
                    self._enqueue(pending)
                handled += 1
                if handled >= FRAMES_PER_TURN and buffer.pending_bytes:
                    self._pause_reading()
                    self._plan_pump()
                    break
        except (MalformedRequest, CloseConnection) as error:
            self._end(str(error))
            return
        except InvariantError as error:
            self.abort()
            shared.on_fatal(error)
            return
        self._flush()

    def _plan_pump(self) -> None:
        if not self._pump_planned:
            self._pump_planned = True
            self._shared.loop.call_soon(self._planned_pump)

    def _planned_pump(self) -> None:
        if self._closing:
            self._pump_planned = False
        else:
            self._pump()

    def _enqueue(self, pending: PendingResponse) -> None:
        self._queue.append(pending)
        if len(self._queue) > 1:
            self._account()
        if pending.deferred is not None:
            pending.deferred.on_done(lambda message: self._resolved(pending, message))

    def _must_wait(self) -> bool:
        """Whether no further request may start; only asked while responses wait."""
        return (
            len(self._queue) >= MAX_PIPELINED
            or not self._writer.idle
            or (self._shared.budget.exhausted and self._queue[0].message is None)
        )

    def _account(self) -> None:
        extra = max(0, len(self._queue) - 1)
        if extra != self._extra:
            self._shared.budget.used += extra - self._extra
            self._extra = extra

    # responses

    def _resolved(self, pending: PendingResponse, message: object) -> None:
        pending.message = message  # type: ignore[assignment] # Deferred[Any]: the API's response
        pending.deferred = None
        if self._queue and self._queue[0] is pending and not self._flush_planned:
            # Not at once: whoever resolved it is in the middle of another request.
            self._flush_planned = True
            self._shared.loop.call_soon(self._planned_flush)

    def _planned_flush(self) -> None:
        self._flush_planned = False
        if self._counted:
            self._flush()

    def _flush(self) -> None:
        """Send what is ready and in order, unless earlier bytes still wait for the peer."""
        queue = self._queue
        if not queue:
            self._after_flush()
            return
        render, writer = self._shared.dispatcher.render, self._writer
        try:
            while queue and queue[0].message is not None and writer.idle:
                parts = render(queue.popleft())
                if queue and queue[0].message is not None:
                    size = sum(map(part_size, parts))
                    while size < RENDER_BYTES and queue and queue[0].message is not None:
                        more = render(queue.popleft())
                        size += sum(map(part_size, more))
                        parts += more
                writer.write(parts)
        except CloseConnection as error:
            self._end(str(error))
            return
        if self._extra:
            self._account()
        self._after_flush()

    def _after_flush(self) -> None:
        if self._closing:
            if self._counted and not self.outstanding:
                self._transport.close()
        elif (
            not self._reading and not self._pump_planned and not (self._queue and self._must_wait())
        ):
            self._plan_pump()

    def _drained(self) -> None:
        """The writer has room again."""
        self._last_active = self._shared.loop.time()
        self._flush()

    # the end

    def _end(self, reason: str) -> None:
        """Close because of what the peer sent; responses that are ready still leave."""
        shared = self._shared
        shared.refused.log(
            shared.loop.time() * 1000,
            "node %d: closed the connection from %s on %s: %s",
            shared.node_id, self._peer, self._listener_name, reason,
        )  # fmt: skip
        if self._closing:
            self.abort()
            return
        self._closing = True
        self._pause_reading()
        queue = self._queue
        while queue and queue[-1].message is None:
            _abandon(queue.pop())
        self._flush()
        if self.outstanding == 0:
            self._transport.close()

    def _failed(self, error: Exception) -> None:
        """Sending is impossible."""
        is_told = isinstance(error, ConnectionError)
        if isinstance(error, LogDirectoryError):
            is_told = True
            self._shared.on_storage_error(error)
        level = logging.DEBUG if is_told else logging.WARNING
        logger.log(
            level, "node %d: sending to %s failed: %s", self._shared.node_id, self._peer, error
        )
        self.abort()

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()


def _abandon(pending: PendingResponse) -> None:
    """Its connection is gone: whoever works on the answer need not wait for what it waits for."""
    if pending.deferred is not None:
        pending.deferred.cancel()


def plain_host(host: str) -> str:
    """An address as people write it: IPv4 in IPv6's clothes is IPv4."""
    return host[7:] if host.startswith("::ffff:") and "." in host else host
