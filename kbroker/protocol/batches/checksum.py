"""CRC-32C (Castagnoli), the checksum of record batches v2.

The `crc32c` wheel computes it with the processor's own instruction; on platforms without a wheel,
`crcmod` (kbroker's extra of that name) computes the same checksum. Both take any bytes-like object
without copying it. `crc32c(buffer, value=0)` is the installed one. It returns an unsigned int;
value: the CRC of the preceding bytes, to continue from. Source: KIP-98, RFC 3720 appendix B.4.
"""

from __future__ import annotations

import importlib
from importlib.machinery import ExtensionFileLoader, PathFinder
from types import ModuleType
from typing import Final, Protocol, cast

from kbroker.model import StartupError


class Checksum(Protocol):
    """The signature of both implementations. They are called directly, once per batch, without a
    wrapper.
    """

    def __call__(self, buffer: bytes | bytearray | memoryview, value: int = 0, /) -> int: ...


def from_wheel() -> Checksum:
    """The function of the `crc32c` wheel. Raises ImportError where it is not installed."""
    module = _extension() or importlib.import_module("crc32c")
    return cast(Checksum, module.crc32c)


def _extension() -> ModuleType | None:
    """The wheel's extension without its package, which imports argparse and importlib.metadata: 80
    modules, a seventh of the broker's start. None if the package has another layout.
    """
    package = PathFinder.find_spec("crc32c")
    if package is None or package.submodule_search_locations is None:
        return None
    spec = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if spec is None or not isinstance(spec.loader, ExtensionFileLoader):
        return None
    module = spec.loader.create_module(spec)
    spec.loader.exec_module(module)
    return module


def from_crcmod() -> Checksum:
    """The same function by crcmod, some hundred times slower without its C extension."""
    predefined = importlib.import_module("crcmod.predefined")
    return cast(Checksum, predefined.mkPredefinedCrcFun("crc-32c"))


def _choose() -> Checksum:
    try:
        return from_wheel()
    except ImportError:
        pass
    try:
        return from_crcmod()
    except ImportError as error:
        message = "neither crc32c nor crcmod is installed: install kbroker with its extra crcmod"
        raise StartupError(message) from error


crc32c: Final[Checksum] = _choose()
