"""The port on which the channel stands: connections as streams of bytes.

Implementations: `asyncio_streams`, and the simulated network of the tests.
"""

from __future__ import annotations

from typing import Protocol


class StreamReceiver(Protocol):
    """The events of one connection, on the loop thread: `connected`, then data, and
    at last `connection_lost`, which comes at once where no connection could be made.
    """

    def connected(self) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def connection_lost(self, reason: str) -> None: ...


class Stream(Protocol):
    """A connection that is open or is being opened."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, after `connected`. Never blocks: what the peer does not read is bounded by
        the deadlines of requests, which end the connection.
        """
        ...

    def close(self) -> None:
        """Close the connection; its receiver is told nothing more."""
        ...


class StreamOpener(Protocol):
    """Opens connections."""

    def __call__(self, host: str, port: int, receiver: StreamReceiver) -> Stream:
        """Begin to connect. The receiver is told of the outcome, never within this call."""
        ...
