"""Checks, at the start of `kbroker serve`, the addresses that clients are told to connect to
(`advertised.listeners`), and logs each one that this machine cannot resolve or reach. Without the
check a client that cannot connect retries for minutes, and no log line shows why.

It is only a warning: behind NAT clients may reach an address that the broker cannot.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterable, Sequence
from typing import Final

from kbroker.log_lines import shown
from kbroker.metadata.image import Endpoint
from kbroker.server.network.listener import BoundListener
from kbroker.settings.sections.listeners import Listener

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 3.0
"""Timeout of a connection attempt; name lookups take as long as the system allows."""


def to_try(endpoints: Iterable[Endpoint], bound: Sequence[BoundListener]) -> list[Endpoint]:
    """The advertised addresses of these listeners that differ from their own. A node that is its
    whole cluster registers a controller at an address without a listener.
    """
    own = {listener.name: (listener.host, listener.port) for listener in bound}
    return [each for each in endpoints if own.get(each.name) not in (None, (each.host, each.port))]


def problem_with(endpoint: Endpoint, timeout_s: float = TIMEOUT_S) -> str | None:
    """Why this machine cannot connect to the address; None if it can. Blocks."""
    host, port = endpoint.host, endpoint.port
    # For a str Python imports the codec of international names, whose tables take 1 MB.
    name = host.encode("ascii") if host.isascii() else host
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return f"cannot resolve {host} ({_words(error)})"
    problem = ""
    for family, kind, protocol, _, address in found:
        try:
            # An address family that this machine lacks only means one address less.
            with socket.socket(family, kind, protocol) as attempt:
                attempt.settimeout(timeout_s)
                attempt.connect(address)
        except OSError as error:
            problem = f"cannot connect to it ({_words(error)})"
        else:
            return None
    return problem


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def try_addresses(endpoints: Sequence[Endpoint]) -> None:
    """Log the unusable addresses. Blocks."""
    for endpoint in endpoints:
        problem = problem_with(endpoint)
        if problem is not None:
            address = Listener(endpoint.name, endpoint.host, endpoint.port, "")
            logger.warning(
                "clients are told to connect to %s, but this machine %s: check"
                " advertised.listeners",
                shown(str(address)),
                shown(problem),
            )


def try_in_background(endpoints: Sequence[Endpoint]) -> threading.Thread | None:
    """`try_addresses` in a thread that does not delay a stop of the process: a resolver may take
    half a minute. None if there are no addresses to check.
    """
    if not endpoints:
        return None
    thread = threading.Thread(
        target=try_addresses, args=(endpoints,), name="kbroker-advertised", daemon=True
    )
    thread.start()
    return thread
