"""Free ports of the loopback interface, for servers that must know their ports before they start.

Not those that the system gives for port 0: they are also what outgoing connections get, so one of
them may be taken between the choice and the bind, or while a server that is to come back is down.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from typing import Final

_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FROM: Final = 10_000


def _candidates() -> range:
    """Ports that the system gives to no outgoing connection."""
    try:
        first = int(_EPHEMERAL.read_text().split()[0])
    except OSError:
        first = 32_768
    return range(_FROM, first) if first > _FROM + 1_000 else range(_FROM, 65_536)


def free_ports(count: int) -> list[int]:
    """That many different ports on which nothing listens. They are drawn by the system's random
    source, since a seeded one would give every test process the same ports.
    """
    random, candidates = SystemRandom(), _candidates()
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < count:
            probe = stack.enter_context(socket.socket())
            port = random.choice(candidates)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
    return ports
