"""The responses of one connection: sent in the order of the requests, charged while they wait.

A response is sent once all earlier ones are in the kernel; later ones wait in `answer_queue`;
`response_writer` sends. The neighbour `connection` starts no request while `must_wait`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from kbroker.protocol.codecs.codec import part_size
from kbroker.server.network.answer_queue import AnswerQueue, Render, ends_connection
from kbroker.server.network.connection_shared import ConnectionShared
from kbroker.server.network.response_writer import ResponseWriter
from kbroker.server.requests import CloseConnection, LargePendingResponse, PendingResponse

logger = logging.getLogger(__name__)

MAX_PIPELINED: Final = 100
"""How many requests of one connection may wait for their response."""

RENDER_BYTES: Final = 64 * 1024
"""Ready responses are joined into one write up to this size."""


class ResponsesOwner(Protocol):
    """The part of a connection that `Responses` needs."""

    def responses_sent(self) -> None:
        """All ready responses were passed to the writer, as far as the client reads."""
        ...

    def client_read(self) -> None:
        """The client read data that the writer held."""
        ...

    def refuse(self, reason: str) -> None:
        """The request must not be answered: close the connection, and log the reason."""
        ...

    def sending_failed(self, error: Exception) -> None:
        """The writer failed: close the connection."""
        ...

    def abort(self) -> None:
        """Close the connection now."""
        ...


class Responses:
    """See the module docstring.

    queue: the unsent responses, in order. writer: sends rendered responses. charged_bytes: unread
    responses, as charged to the memory account.
    """

    __slots__ = ("_flush_planned", "_owner", "_shared", "charged_bytes", "queue", "writer")

    def __init__(
        self, owner: ResponsesOwner, shared: ConnectionShared, transport: asyncio.Transport
    ) -> None:
        self._owner: ResponsesOwner | None = owner
        self._shared = shared
        self._flush_planned = False
        self.charged_bytes = 0
        self.queue = AnswerQueue(shared.budget, shared.memory)
        self.writer = ResponseWriter(
            transport,
            shared.loop,
            shared.executor,
            shared.descriptors,
            shared.page_cache,
            on_idle=self._drained,
            on_error=owner.sending_failed,
            on_buffered=self._charge,
        )

    @property
    def outstanding(self) -> int:
        """Requests whose response was not sent."""
        return len(self.queue) + (not self.writer.idle)

    @property
    def held_bytes(self) -> int:
        """Memory of responses that the client has not read, or that wait for earlier ones."""
        return self.charged_bytes + self.queue.held_bytes

    def must_wait(self) -> bool:
        """Whether no further request may start; only called while responses wait."""
        queue = self.queue
        return (
            len(queue) >= MAX_PIPELINED
            or not self.writer.idle
            or (queue.encoded and queue.held_bytes >= self._shared.max_queued_bytes)
            or (
                queue.unresolved > 0
                and (
                    (self._shared.budget.exhausted and queue[0].message is None)
                    or (queue[-1].message is None and type(queue[-1]) is LargePendingResponse)
                )
            )
        )

    def add(self, pending: PendingResponse) -> None:
        """Queue the response to the newest request, which may not be resolved yet."""
        queue = self.queue
        queue.append(pending)
        deferred = pending.deferred
        if len(queue) > 1 and (deferred is not None or queue.unresolved):
            queue.account()  # not for ready responses behind ready ones: this turn sends them
        if deferred is not None:
            queue.unresolved += 1
            deferred.on_done(
                lambda message: self._resolved(pending, message),
                lambda error: self._resolved(pending, pending.error_response(error)),
            )

    def flush(self) -> None:
        """Send the ready responses that are next in order, unless earlier bytes still wait for the
        client.
        """
        owner = self._owner
        if owner is None:
            return
        queue, writer = self.queue, self.writer
        if not queue:
            if self.charged_bytes:
                self._charge()
            owner.responses_sent()
            return
        render: Render = self._shared.dispatcher.render
        if queue.encoded:
            render = queue.render_with(render)
        try:
            while queue and queue[0].message is not None and writer.idle:
                parts = render(queue.popleft())
                if queue and queue[0].message is not None:
                    size = sum(map(part_size, parts))
                    while size < RENDER_BYTES and queue and queue[0].message is not None:
                        if ends_connection(queue[0]):
                            break  # these are sent before
                        more = render(queue.popleft())
                        size += sum(map(part_size, more))
                        parts += more
                writer.write(parts)
            if self.charged_bytes or not writer.idle:
                self._charge()
            if queue and len(queue) > queue.unresolved + queue.encoded:
                queue.encode_ready(render)
        except CloseConnection as error:
            owner.refuse(str(error))
            return
        except Exception:
            owner.abort()  # in a scheduled turn no caller does it: the client would wait forever
            raise
        if queue.accounted:
            queue.account()
        owner.responses_sent()

    def close(self) -> None:
        """The connection is closed: cancel waiting requests, and release the memory."""
        self._owner = None  # leaves no reference cycle
        self.writer.close()
        self.queue.abandon()
        left, self.charged_bytes = self.charged_bytes, 0
        self._shared.memory.release(left)

    def _resolved(self, pending: PendingResponse, message: object) -> None:
        if pending.deferred is None:
            return  # abandoned
        pending.message = message  # type: ignore[assignment] # Deferred[Any]: the API's response
        pending.deferred = None
        self.queue.unresolved -= 1
        if not self._flush_planned:
            # Not at once: this may be called while another request is handled.
            self._flush_planned = True
            self._shared.loop.call_soon(self._planned_flush)

    def _planned_flush(self) -> None:
        self._flush_planned = False
        self.flush()

    def _drained(self) -> None:
        """The writer has sent everything."""
        if self._owner is not None:
            self._owner.client_read()
            self.flush()

    def _charge(self) -> None:
        """Account for data that the client has not read."""
        left = 0 if self.writer.idle else self.writer.held_bytes
        change, self.charged_bytes = left - self.charged_bytes, left
        if change > 0:
            self._shared.memory.charge(change)
        else:
            self._shared.memory.release(-change)
