"""CRC-32C by the wheel and by crcmod: the same numbers over the same buffers."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.model import StartupError
from kbroker.protocol.batches import checksum

IMPLEMENTATIONS = [
    pytest.param(checksum.from_wheel, id="crc32c"),
    pytest.param(checksum.from_crcmod, id="crcmod"),
    pytest.param(lambda: checksum.crc32c, id="chosen"),
]

VECTORS = [
    pytest.param(b"", 0x00000000, id="nothing"),
    pytest.param(b"123456789", 0xE3069283, id="check value"),
    pytest.param(bytes(32), 0x8A9136AA, id="zeros, RFC 3720"),
    pytest.param(b"\xff" * 32, 0x62A8AB43, id="ones, RFC 3720"),
    pytest.param(bytes(range(32)), 0x46DD794E, id="rising, RFC 3720"),
]


@pytest.mark.parametrize("load", IMPLEMENTATIONS)
@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_known_values_over_every_kind_of_buffer(
    load: Callable[[], checksum.Checksum], data: bytes, expected: int
) -> None:
    crc32c = load()
    shifted = memoryview(bytearray(b"x" + data + b"y"))[1 : 1 + len(data)]
    for buffer in (data, bytearray(data), memoryview(data), shifted):
        assert crc32c(buffer, 0) == expected


@pytest.mark.parametrize("load", IMPLEMENTATIONS)
def test_continues_from_a_value(load: Callable[[], checksum.Checksum]) -> None:
    crc32c = load()
    assert crc32c(b"6789", crc32c(b"12345", 0)) == 0xE3069283


@given(st.binary(max_size=300))
def test_both_agree(data: bytes) -> None:
    assert checksum.from_wheel()(data, 0) == checksum.from_crcmod()(data, 0)


def make_missing(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Modules of these names are not installed."""
    original: Callable[..., Any] = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name.partition(".")[0] in names:
            raise ImportError(name)
        return original(name, package)

    monkeypatch.delitem(sys.modules, "crc32c", raising=False)
    monkeypatch.setattr(checksum.importlib, "import_module", without)
    monkeypatch.setattr(checksum.PathFinder, "find_spec", lambda *_: None)


def test_crcmod_is_taken_where_the_wheel_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    make_missing(monkeypatch, "crc32c")
    chosen = checksum._choose()
    assert chosen(b"123456789", 0) == 0xE3069283
    assert "crc32c" not in sys.modules


def test_without_both_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    make_missing(monkeypatch, "crc32c", "crcmod")
    with pytest.raises(StartupError, match="its extra crcmod"):
        checksum._choose()


def test_the_wheel_comes_without_its_command_line() -> None:
    program = "import sys; import kbroker.protocol.batches.checksum; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = done.stdout.decode().split()
    assert not {"argparse", "importlib.metadata", "email", "crcmod"} & set(loaded)
