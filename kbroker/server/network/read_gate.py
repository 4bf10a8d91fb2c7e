"""Starts and stops reading from a connection: back-pressure towards the client.

    reading -> paused (`pause`, until the next turn of the loop) -> reading
    reading -> parked (`park`, something else must happen first) -> reading

A parked connection is registered with `hang_ups`, since a socket that is not read reports no end of
its stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kbroker.server.network.hang_ups import HangUp, HangUpWatch


class ReadGate:
    """The gate of one connection. on_hang_up: called when the client leaves while the connection is
    parked. is_reading: false while paused or parked. has_peer_ended: the client ended its stream
    while the connection was parked.
    """

    __slots__ = (
        "_hang_ups",
        "_on_hang_up",
        "_transport",
        "_watched_fd",
        "has_peer_ended",
        "is_reading",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        hang_ups: HangUpWatch,
        on_hang_up: Callable[[HangUp], None],
    ) -> None:
        self._transport = transport
        self._hang_ups = hang_ups
        self._on_hang_up: Callable[[HangUp], None] | None = on_hang_up
        self._watched_fd = -1  # the descriptor while parked
        self.is_reading = True
        self.has_peer_ended = False

    def pause(self) -> None:
        """Stop reading for now."""
        if self.is_reading:
            self.is_reading = False
            self._transport.pause_reading()

    def park(self) -> None:
        """Stop reading until `resume`, and detect a client that leaves meanwhile."""
        self.pause()
        if self._watched_fd < 0 and not self._transport.is_closing():
            watched = self._transport.get_extra_info("socket")
            if watched is None:  # the system cannot report its peer
                return
            self._watched_fd = watched.fileno()
            self._hang_ups.watch(self._watched_fd, self._hung_up)

    def resume(self) -> None:
        """Start reading again. No effect on a connection that is read."""
        if not self.is_reading:
            self._unwatch()
            self.is_reading = True
            self._transport.resume_reading()

    def end(self) -> None:
        """The client ended its stream: no more data follows."""
        self.is_reading = False

    def close(self) -> None:
        """The connection is closed. Leaves no reference cycle."""
        self._unwatch()
        self._on_hang_up = None

    def _unwatch(self) -> None:
        if self._watched_fd >= 0:
            self._hang_ups.unwatch(self._watched_fd)
            self._watched_fd = -1

    def _hung_up(self, how: HangUp) -> None:
        self.has_peer_ended = True
        if self._on_hang_up is not None:
            self._on_hang_up(how)
