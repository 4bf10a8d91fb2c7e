"""CRC-32C (Castagnoli), the checksum of record batches v2.

The `crc32c` wheel computes it with the processor's own instruction; where no wheel exists for a
platform, `crcmod` gives the same numbers. Both take any bytes-like object without copying it.
`crc32c(buffer, value=0)` is whichever is there: unsigned; value: the CRC of what came before the
buffer, to continue from.
Source: KIP-98, RFC 3720 appendix B.4.
"""

from __future__ import annotations

import importlib
from typing import Final, Protocol, cast


class Checksum(Protocol):
    """What both implementations are: no wrapper stands before them, one is called per batch."""

    def __call__(self, buffer: bytes | bytearray | memoryview, value: int = 0, /) -> int: ...


def from_wheel() -> Checksum:
    """The function of the `crc32c` wheel. Raises ImportError where it is not installed."""
    return cast(Checksum, importlib.import_module("crc32c").crc32c)


def from_crcmod() -> Checksum:
    """The same function by crcmod, some hundred times slower without its C extension."""
    predefined = importlib.import_module("crcmod.predefined")
    return cast(Checksum, predefined.mkPredefinedCrcFun("crc-32c"))


def _choose() -> Checksum:
    try:
        return from_wheel()
    except ImportError:
        return from_crcmod()


crc32c: Final[Checksum] = _choose()
