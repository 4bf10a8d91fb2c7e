"""The value of `bootstrap.servers`."""

from __future__ import annotations

from typing import Final

from kbroker.model import StartupError

DEFAULT_PORT: Final = 9092


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """`host:port,host:port`; port 9092 if it is left out. Raises StartupError for anything else."""
    addresses = []
    for item in text.split(","):
        entry = item.strip()
        if not entry:
            continue
        host, separator, port = entry.rpartition(":")
        if not separator or entry.endswith("]"):
            host, port = entry, str(DEFAULT_PORT)
        if not port.isdecimal() or not 0 < int(port) < 65536 or not host.strip("[]"):
            raise StartupError(f"{entry!r} is no broker address: write host:port")
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise StartupError("no broker address given: write host:port")
    return addresses
