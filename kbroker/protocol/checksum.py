"""CRC-32C (Castagnoli), the checksum of record batches v2.

The `crc32c` wheel computes it with the processor's own instruction; where no wheel exists for a
platform, `crcmod` gives the same numbers. Both take any bytes-like object without copying it.
Source: KIP-98, RFC 3720 appendix B.4.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final, cast

Checksum = Callable[[bytes | bytearray | memoryview, int], int]


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


_implementation: Final[Checksum] = _choose()


def crc32c(buffer: bytes | bytearray | memoryview, value: int = 0) -> int:
    """CRC-32C of buffer, unsigned. value: the CRC of what came before it, to continue from."""
    return _implementation(buffer, value)
