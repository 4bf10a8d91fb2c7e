"""The command line in this process: what it printed and its exit code."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kbroker.cli.app import run
from kbroker.cli.profiles.store import FILE_VARIABLE
from kbroker.testing import EmbeddedBroker


@dataclass(frozen=True, slots=True)
class Result:
    """One run."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Cli = Callable[..., Result]


@pytest.fixture(scope="session", autouse=True)
def no_profiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The profiles of the user who runs the tests do not count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FILE_VARIABLE, str(tmp_path_factory.mktemp("profiles") / "none.json"))
        patch.delenv("KBROKER_PROFILE", raising=False)
        yield


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """Run `kbroker` with these arguments."""

    def call(*arguments: str) -> Result:
        code = run(list(arguments))
        out, err = capfdbinary.readouterr()
        return Result(code, out.decode(), err.decode())

    return call


@pytest.fixture
def kbroker(
    cli: Cli, kafka_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Cli:
    """As `cli`, against a running broker. text: what stands on standard input."""
    monkeypatch.setenv("KBROKER_BOOTSTRAP", kafka_broker.bootstrap_servers)

    def call(*arguments: str, text: str = "") -> Result:
        path = tmp_path / "stdin"
        path.write_text(text)
        with path.open() as stream:
            assert isinstance(stream, io.TextIOWrapper)
            monkeypatch.setattr("sys.stdin", stream)
            return cli(*arguments)

    return call
