"""What client commands share: the wait for a cluster that does not answer."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import typer

from kbroker.cli import session
from kbroker.cli.session import moment, run


class _Terminal(io.StringIO):
    """written: set once anything is written on it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


@contextmanager
def stderr(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> Iterator[io.StringIO]:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    yield stream


def test_a_spinner_turns_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SPINNER_AFTER_S", 0.0)
    terminal = _Terminal()

    async def answer() -> bool:
        return await asyncio.to_thread(terminal.written.wait, 60)

    with stderr(monkeypatch, terminal):
        assert run(answer())
    assert "waiting for the cluster" in terminal.getvalue()


@pytest.mark.parametrize(("stream", "spinner"), [(io.StringIO(), True), (_Terminal(), False)])
def test_no_spinner(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, spinner: bool) -> None:
    """In a pipe, and where a command shows its progress."""
    monkeypatch.setattr(session, "SPINNER_AFTER_S", 0.0)

    async def turns() -> None:
        for _ in range(100):
            await asyncio.sleep(0)

    with stderr(monkeypatch, stream) as seen:
        run(turns(), spinner=spinner)
        assert seen.getvalue() == ""


def test_what_is_raised_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise OSError("gone")

    with stderr(monkeypatch, _Terminal()), pytest.raises(OSError, match="gone"):
        run(fail())


def test_a_moment_names_its_option() -> None:
    assert moment("5", "--at") == 5
    with pytest.raises(typer.BadParameter, match="'soon' is no time") as caught:
        moment("soon", "--at")
    assert caught.value.param_hint == "--at"
