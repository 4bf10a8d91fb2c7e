"""`kbroker dump-log --verify` of a folder in use, or left by kill -9: both are sound."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.storage import files
from kbroker.testing import EmbeddedBroker

Cli = Callable[..., Any]


def read_bytes() -> int:
    """What this process has read with system calls so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("rchar:")]
    return int(line.split()[1])


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedBroker]:
    broker = EmbeddedBroker(data=tmp_path / "data").start()
    monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap_servers)
    yield broker
    broker.stop()


def fill(cli: Cli, broker: EmbeddedBroker) -> None:
    """A topic with many index entries, one with preallocated segments, and a group's offsets."""
    lines = broker.data.parent / "lines"
    lines.write_text("\n".join(f"key-{number}:value-{number}" for number in range(5000)))
    broker.create_topic("plain", partitions=2, configs={"index.interval.bytes": "100"})
    broker.create_topic("preallocated", configs={"preallocate": "true"})
    for topic in ("plain", "plain", "preallocated"):
        assert cli("produce", topic, "-k", ":", "-f", str(lines)).code == 0
    assert cli("consume", "plain", "-g", "g", "-e", "-n", "10").code == 0


def verified(cli: Cli, *arguments: str) -> tuple[int, str]:
    result = cli("dump-log", "--verify", *arguments)
    return result.code, result.out


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux only")
def test_a_folder_in_use_and_after_a_kill_is_sound(cli: Cli, running: EmbeddedBroker) -> None:
    fill(cli, running)
    for state in ("running", "killed"):
        if state == "killed":
            running.kill()
        before = read_bytes()
        assert verified(cli, str(running.data)) == (0, ""), state
        # the indexes and the preallocated segment have 1.2 GB of zeros
        assert read_bytes() - before < 10_000_000, state
        for folder in ("plain-0", "preallocated-0"):
            assert verified(cli, "--records", str(running.data / folder)) == (0, ""), state


def test_what_a_kill_does_not_explain_is_still_named(cli: Cli, running: EmbeddedBroker) -> None:
    fill(cli, running)
    running.kill()
    path = running.data / "plain-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    code, out = verified(cli, str(running.data))
    assert code == 1
    assert "plain-0/00000000000000000000.log: position 0: wrong CRC" in out
    path.unlink()
    assert verified(cli, str(running.data))[0] == 1


def test_a_folder_that_cannot_be_written_can_be_read(
    cli: Cli, running: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cli, running)
    running.stop()

    def refuse(path: str, flags: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return os.open(path, flags)

    monkeypatch.setattr(files, "_open", refuse)
    assert verified(cli, str(running.data)) == (0, "")
    dumped = cli("dump-log", str(running.data / "plain-0"), "--records")
    assert (dumped.code, dumped.err) == (0, "")
