"""`GET /metrics` on a port of its own, for Prometheus; off unless `kbroker.metrics.listener` names
one.

As much HTTP as a scraper needs: one request per connection, answered from the loop. What grows with
the number of partitions is told in slices, so that a scrape does not hold up the clients. What is
told is in `metrics`. Imported only where metrics are served: prometheus-client is no small import.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest

from kbroker.model import StartupError
from kbroker.server.metrics import (
    MetricsSources,
    broker_families,
    partition_slices,
    telemetry_slices,
)

logger = logging.getLogger(__name__)

SETTING: Final = "kbroker.metrics.listener"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_REQUEST_BYTES: Final = 16 * 1024
REQUEST_SECONDS: Final = 10.0
MAX_SCRAPES: Final = 10
"""Connections at a time; further ones are closed."""


class MetricsEndpoint:
    """See the module. address: `host:port`; port 0 takes a free one."""

    def __init__(self, address: str, sources: MetricsSources) -> None:
        self._address = address
        self._sources = sources
        self._server: asyncio.Server | None = None
        self._scrapes: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> None:
        """Listen. Raises StartupError if that is impossible."""
        host, _, port = self._address.rpartition(":")
        try:
            self._server = await asyncio.start_server(
                self._accept, host.strip("[]"), int(port), limit=MAX_REQUEST_BYTES
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise StartupError(f"{SETTING}={self._address}: {reason}; take another one") from error
        self.port = self._server.sockets[0].getsockname()[1]
        logger.info("metrics at http://%s:%d/metrics", host, self.port)

    def close(self) -> None:
        """Stop listening. No effect the second time."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for scrape in self._scrapes:
            scrape.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._scrapes) >= MAX_SCRAPES:
            writer.close()
            return
        self._scrapes.add(task)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await self._serve(reader, writer)
        except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError) as error:
            logger.debug("a scrape ended: %s", error)
        finally:
            self._scrapes.discard(task)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            writer.write(_head("405 Method Not Allowed", "text/plain"))
        elif words[1].partition(b"?")[0] != b"/metrics":
            writer.write(_head("404 Not Found", "text/plain"))
        else:
            writer.write(_head("200 OK", CONTENT_TYPE))
            if words[0] == b"GET":
                async for text in scrape(self._sources):
                    writer.write(text)
                    await writer.drain()
        await writer.drain()


def _head(status: str, content_type: str) -> bytes:
    """The response ends with its connection, so it needs no length."""
    lines = (f"HTTP/1.1 {status}", f"Content-Type: {content_type}", "Connection: close", "", "")
    return "\r\n".join(lines).encode()


async def scrape(sources: MetricsSources) -> AsyncIterator[bytes]:
    """Everything as Prometheus text, a turn of the loop for each piece. Samples of one name stay
    together, as the format wants it.
    """
    yield render(list(broker_families(sources)))
    told: list[list[bytes]] = []
    for number, families in enumerate(partition_slices(sources.services)):
        texts = [render([family], with_head=number == 0) for family in families]
        told = told or [[] for _ in texts]
        for pieces, text in zip(told, texts, strict=True):
            pieces.append(text)
        await asyncio.sleep(0)
    for pieces in told:
        yield b"".join(pieces)
    if sources.services.telemetry is not None:
        before = ""
        for name, family in telemetry_slices(sources.services.telemetry):
            yield render([family], with_head=name != before)
            before = name
            await asyncio.sleep(0)


def render(families: list[Metric], *, with_head: bool = True) -> bytes:
    """Text of some families, with or without their HELP and TYPE lines."""

    class _Families:
        def collect(self) -> list[Metric]:
            return families

    text: bytes = generate_latest(_Families())
    if with_head:
        return text
    return b"".join(line for line in text.splitlines(True) if not line.startswith(b"#"))
