"""One client connection: frames in, stage one, responses out in order, back-pressure both ways.

The next request starts after stage one of the last; its response waits in a queue until all earlier
ones have left (`answer_queue`). Reading stops while too many responses wait, in number or in bytes,
or the peer does not take what is sent, and no request is started whose response would be rendered
while earlier bytes are not with the kernel: a slow reader costs one response, not all of them. A
peer that leaves is noticed while reading is stopped, too (`hang_ups`). Large requests and responses
wait for memory in turn (`memory_pool`). There is no task and no coroutine: everything happens in
the callbacks of asyncio's BufferedProtocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, Protocol

from kbroker.log.storage.files import LogDirectoryError
from kbroker.log_lines import LogThrottle, shown
from kbroker.model import InvariantError
from kbroker.ports import Timers
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codec import Part, part_size
from kbroker.protocol.errors import MalformedRequest
from kbroker.server.dispatch import (
    CloseConnection,
    LargePendingResponse,
    PendingResponse,
)
from kbroker.server.network.answer_queue import AnswerQueue, Render
from kbroker.server.network.descriptors import DescriptorBudget
from kbroker.server.network.hang_ups import HangUp, HangUpWatch
from kbroker.server.network.large_requests import (
    LARGE_PRODUCE_BYTES,
    LARGE_REQUEST_BYTES,
    PRODUCE_PARTITIONS,
)
from kbroker.server.network.limits import ConnectionLimits, PipelineBudget
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.network.page_cache import PageCache
from kbroker.server.network.peer_progress import PeerProgress
from kbroker.server.network.produce_shape import PARTITION_BYTES, names_more_than
from kbroker.server.network.receive_buffer import (
    API_KEY_BYTES,
    LENGTH_BYTES,
    SMALL_BYTES,
    ReceiveBuffer,
)
from kbroker.server.network.request_admission import RequestAdmission
from kbroker.server.network.response_writer import ResponseWriter
from kbroker.server.session import Session
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

MAX_QUEUED_BYTES: Final = 64 * 1024
"""Responses of one connection that may wait encoded before no further request is started."""


class RequestDispatcher(Protocol):
    """What a connection needs of `dispatch.Dispatcher`. small_responses: API keys."""

    small_responses: frozenset[int]

    def dispatch(
        self, session: Session, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None: ...
    def dispatch_in_slices(
        self, session: Session, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None: ...
    def render(self, pending: PendingResponse) -> list[Part]: ...


@dataclass(slots=True)
class ConnectionShared:
    """What the connections of a broker share. on_fatal: called for a broken invariant, which stops
    the broker. on_storage_error: called for records that cannot be read while they are sent.
    max_list_bytes: the largest request that is no Produce, not below LARGE_REQUEST_BYTES.
    max_queued_bytes: see MAX_QUEUED_BYTES.
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
    max_queued_bytes: int = MAX_QUEUED_BYTES
    node_id: int = -1
    memory: MemoryPool = field(default_factory=MemoryPool)
    descriptors: DescriptorBudget = field(default_factory=DescriptorBudget)
    page_cache: PageCache = field(default_factory=PageCache.of_system)
    stalls: StallProbe | None = None
    connections: set[Connection] = field(default_factory=set)
    refused: LogThrottle = field(default_factory=lambda: LogThrottle(logger))
    next_number: int = 0
    on_empty: Callable[[], None] = lambda: None
    """Called when the last connection is gone."""
    on_storage_error: Callable[[LogDirectoryError], object] = lambda error: None
    on_lost: Callable[[str], None] = lambda connection_id: None
    """Called with the id of a connection that is gone."""
    hang_ups: HangUpWatch = field(init=False)

    def __post_init__(self) -> None:
        self.hang_ups = HangUpWatch(self.loop)

    def close(self) -> None:
        """The last connection is gone. Can be called more than once."""
        self.hang_ups.close()
        self.descriptors.close()

    def give_back_memory(self) -> None:
        """Somebody begins to wait for memory: connections give up what they keep for speed."""
        for connection in self.connections:
            connection.give_back()


class Connection(asyncio.BufferedProtocol):
    """See the module's docstring. Made by `listener`; lives in `shared.connections` while it is
    open.
    """

    __slots__ = (
        "_admission",
        "_buffer",
        "_closing",
        "_counted",
        "_flush_planned",
        "_has_peer_ended",
        "_host",
        "_last_active",
        "_listener_name",
        "_peer",
        "_progress",
        "_pump_planned",
        "_queue",
        "_reading",
        "_response_bytes",
        "_session",
        "_shared",
        "_transport",
        "_watched_fd",
        "_writer",
    )

    _transport: asyncio.Transport
    _writer: ResponseWriter
    _buffer: ReceiveBuffer
    _admission: RequestAdmission
    _info: Session

    def __init__(self, shared: ConnectionShared, listener_name: str) -> None:
        self._shared = shared
        self._listener_name = listener_name
        self._queue = AnswerQueue(shared.budget, shared.memory)
        self._progress = PeerProgress()
        self._reading = True
        self._watched_fd = -1  # while it is not read
        self._has_peer_ended = False  # its stream, as was noticed while it was not read
        self._closing = False
        self._counted = False
        self._pump_planned = False
        self._flush_planned = False
        self._response_bytes = 0  # what the peer does not take, as charged to shared.memory
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
        if refusal is None and not shared.descriptors.take():
            shared.limits.release(self._host)
            refusal = "no file descriptor is left for connections; raise ulimit -n"
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
        self._session = Session(
            f"{plain_host(str(local[0]))}:{local[1]}-{self._peer}-{shared.next_number}",
            self._listener_name,
            self._host,
        )
        self._buffer = ReceiveBuffer(shared.max_frame_bytes)
        self._admission = RequestAdmission(
            self._buffer,
            shared.memory,
            self._progress,
            self._plan_pump,
            shared.dispatcher.small_responses,
        )
        self._writer = ResponseWriter(
            self._transport,
            shared.loop,
            shared.executor,
            shared.descriptors,
            shared.page_cache,
            on_idle=self._drained,
            on_error=self._failed,
            on_buffered=self._charge_response,
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
        """The peer sends no more. Responses that are ready still leave; it may be reading. While
        one is waited for, a peer that closed cannot be told from one that goes on reading, and is
        taken to be gone.
        """
        if self._closing or self._queue.unresolved or not self.outstanding:
            return None
        self._closing = True
        self._reading = False
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if not self._counted:
            return
        self._counted = False
        self._unwatch()
        self._writer.close()
        self._queue.abandon()
        self._shared.limits.release(self._host)
        self._shared.descriptors.give_back()
        self._admission.leave()
        left, self._response_bytes = self._response_bytes, 0
        self._shared.memory.release(left)
        self._buffer.close()
        self._shared.connections.discard(self)
        self._shared.on_lost(self._session.connection_id)
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
        self._note_progress(now)
        if self._admission.ticket is None:
            self._buffer.trim()
            self._admission.give_back_unused()
        if not self._shared.memory.contended:
            self._progress.no_contention()
        elif self._is_stalling_others(now):
            self._end("too slow while others wait for memory (kbroker.memory.limit.bytes)")
            self.abort()
            return
        if now - self._last_active <= max_idle_seconds:
            return
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("node %d: idle connection from %s ended", self._shared.node_id, self._peer)
        self.abort()

    def give_back(self) -> None:
        """Memory pressure begins: keep nothing for speed only."""
        self._admission.give_back()

    def stop(self) -> None:
        """Read no more requests; close once the outstanding responses have left."""
        self._closing = True
        self._park()
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
        dispatcher, buffer, session, memory, admission = (
            shared.dispatcher, self._buffer, self._session, shared.memory, self._admission,
        )  # fmt: skip
        small_responses = dispatcher.small_responses
        arrived_ms = shared.timers.now_ms()
        handled = 0
        try:
            while not self._closing:
                if (
                    (self._queue and self._must_wait())
                    or (not self._writer.idle and self._is_heavy())
                    or (memory.used > memory.answer_limit and admission.must_queue_up())
                ):
                    self._park()
                    break
                frame = buffer.next_frame()
                if frame is None:
                    size = buffer.front_bytes - LENGTH_BYTES
                    if size > shared.max_list_bytes:
                        self._check_list(size, buffer.next_api_key())
                    if buffer.needed_bytes and not admission.may_grow():
                        self._park()
                    elif not self._reading:
                        self._resume_reading()
                    break
                size = len(frame)
                if size > LARGE_REQUEST_BYTES:
                    pending = self._dispatch_large(frame, arrived_ms)
                else:
                    pending = dispatcher.dispatch(session, frame, arrived_ms)
                del frame
                if pending is not None:
                    self._enqueue(pending)
                    if pending.message is not None and pending.api_key not in small_responses:
                        self._flush()  # before the next one is built
                if admission.held_bytes and (memory.contended or memory.used > memory.limit):
                    admission.shrink()  # the request may have left a copy that waits
                handled += 1 if size <= LARGE_FRAME_BYTES else FRAMES_PER_TURN
                if buffer.start_over():
                    admission.may_pass = False
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
        if handled and admission.held_bytes:
            admission.requests_handled()
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
        if api_key == ApiKey.PRODUCE and (
            size <= LARGE_PRODUCE_BYTES or not names_more_than(frame, PRODUCE_PARTITIONS)
        ):
            return shared.dispatcher.dispatch(self._session, frame, arrived_ms)
        return shared.dispatcher.dispatch_in_slices(self._session, frame, arrived_ms)

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
        if self._closing or self._admission.ticket is not None:
            self._pump_planned = False
        else:
            self._pump()

    def _enqueue(self, pending: PendingResponse) -> None:
        self._queue.append(pending)
        if len(self._queue) > 1:
            self._queue.account()
        if pending.deferred is not None:
            self._queue.unresolved += 1
            pending.deferred.on_done(
                lambda message: self._resolved(pending, message),
                lambda error: self._resolved(pending, pending.error_response(error)),
            )

    def _must_wait(self) -> bool:
        """Whether no further request may start; only asked while responses wait."""
        return (
            len(self._queue) >= MAX_PIPELINED
            or not self._writer.idle
            or (self._queue.encoded and self._queue.held_bytes >= self._shared.max_queued_bytes)
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
        return key is not None and key not in self._shared.dispatcher.small_responses

    # memory

    def _charge_response(self) -> None:
        """Account for what the peer has not taken."""
        left = 0 if self._writer.idle else self._writer.held_bytes
        change, self._response_bytes = left - self._response_bytes, left
        if change > 0:
            self._shared.memory.charge(change)
        else:
            self._shared.memory.release(-change)

    def _note_progress(self, now: float) -> None:
        """What moves, or waits for the broker, is not idle."""
        writer, queue = self._writer, self._queue
        if not writer.idle:
            position = writer.position
            if self._progress.responses_moved(now, position) or writer.waits_for_us:
                self._last_active = now
                self._progress.responses_may_wait(now)
            return
        if queue:
            self._progress.responses_moved(now, queue[0])
        if self._admission.ticket is not None or (queue.is_front_unresolved and not self._closing):
            self._last_active = now

    def _is_stalling_others(self, now: float) -> bool:
        """Whether this connection holds memory that others wait for and does not move."""
        if self._response_bytes + self._queue.held_bytes <= SMALL_BYTES:
            self._progress.responses_may_wait(now)
        elif self._progress.responses_are_stuck(now):
            return True
        if not (self._admission.held_bytes and self._reading and self._buffer.front_bytes):
            return False
        return self._progress.request_is_stalled(now, self._buffer.pending_bytes)

    # responses

    def _resolved(self, pending: PendingResponse, message: object) -> None:
        if pending.deferred is None:
            return  # abandoned
        pending.message = message  # type: ignore[assignment] # Deferred[Any]: the API's response
        pending.deferred = None
        self._queue.unresolved -= 1
        if not self._flush_planned:
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
        writer = self._writer
        render: Render = self._shared.dispatcher.render
        if queue.encoded:
            render = queue.render_with(render)
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
            if queue and len(queue) > queue.unresolved + queue.encoded:
                queue.encode_ready(render)
        except CloseConnection as error:
            self._end(str(error))
            return
        except Exception:
            self.abort()  # as in `_pump`
            raise
        if queue.accounted:
            queue.account()
        self._after_flush()

    def _after_flush(self) -> None:
        if self._closing:
            if self._counted and not self.outstanding:
                self._transport.close()
        elif not self._reading:
            if self._has_peer_ended and self._queue.is_front_unresolved:
                self.abort()
            elif (
                not self._pump_planned and self._admission.ticket is None and not self._is_held_up()
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
        self._park()
        self._queue.abandon_unresolved_end()
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

    def _park(self) -> None:
        """Stop reading until something else happens, and be told if the peer leaves meanwhile."""
        self._pause_reading()
        if self._watched_fd < 0 and not self._transport.is_closing():
            self._watched_fd = self._transport.get_extra_info("socket").fileno()
            self._shared.hang_ups.watch(self._watched_fd, self._on_hang_up)

    def _unwatch(self) -> None:
        if self._watched_fd >= 0:
            self._shared.hang_ups.unwatch(self._watched_fd)
            self._watched_fd = -1

    def _resume_reading(self) -> None:
        if not self._reading:
            self._unwatch()
            self._reading = True
            self._transport.resume_reading()

    def _on_hang_up(self, how: HangUp) -> None:
        """The peer left while it was not read. As in `eof_received`, the end of its stream counts
        once a response is waited for.
        """
        self._has_peer_ended = True
        if how is HangUp.RESET or self._queue.is_front_unresolved:
            self.abort()


def plain_host(host: str) -> str:
    """An address as people write it: IPv4 in IPv6's clothes is IPv4."""
    return host[7:] if host.startswith("::ffff:") and "." in host else host
