"""A listening socket: bound early, so that its real port can be registered; accepts clients once
the broker serves.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable

import msgspec

from kbroker.model import StartupError
from kbroker.server.network.connection import Connection
from kbroker.server.network.connection_shared import ConnectionShared

logger = logging.getLogger(__name__)

ANY_HOSTS = ("", "0.0.0.0", "::")

Bind = Callable[[str, int, int, int], socket.socket]
"""Creates a bound socket: host, port, and the sizes of its buffers in bytes, -1 for the system's
default. Raises OSError.
"""


class BoundListener(msgspec.Struct, frozen=True):
    """The bound address of a listener. host: as configured, "" for all interfaces; port:
    never 0.
    """

    name: str
    host: str
    port: int
    security_protocol: str

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can connect to it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class ListenerServer:
    """One listener. backlog: `socket.listen.backlog.size`; buffer sizes in bytes, -1 for the
    system's default.
    """

    __slots__ = ("_backlog", "_server", "_socket", "bound")

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        security_protocol: str = "PLAINTEXT",
        *,
        backlog: int = 50,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        bind: Bind | None = None,
    ) -> None:
        """Bind. Raises StartupError if the address cannot be bound."""
        self._backlog = backlog
        self._server: asyncio.Server | None = None
        try:
            self._socket = (bind or bind_socket)(
                host, port, send_buffer_bytes, receive_buffer_bytes
            )
        except OSError as error:
            raise _startup_error(name, host, port, error) from error
        self.bound = BoundListener(name, host, self._socket.getsockname()[1], security_protocol)

    async def start(self, shared: ConnectionShared) -> None:
        """Accept connections from now on."""
        name = self.bound.name
        try:
            self._server = await shared.loop.create_server(
                lambda: Connection(shared, name), sock=self._socket, backlog=self._backlog
            )
        except OSError as error:
            raise _startup_error(name, self.bound.host, self.bound.port, error) from error

    def close(self) -> None:
        """Stop accepting; open connections are kept. No effect the second time."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._socket.close()


def advertised_host(host: str) -> str:
    """The host for clients where advertised.listeners is not set: this machine's name if it
    resolves.
    """
    if host not in ANY_HOSTS:
        return host
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "localhost"
    return name


def bind_socket(
    host: str, port: int, send_buffer_bytes: int, receive_buffer_bytes: int
) -> socket.socket:
    """A socket that is bound to the address; see `Bind`."""
    if host == "" and socket.has_dualstack_ipv6():
        family, address = socket.AF_INET6, "::"
    else:
        # With a str Python would import the IDNA codec, whose tables take 1 MB.
        name = host.encode("ascii") if host.isascii() else host
        found = socket.getaddrinfo(
            name or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, address = found[0][0], str(found[0][4][0])
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # on Windows SO_REUSEADDR would share the port with others
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            only_v6 = 0 if host == "" else 1
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_v6)
        # accepted sockets inherit both
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if send_buffer_bytes > 0:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        if receive_buffer_bytes > 0:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        listening.setblocking(False)
        listening.bind((address, port))
    except BaseException:
        listening.close()
        raise
    return listening


def _startup_error(name: str, host: str, port: int, error: OSError) -> StartupError:
    where = f"{name}://{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return StartupError(
            f"listener {where}: port {port} is in use; stop the other program or change listeners"
        )
    if error.errno == errno.EACCES:
        return StartupError(f"listener {where}: no permission for port {port}; take one above 1023")
    reason = error.strerror or str(error)
    return StartupError(f"listener {where}: {reason}; check listeners")
