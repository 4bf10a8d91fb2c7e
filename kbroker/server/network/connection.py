"""One client connection: frames in, requests started in order, back-pressure both ways.

A frame (`receive_buffer`) becomes a request when memory admits it (`request_admission`). The next
request starts after stage one of the previous one; responses are sent in the order of the requests
(`responses`). Reading stops (`read_gate`) while too many responses wait, in number or in bytes, or
the client does not read, and no request is started whose response would be rendered while earlier
bytes are not in the kernel yet: a slow reader costs the memory of one response, not of all. There
are no tasks and coroutines: all code runs in the callbacks of asyncio's BufferedProtocol.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final
from weakref import ref

from kbroker.log.storage.files import LogDirectoryError
from kbroker.log_lines import shown
from kbroker.model import InvariantError
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import MalformedRequest
from kbroker.protocol.produce_shape import exceeds_partition_count
from kbroker.server.network.connection_shared import ConnectionShared
from kbroker.server.network.hang_ups import HangUp
from kbroker.server.network.muting import Muting
from kbroker.server.network.peer_progress import PeerProgress
from kbroker.server.network.read_gate import ReadGate
from kbroker.server.network.receive_buffer import (
    API_KEY_BYTES,
    LENGTH_BYTES,
    SMALL_BYTES,
    ReceiveBuffer,
)
from kbroker.server.network.request_admission import RequestAdmission
from kbroker.server.network.responses import Responses
from kbroker.server.quotas.connection_rates import NOT_THROTTLED
from kbroker.server.requests import (
    LARGE_PRODUCE_BYTES,
    LARGE_REQUEST_BYTES,
    PARTITION_BYTES,
    PRODUCE_PARTITIONS,
    CloseConnection,
    PendingResponse,
)
from kbroker.server.session import Session

logger = logging.getLogger(__name__)

FRAMES_PER_TURN: Final = 16
"""How many requests of one connection are handled before others get their turn."""

LARGE_FRAME_BYTES: Final = 256 * 1024
"""A request above this size (a millisecond of work) takes a turn by itself."""


class Connection(asyncio.BufferedProtocol):
    """See the module's docstring. Created by `listener`; in `shared.connections` while it is
    open.
    """

    __slots__ = (
        "_admission",
        "_buffer",
        "_closing",
        "_counted",
        "_gate",
        "_host",
        "_last_active",
        "_listener_name",
        "_muting",
        "_peer",
        "_progress",
        "_pump_planned",
        "_responses",
        "_session",
        "_shared",
        "_transport",
    )

    _transport: asyncio.Transport
    _session: Session
    _buffer: ReceiveBuffer
    _admission: RequestAdmission
    _responses: Responses
    _gate: ReadGate

    def __init__(self, shared: ConnectionShared, listener_name: str) -> None:
        self._shared = shared
        self._listener_name = listener_name
        self._progress = PeerProgress()
        self._closing = False
        self._counted = False
        self._muting = Muting(shared.loop, self._mute_over)
        self._pump_planned = False
        self._last_active = 0.0

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        shared = self._shared
        self._transport = transport  # type: ignore[assignment] # a stream server passes a Transport
        peer = transport.get_extra_info("peername") or ("unknown", 0)
        self._host = plain_host(str(peer[0]))
        self._peer = f"{self._host}:{peer[1]}"
        self._last_active = shared.loop.time()
        throttle = NOT_THROTTLED
        if shared.rates.is_limited:
            now_ms = shared.timers.monotonic_ms()
            throttle = shared.rates.admit(self._listener_name, self._host, now_ms)
            if throttle.is_refused:
                self._hold_refused(throttle.delay_ms)
                return
        refusal = throttle.refusal or shared.admit(self._host, self._listener_name)
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
            mute=self._muting.begin,
            api_versions=shared.dispatcher.api_versions,
        )
        self._buffer = ReceiveBuffer(shared.max_frame_bytes)
        self._admission = RequestAdmission(
            self._buffer,
            shared.memory,
            self._progress,
            self._plan_pump,
            shared.dispatcher.small_responses,
        )
        self._responses = Responses(self, shared, self._transport)
        self._gate = ReadGate(self._transport, shared.hang_ups, self._hung_up)
        shared.connections[self] = None
        if throttle.delay_ms:
            self._muting.begin(throttle.delay_ms)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.writable()

    def buffer_updated(self, nbytes: int) -> None:
        self._buffer.received(nbytes)
        shared = self._shared
        self._last_active = shared.loop.time()
        if shared.stalls is not None and shared.stalls.resting:
            shared.stalls.wake()
        # A scheduled turn is too late: uvloop reads many times before it, and has no room
        # left once the buffer is full.
        self._pump()

    def pause_writing(self) -> None:
        self._responses.writer.pause()

    def resume_writing(self) -> None:
        self._last_active = self._shared.loop.time()
        self._responses.writer.resume()

    def eof_received(self) -> bool | None:
        """The peer ended its stream. Ready responses are still sent; the peer may be reading. While
        a response is unresolved, a peer that closed cannot be distinguished from one that still
        reads, and is assumed to have closed.
        """
        if self._closing or self._responses.queue.unresolved or not self.outstanding:
            return None
        self._closing = True
        self._gate.end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        is_held = self._muting.is_muted
        self._muting.close()
        if not self._counted:
            if is_held:
                self._shared.descriptors.give_back()
                self._shared.held.discard(self)
            return
        self._counted = False
        self._gate.close()
        self._responses.close()
        self._shared.limits.release(self._host, self._listener_name)
        self._shared.descriptors.give_back()
        self._admission.leave()
        self._buffer.close()
        self._shared.connections.pop(self, None)
        self._shared.on_lost(self._session.connection_id)
        if not self._shared.connections:
            self._shared.on_empty()

    # called by the broker

    @property
    def outstanding(self) -> int:
        """Requests whose response was not sent."""
        return self._responses.outstanding

    @property
    def listener_name(self) -> str:
        """The listener that accepted the connection."""
        return self._listener_name

    @property
    def buffered_bytes(self) -> int:
        """Memory of the receive buffer."""
        return self._buffer.held_bytes

    @property
    def idle_since(self) -> float | None:
        """The loop's time of the last activity; None if the socket is being closed."""
        return None if self._transport.is_closing() else self._last_active

    def sweep(self, now: float, max_idle_seconds: float) -> None:
        """Release unused memory; close a connection that is idle for too long. now: the loop's
        clock.
        """
        self._note_progress(now)
        self._admission.trim()
        if not self._shared.memory.contended:
            self._progress.no_contention()
        elif self._is_stalling_others(now):
            self.refuse("too slow while others wait for memory (kbroker.memory.limit.bytes)")
            self.abort()
            return
        elif self._muting.is_muted:
            self._admission.start_muted(self._muting, self._pump)
        if now - self._last_active <= max_idle_seconds:
            return
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "node %d: closed idle connection from %s", self._shared.node_id, self._peer
            )
        self.abort()

    def give_back(self) -> None:
        """Memory pressure begins: release memory that is kept only for speed."""
        self._admission.give_back()

    def stop(self) -> None:
        """Read no more requests; close once the outstanding responses are sent."""
        self._closing = True
        self._gate.park()
        if not self.outstanding:
            self._transport.close()

    def abort(self) -> None:
        """Close now; unsent data is lost."""
        self._closing = True
        self._transport.abort()

    # requests

    def _pump(self) -> None:
        """Handle the complete frames in the buffer, within limits and fairness."""
        self._pump_planned = False
        shared = self._shared
        dispatcher, memory, responses = shared.dispatcher, shared.memory, self._responses
        buffer, admission = self._buffer, self._admission
        queue, writer = responses.queue, responses.writer
        small_responses = dispatcher.small_responses
        arrived_ms, handled = shared.timers.now_ms(), 0
        try:
            while not self._closing:
                if (
                    self._muting.is_muted
                    or (queue and responses.must_wait())
                    or (not writer.idle and self._is_heavy())
                    or (memory.used > memory.answer_limit and admission.must_queue_up())
                ):
                    self._gate.park()
                    break
                frame = buffer.next_frame()
                if frame is None:
                    size = buffer.front_bytes - LENGTH_BYTES
                    if size > shared.max_list_bytes:
                        self._check_list(size, buffer.next_api_key())
                    if buffer.needed_bytes and not admission.may_grow():
                        self._gate.park()
                    elif not self._gate.is_reading:
                        self._gate.resume()
                    break
                size = len(frame)
                if size > LARGE_REQUEST_BYTES and (
                    frame[0] or frame[1]  # the API key is not 0, which is Produce's
                    or size > LARGE_PRODUCE_BYTES or size > shared.max_list_bytes
                ):  # fmt: skip
                    pending = self._dispatch_large(frame, arrived_ms)
                else:
                    pending = dispatcher.dispatch(self._session, frame, arrived_ms)
                del frame
                if pending is not None:
                    responses.add(pending)
                    if pending.message is not None and pending.api_key not in small_responses:
                        responses.flush()  # before the next response is built
                if admission.held_bytes and (memory.contended or memory.used > memory.limit):
                    admission.shrink()  # the request may have made a copy that waits
                handled += 1 if size <= LARGE_FRAME_BYTES else FRAMES_PER_TURN
                if buffer.start_over():
                    admission.may_pass = False
                    if (
                        self._gate.is_reading
                        and handled < FRAMES_PER_TURN
                        and not (queue and responses.must_wait())
                    ):
                        break  # another turn would have the same result, at more cost
                if handled >= FRAMES_PER_TURN:
                    self._gate.pause()
                    self._plan_pump()
                    break
        except (MalformedRequest, CloseConnection) as error:
            self.refuse(str(error))
            return
        except InvariantError as error:
            self.abort()
            shared.on_fatal(error)
            return
        except Exception:
            self.abort()  # in a scheduled turn no caller does it: the client would wait forever
            raise
        if handled and admission.held_bytes:
            admission.requests_handled()
        responses.flush()

    def _dispatch_large(self, frame: memoryview, arrived_ms: int) -> PendingResponse | None:
        """Dispatch in slices of the loop, except for a Produce request that is mostly records,
        which are not processed one by one. `_pump` dispatches an ordinary Produce request itself.
        Not by `ApiPolicy`: only Produce's bytes say whether it is so (`produce_shape`).
        """
        shared = self._shared
        size = len(frame)
        if size > shared.max_list_bytes:
            self._check_list(size, int.from_bytes(frame[:API_KEY_BYTES], "big"))
            if exceeds_partition_count(frame, shared.max_list_bytes // PARTITION_BYTES):
                raise CloseConnection("a Produce request of very many partitions")
        is_produce = not frame[0] and not frame[1]
        if is_produce and not exceeds_partition_count(frame, PRODUCE_PARTITIONS):
            return shared.dispatcher.dispatch(self._session, frame, arrived_ms)
        return shared.dispatcher.dispatch_in_slices(self._session, frame, arrived_ms)

    def _check_list(self, size: int, api_key: int | None) -> None:
        """Check a large request. Raises CloseConnection if it does not consist mainly of records:
        its many small fields take far more memory than on the wire, or are kept as long as a group
        member lives.
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
        if self._closing or self._muting.is_muted or self._admission.ticket is not None:
            self._pump_planned = False
        else:
            self._pump()

    # quotas

    def _mute_over(self) -> None:
        if self._counted:
            self._muting.end()
            self._plan_pump()
        else:
            self._transport.abort()

    def _hold_refused(self, milliseconds: int) -> None:
        """Keep a connection that exceeds the rate of its address open, without reading, for the
        throttle time.
        """
        self._closing = True
        if self._shared.descriptors.take():
            self._transport.pause_reading()
            self._shared.held.add(self)
            self._muting.begin(milliseconds)
        else:
            self._transport.abort()

    def _is_held_up(self) -> bool:
        """Whether the request at the front waits until responses are sent. `_pump` checks the same
        without this call; the request is handled when they are sent.
        """
        if self._responses.queue:
            return self._responses.must_wait()
        return not self._responses.writer.idle and self._is_heavy()

    def _is_heavy(self) -> bool:
        """Whether the response to the request at the front may be large: it is not built before the
        previous one is in the kernel.
        """
        key = self._buffer.next_api_key()
        return key is not None and key not in self._shared.dispatcher.small_responses

    # memory

    def _note_progress(self, now: float) -> None:
        """Note the time if responses are being sent or a request waits for the broker: both are
        activity.
        """
        writer, queue = self._responses.writer, self._responses.queue
        if not writer.idle:
            position = writer.position
            if self._progress.responses_moved(now, position) or writer.waits_for_us:
                self._last_active = now
                self._progress.responses_may_wait(now)
            return
        if queue:
            self._progress.responses_moved(now, ref(queue[0]))
        if self._admission.ticket is not None or (queue.is_front_unresolved and not self._closing):
            self._last_active = now

    def _is_stalling_others(self, now: float) -> bool:
        """Whether this connection holds memory that others wait for and makes no progress."""
        if self._responses.held_bytes <= SMALL_BYTES:
            self._progress.responses_may_wait(now)
        elif self._progress.responses_are_stuck(now):
            return True
        is_read = self._gate.is_reading and not self._muting.is_muted
        return self._admission.is_stalled(now, is_read=is_read)

    # responses

    def responses_sent(self) -> None:
        """Close once everything is sent, or handle the request that waited for it."""
        if self._closing:
            if self._counted and not self.outstanding:
                self._transport.close()
        elif not self._gate.is_reading:
            if self._gate.has_peer_ended and self._responses.queue.is_front_unresolved:
                self.abort()
            elif (
                not self._pump_planned
                and not self._muting.is_muted
                and self._admission.ticket is None
                and not self._is_held_up()
            ):
                self._plan_pump()

    def client_read(self) -> None:
        """The client read data that the writer held: the connection is not idle."""
        self._last_active = self._shared.loop.time()

    # closing

    def refuse(self, reason: str) -> None:
        """Close because of invalid data from the client; ready responses are still sent."""
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
        self._gate.park()
        self._responses.queue.abandon_unresolved_end()
        self._responses.flush()
        if self.outstanding == 0:
            self._transport.close()

    def sending_failed(self, error: Exception) -> None:
        """Close because of a socket error, or records that cannot be read."""
        is_told = isinstance(error, ConnectionError)
        if isinstance(error, LogDirectoryError):
            is_told = True
            self._shared.on_storage_error(error)
        level = logging.DEBUG if is_told else logging.WARNING
        logger.log(
            level, "node %d: sending to %s failed: %s", self._shared.node_id, self._peer, error
        )
        self.abort()

    def _hung_up(self, how: HangUp) -> None:
        """The client left while the connection was parked. As in `eof_received`, the end of its
        stream closes the connection if a response is unresolved.
        """
        if how is HangUp.RESET or self._responses.queue.is_front_unresolved:
            self.abort()


def plain_host(host: str) -> str:
    """An address in its usual form: an IPv4-mapped IPv6 address as IPv4."""
    return host[7:] if host.startswith("::ffff:") and "." in host else host
