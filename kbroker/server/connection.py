"""One client connection: frames in, stage one, responses out in order, back-pressure both ways.

The next request starts after stage one of the last; its response waits in a queue until all earlier
ones have left. Reading stops while too many responses wait or the peer does not take what is sent,
and nothing is rendered while earlier bytes are not with the kernel: a slow reader costs one
response, not all of them. What is large waits its turn for memory (`memory_pool`). No task, no
coroutine: everything happens in the callbacks of asyncio's BufferedProtocol.
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
from kbroker.log_lines import LogThrottle, shown
from kbroker.model import InvariantError, Timers
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codec import Part, part_size
from kbroker.protocol.errors import MalformedRequest
from kbroker.server.dispatch import (
    CloseConnection,
    ConnectionInfo,
    LargePendingResponse,
    PendingResponse,
)
from kbroker.server.large_requests import LARGE_REQUEST_BYTES, PRODUCE_PARTITIONS
from kbroker.server.limits import ConnectionLimits, PipelineBudget
from kbroker.server.memory_pool import MemoryPool, Ticket
from kbroker.server.produce_shape import PARTITION_BYTES, names_more_than
from kbroker.server.receive_buffer import API_KEY_BYTES, LENGTH_BYTES, SMALL_BYTES, ReceiveBuffer
from kbroker.server.response_writer import ResponseWriter
from kbroker.server.stall_probe import StallProbe

logger = logging.getLogger(__name__)

MAX_PIPELINED: Final = 100
"""Requests of one connection that may wait for their response."""

FRAMES_PER_TURN: Final = 16
"""Requests of one connection handled before others get their turn."""

LARGE_FRAME_BYTES: Final = 256 * 1024
"""A request beyond this size, a millisecond of work, is a turn by itself."""

RENDER_BYTES: Final = 64 * 1024
"""Responses that are ready together leave in one write up to this size."""


SWEEP_SECONDS: Final = 0.9
GRACE_SWEEPS: Final = 3
MIN_BYTES_PER_SWEEP: Final = 64 * 1024
"""While others wait for memory, a request that has got its share must come in without a pause of so
many sweeps, and after the first ones at this pace. Sweeps are about a second apart then, or more:
a loop that is busy reads less, and who sends is not to blame for that. Between two of them it has
read what was there.
"""

STUCK_SECONDS: Final = 30.0
"""While others wait for memory, a peer must take something of its response within this time."""

LIGHT: Final = frozenset(
    int(key)
    for key in (
        ApiKey.FETCH, ApiKey.OFFSET_COMMIT, ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP, ApiKey.SASL_HANDSHAKE,
        ApiKey.API_VERSIONS, ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.SASL_AUTHENTICATE, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE,
        ApiKey.WRITE_TXN_MARKERS,
    )
)  # fmt: skip
"""APIs that keep a client alive and cost little: they go on while memory is nearly used up, as long
as the limit is not exceeded.
"""


_SMALL_ANSWER: Final = LIGHT | {int(ApiKey.PRODUCE)}


class RequestDispatcher(Protocol):
    """What a connection needs of `dispatch.Dispatcher`."""

    def dispatch(
        self, connection: ConnectionInfo, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None: ...
    def dispatch_in_slices(
        self, connection: ConnectionInfo, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None: ...
    def render(self, pending: PendingResponse) -> list[Part]: ...


@dataclass(slots=True)
class ConnectionShared:
    """What the connections of a broker share. on_fatal: called for a broken invariant, which stops
    the broker. on_storage_error: called for records that cannot be read while they are sent.
    max_list_bytes: the largest request that is no Produce, not
    below LARGE_REQUEST_BYTES.
    """

    loop: asyncio.AbstractEventLoop
    dispatcher: RequestDispatcher
    timers: Timers
    limits: ConnectionLimits
    budget: PipelineBudget
    max_frame_bytes: int
    executor: Executor | None
    on_fatal: Callable[[BaseException], None]
    max_list_bytes: int = 1 << 31
    node_id: int = -1
    memory: MemoryPool = field(default_factory=MemoryPool)
    stalls: StallProbe | None = None
    connections: set[Connection] = field(default_factory=set)
    refused: LogThrottle = field(default_factory=lambda: LogThrottle(logger))
    next_number: int = 0
    on_empty: Callable[[], None] = lambda: None
    """Called when the last connection is gone."""
    on_storage_error: Callable[[LogDirectoryError], object] = lambda error: None
    on_lost: Callable[[str], None] = lambda connection_id: None
    """Called with the id of a connection that is gone."""

    def give_back_memory(self) -> None:
        """Somebody begins to wait for memory: connections give up what they keep for speed."""
        for connection in self.connections:
            connection.give_back()


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
        "_held_sweeps",
        "_host",
        "_idle_sweeps",
        "_info",
        "_last_active",
        "_left_bytes",
        "_left_since",
        "_listener_name",
        "_may_pass",
        "_peer",
        "_pump_planned",
        "_queue",
        "_reading",
        "_response_bytes",
        "_shared",
        "_swept_bytes",
        "_swept_time",
        "_ticket",
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
        self._held_bytes = 0  # of the buffer, as taken from shared.memory
        self._held_sweeps = 0  # under pressure, since it was last taken
        self._idle_sweeps = 0  # of these, the last ones in which nothing came
        self._swept_bytes = -1  # of the request, at the last sweep
        self._swept_time = 0.0
        self._ticket: Ticket | None = None  # while more memory is waited for
        self._may_pass = False  # the next request has waited its turn
        self._response_bytes = 0  # what the peer does not take, as charged to shared.memory
        self._left_bytes = 0  # the same at the last sweep
        self._left_since = 0.0  # since when it is no less
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
        # A turn that is planned does not do: uvloop reads many times before it, and is without room
        # for more once the buffer is full.
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
        self._leave_memory()
        self._buffer.close()
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
        return self._buffer.held_bytes

    def sweep(self, now: float, max_idle_seconds: float) -> None:
        """Give memory back; end a connection idle for too long. now: the loop's clock."""
        if self._ticket is not None:
            return
        self._buffer.trim()
        self._hold()
        if not self._shared.memory.contended:
            self._begin_count()
        elif self._is_in_the_way(now):
            self._end("too slow while others wait for memory (kbroker.memory.limit.bytes)")
            self.abort()
            return
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

    def _pump(self) -> None:
        """Handle the whole frames in the buffer, as far as limits and fairness allow."""
        self._pump_planned = False
        shared = self._shared
        dispatcher, buffer, info, memory = (
            shared.dispatcher, self._buffer, self._info, shared.memory,
        )  # fmt: skip
        arrived_ms = shared.timers.now_ms()
        handled = 0
        try:
            while not self._closing:
                if (
                    (self._queue and self._must_wait())
                    or (memory.used > memory.answer_limit and self._must_queue_up())
                    or (not self._writer.idle and self._is_heavy())
                ):
                    self._pause_reading()
                    break
                frame = buffer.next_frame()
                if frame is None:
                    size = buffer.front_bytes - LENGTH_BYTES
                    if size > shared.max_list_bytes:
                        self._check_list(size, buffer.next_api_key())
                    if buffer.needed_bytes and not self._may_grow():
                        self._pause_reading()
                    elif not self._reading:
                        self._resume_reading()
                    break
                size = len(frame)
                if size > LARGE_REQUEST_BYTES:
                    pending = self._dispatch_large(frame, arrived_ms)
                else:
                    pending = dispatcher.dispatch(info, frame, arrived_ms)
                del frame
                if pending is not None:
                    self._enqueue(pending)
                    if pending.message is not None and pending.api_key not in _SMALL_ANSWER:
                        self._flush()  # before the next one is built
                if self._held_bytes and (memory.contended or memory.used > memory.limit):
                    self._give_way()  # the request may have left a copy that waits
                handled += 1 if size <= LARGE_FRAME_BYTES else FRAMES_PER_TURN
                if buffer.start_over():
                    self._may_pass = False
                    if (
                        self._reading
                        and handled < FRAMES_PER_TURN
                        and not (self._queue and self._must_wait())
                    ):
                        break  # another turn would find out the same, at more cost
                if handled >= FRAMES_PER_TURN:
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
        except Exception:
            self.abort()  # in a planned turn nobody else would, and the peer would wait for ever
            raise
        if handled and self._held_bytes:
            self._hold_what_is_needed()
        self._flush()

    def _dispatch_large(self, frame: memoryview, arrived_ms: int) -> PendingResponse | None:
        """In slices of the loop, but for a Produce request whose bulk is records, which are not
        looked at one by one.
        """
        shared = self._shared
        size, api_key = len(frame), int.from_bytes(frame[:API_KEY_BYTES], "big")
        if size > shared.max_list_bytes:
            self._check_list(size, api_key)
            if names_more_than(frame, shared.max_list_bytes // PARTITION_BYTES):
                raise CloseConnection("a Produce request of very many partitions")
        if api_key == ApiKey.PRODUCE and not names_more_than(frame, PRODUCE_PARTITIONS):
            return shared.dispatcher.dispatch(self._info, frame, arrived_ms)
        return shared.dispatcher.dispatch_in_slices(self._info, frame, arrived_ms)

    def _check_list(self, size: int, api_key: int | None) -> None:
        """Of a large request. Raises CloseConnection for one that is no bulk of records: its many
        small fields become far more in memory than they are on the wire, or it is kept as long as a
        member of a group lives.
        """
        if api_key is not None and api_key != ApiKey.PRODUCE:
            raise CloseConnection(
                f"a request of {size} bytes with API key {api_key}; all but Produce may have"
                f" {self._shared.max_list_bytes} (kbroker.memory.limit.bytes)"
            )

    def _plan_pump(self) -> None:
        if not self._pump_planned:
            self._pump_planned = True
            self._shared.loop.call_soon(self._planned_pump)

    def _planned_pump(self) -> None:
        if self._closing or self._ticket is not None:
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
            or (self._queue[-1].message is None and type(self._queue[-1]) is LargePendingResponse)
        )

    def _is_held_up(self) -> bool:
        """Whether the request at the front waits for answers to leave, as `_pump` asks without this
        call: it is taken up again when they have.
        """
        if self._queue:
            return self._must_wait()
        return not self._writer.idle and self._is_heavy()

    def _is_heavy(self) -> bool:
        """Whether the answer to the request at the front may be large: it is not made before the
        last one is with the kernel.
        """
        key = self._buffer.next_api_key()
        return key is not None and key not in _SMALL_ANSWER

    def _account(self) -> None:
        extra = max(0, len(self._queue) - 1)
        if extra != self._extra:
            self._shared.budget.used += extra - self._extra
            self._extra = extra

    # memory

    def _hold(self) -> None:
        """Give back what the buffer has shrunk by."""
        capacity = self._buffer.capacity_bytes
        needed = capacity if capacity > SMALL_BYTES else 0
        if needed < self._held_bytes:
            given, self._held_bytes = self._held_bytes - needed, needed
            self._shared.memory.give_back(given)

    def _hold_what_is_needed(self) -> None:
        """Requests were handled: what is held serves the next one, and is counted anew."""
        if (
            self._shared.memory.contended
            or self._held_sweeps
            or self._held_bytes != self._buffer.capacity_bytes
        ):
            self._begin_count()
            self._hold()

    def _give_way(self) -> None:
        """Between two requests, while others wait: keep no buffer, and queue up for the next."""
        self._buffer.shrink()
        self._hold()

    def give_back(self) -> None:
        """Somebody begins to wait for memory: keep nothing for speed only."""
        if self._held_bytes and self._ticket is None and not self._buffer.pending_bytes:
            self._give_way()

    def _may_grow(self) -> bool:
        """Let the frame at the front have the buffer it needs, now or when it is its turn."""
        buffer, memory = self._buffer, self._shared.memory
        self._hold()
        if not memory.take(buffer.needed_bytes - self._held_bytes):
            needed = buffer.needed_bytes
            self._give_way()
            buffer.needed_bytes = needed
            if not memory.may_park(self._held_bytes):
                self._end("its half of a request, and those of others, fill too much memory")
                return False
            held = self._held_bytes
            self._queue_up(lambda then: memory.wait(needed - held, then, held=held), self._grow)
            return self._ticket is None
        self._grow()
        return True

    def _grow(self) -> None:
        """The memory for it is taken."""
        self._held_bytes = self._buffer.needed_bytes
        self._begin_count()
        self._buffer.grow()

    def _begin_count(self) -> None:
        """What is held was just taken, or nobody else wants it."""
        self._held_sweeps = self._idle_sweeps = 0
        self._swept_bytes = -1

    def _must_queue_up(self) -> bool:
        """Whether the request at the front must wait because memory is nearly used up. One that has
        its memory already never does: it gives it back when it is handled.
        """
        memory = self._shared.memory
        if self._may_pass or self._held_bytes or not memory.is_pressed:
            self._may_pass = False
            return False
        key = self._buffer.next_api_key()
        is_light = key in LIGHT
        if key is None or (is_light and memory.used <= memory.limit):
            return False
        self._queue_up(lambda then: memory.wait_turn(then, light=is_light), self._pass)
        return True

    def _pass(self) -> None:
        self._may_pass = True

    def _queue_up(
        self, wait: Callable[[Callable[[], None]], Ticket], then: Callable[[], None]
    ) -> None:
        """Wait, then go on; `_ticket` is None afterwards if that was for a moment only."""
        is_served = False

        def served() -> None:
            nonlocal is_served
            is_served = True
            self._ticket = None
            then()
            self._plan_pump()

        ticket = wait(served)
        if not is_served:
            self._ticket = ticket

    def _leave_memory(self) -> None:
        """The connection is gone."""
        memory = self._shared.memory
        if self._ticket is not None:
            ticket, self._ticket = self._ticket, None
            memory.withdraw(ticket)
        held, self._held_bytes = self._held_bytes, 0
        memory.give_back(held)
        left, self._response_bytes = self._response_bytes, 0
        memory.release(left)

    def _charge_response(self) -> None:
        """Account for what the peer has not taken."""
        left = 0 if self._writer.idle else self._writer.held_bytes
        change, self._response_bytes = left - self._response_bytes, left
        if change > 0:
            self._shared.memory.charge(change)
        else:
            self._shared.memory.release(-change)

    def _is_in_the_way(self, now: float) -> bool:
        """Whether this connection holds memory that others wait for and does not move."""
        if self._response_bytes > SMALL_BYTES:
            left = self._writer.held_bytes
            if left != self._left_bytes:
                self._left_bytes, self._left_since = left, now
            elif now - self._left_since > STUCK_SECONDS:
                return True
        if not self._held_bytes or not self._reading or not self._buffer.front_bytes:
            return False
        if now - self._swept_time < SWEEP_SECONDS:
            return False
        self._swept_time = now
        pending = self._buffer.pending_bytes
        self._held_sweeps += 1
        self._idle_sweeps = self._idle_sweeps + 1 if pending == self._swept_bytes else 0
        self._swept_bytes = pending
        due = (self._held_sweeps - GRACE_SWEEPS) * MIN_BYTES_PER_SWEEP
        return self._idle_sweeps >= GRACE_SWEEPS or pending < due

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
            if self._response_bytes:
                self._charge_response()
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
            if self._response_bytes or not writer.idle:
                self._charge_response()
        except CloseConnection as error:
            self._end(str(error))
            return
        except Exception:
            self.abort()  # as in `_pump`
            raise
        if self._extra:
            self._account()
        self._after_flush()

    def _after_flush(self) -> None:
        if self._closing:
            if self._counted and not self.outstanding:
                self._transport.close()
        elif (
            not self._reading
            and not self._pump_planned
            and self._ticket is None
            and not self._is_held_up()
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
            shared.node_id, self._peer, self._listener_name, shown(reason),
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
