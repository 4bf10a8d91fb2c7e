"""The port of `kbroker.metrics.listener`: `/metrics` for Prometheus, `/healthz` and `/readyz` for
probes, and a page that names them.

One request per connection, answered from the loop. What is rendered takes turns with the clients
(`render_turns`), and nothing is rendered while the peer does not read. A peer has a few seconds for
its request and for its response. Of too many connections the oldest of the address that has most is
ended, so that scrapers that hang do not keep others out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from kbroker.model import StartupError
from kbroker.server.monitoring import exposition, landing_page
from kbroker.server.monitoring.health import HealthCheck, is_ok, report
from kbroker.server.monitoring.http_messages import (
    MAX_HEAD_BYTES,
    PLAIN_TEXT,
    HttpRefusal,
    HttpRequest,
    HttpStatus,
    chunk,
    parse_request,
    response_head,
)
from kbroker.server.monitoring.render_turns import RenderTurns

logger = logging.getLogger(__name__)

SETTING: Final = "kbroker.metrics.listener"
HEAD_SECONDS: Final = 5.0
"""For a request to arrive."""

RESPONSE_SECONDS: Final = 30.0
"""For a response to be made and sent."""

MAX_CONNECTIONS: Final = 32


class MonitoredNode(Protocol):
    """What the endpoint tells of. Called on the loop."""

    def metrics(self) -> Iterator[str]:
        """The pieces of a scrape; see `collection.collect`."""
        ...

    def liveness(self) -> list[HealthCheck]: ...

    def readiness(self) -> list[HealthCheck]: ...

    def description(self) -> Mapping[str, str]:
        """What the landing page says about the node."""
        ...


class MonitoringEndpoint:
    """See the module. address: `host:port`; port 0 takes a free one."""

    def __init__(self, address: str, node: MonitoredNode) -> None:
        self._address = address
        self._node = node
        self._server: asyncio.Server | None = None
        self._turns = RenderTurns()
        self._connections: dict[asyncio.Task[None], tuple[str, asyncio.StreamWriter]] = {}
        """With the peer's address, in the order in which they came."""
        self.port = 0

    async def start(self) -> None:
        """Listen. Raises StartupError if that is impossible."""
        host, _, port = self._address.rpartition(":")
        try:
            self._server = await asyncio.start_server(
                self._accept, host.strip("[]"), int(port), limit=MAX_HEAD_BYTES
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise StartupError(f"{SETTING}={self._address}: {reason}; take another one") from error
        self.port = self._server.sockets[0].getsockname()[1]
        logger.info("metrics and health at http://%s:%d/", host, self.port)

    def close(self) -> None:
        """Stop listening and end all connections. No effect the second time."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in tuple(self._connections):
            self._end(task)

    def _end(self, task: asyncio.Task[None]) -> None:
        _, writer = self._connections.pop(task)
        writer.transport.abort()
        task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or self._server is None:
            writer.transport.abort()
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            self._end(self._most_wasteful())
        peer = writer.get_extra_info("peername")
        self._connections[task] = (str(peer[0]) if peer else "", writer)
        try:
            await self._converse(reader, writer)
        except (OSError, TimeoutError, EOFError) as error:
            logger.debug("a request for metrics or health ended: %s", error)
        except Exception:  # of this request: the next one is answered
            logger.exception("a request for metrics or health failed")
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()  # unless it is closed: its peer does not read

    def _most_wasteful(self) -> asyncio.Task[None]:
        """The oldest connection of the address that has most of them."""
        counts = Counter(host for host, _ in self._connections.values())
        most = counts.most_common(1)[0][0]
        return next(task for task, (host, _) in self._connections.items() if host == most)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=0)  # `drain` waits until all is sent
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            request = parse_request(head)
            async with asyncio.timeout(RESPONSE_SECONDS):
                await self._answer(request, writer)
                await _finish(writer)
        except asyncio.LimitOverrunError:
            await _refuse(writer, HttpStatus.HEAD_TOO_LARGE)
        except HttpRefusal as refused:
            await _refuse(writer, refused.status)

    async def _answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        """Raises HttpRefusal for an unknown path."""
        match request.path:
            case "/metrics":
                await self._send_metrics(request, writer)
            case "/healthz":
                await _send_checks(request, writer, self._node.liveness())
            case "/readyz":
                await _send_checks(request, writer, self._node.readiness())
            case "/":
                page = landing_page.landing_page(self._node.description())
                await _send(request, writer, HttpStatus.OK, landing_page.CONTENT_TYPE, page)
            case _:
                raise HttpRefusal(HttpStatus.NOT_FOUND)

    async def _send_metrics(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        is_chunked = request.takes_chunks
        content_type = exposition.CONTENT_TYPE
        writer.write(response_head(HttpStatus.OK, content_type, length=None, is_chunked=is_chunked))
        if request.wants_body:
            pieces = self._node.metrics()
            while (text := await self._turns.take(pieces)) is not None:
                data = text.encode("utf-8", "backslashreplace")
                if data:
                    writer.write(chunk(data) if is_chunked else data)
                    await writer.drain()
            if is_chunked:
                writer.write(chunk(b""))
        await writer.drain()


async def _send_checks(
    request: HttpRequest, writer: asyncio.StreamWriter, checks: list[HealthCheck]
) -> None:
    status = HttpStatus.OK if is_ok(checks) else HttpStatus.UNAVAILABLE
    await _send(request, writer, status, PLAIN_TEXT, report(checks))


async def _send(
    request: HttpRequest,
    writer: asyncio.StreamWriter,
    status: HttpStatus,
    content_type: str,
    text: str,
) -> None:
    data = text.encode()
    writer.write(response_head(status, content_type, length=len(data)))
    if request.wants_body:
        writer.write(data)
    await writer.drain()


async def _refuse(writer: asyncio.StreamWriter, status: HttpStatus) -> None:
    """Answer no more than a status."""
    writer.write(response_head(status, PLAIN_TEXT, length=0))
    async with asyncio.timeout(HEAD_SECONDS):
        await _finish(writer)


async def _finish(writer: asyncio.StreamWriter) -> None:
    """Close the connection once all is with the kernel."""
    writer.close()
    await writer.wait_closed()
