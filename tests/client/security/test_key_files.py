"""The files of TLS and SASL: what cannot be read is one line, and keys are the owner's alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from kbroker.client.security.key_files import private_file, read_text
from kbroker.client.security.secret import Secret
from kbroker.model import StartupError


def test_a_text(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("abc\n")
    assert read_text(str(path), "key") == "abc\n"


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"^a.key=.*/none: cannot read it: No such file"):
        read_text(str(tmp_path / "none"), "a.key")
    with pytest.raises(StartupError, match="cannot read it: Is a directory"):
        read_text(str(tmp_path), "a.key")
    (tmp_path / "store.jks").write_bytes(b"\xfe\xed\xfe\xed")
    with pytest.raises(StartupError, match="it is no text"):
        read_text(str(tmp_path / "store.jks"), "a.key")


def test_a_private_file_is_gone_afterwards() -> None:
    with private_file(Secret("abc")) as name:
        path = Path(name)
        assert path.read_text() == "abc"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()
