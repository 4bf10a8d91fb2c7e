"""Free ports for servers of tests and benchmarks, each given once per process."""

from __future__ import annotations

from kbroker.testing import ports

_given: set[int] = set()


def free_port() -> int:
    """A port of the loopback interface on which nothing listens; a different one each time."""
    while True:
        (port,) = ports.free_ports(1)
        if port not in _given:
            _given.add(port)
            return port


def free_ports(count: int) -> list[int]:
    """That many different ports."""
    return [free_port() for _ in range(count)]
