"""Free ports for servers of tests and benchmarks.

Not those that the system gives for port 0: they are also what outgoing connections get, so one of
them may be taken between the choice and the bind, or while a server that is to come back is down.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FROM: Final = 10_000
_RANDOM: Final = random.SystemRandom()
"""Not the module's generator: what seeds that would give each test process the same ports."""
_given: set[int] = set()


def _candidates() -> range:
    """Ports that the system gives to nobody."""
    try:
        first = int(_EPHEMERAL.read_text().split()[0])
    except OSError:
        first = 32_768
    return range(_FROM, first) if first > _FROM + 1_000 else range(_FROM, 65_536)


def free_port() -> int:
    """A port of the loopback interface on which nobody listens; another one each time."""
    candidates = _candidates()
    while True:
        port = _RANDOM.choice(candidates)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port


def free_ports(count: int) -> list[int]:
    """So many of them."""
    return [free_port() for _ in range(count)]
