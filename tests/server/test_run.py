"""`kbroker serve` as a process: what it prints, how it ends."""

from __future__ import annotations

import asyncio
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kbroker import __version__
from kbroker.log.files import LogDirectoryError
from kbroker.log.partition_log import Syncable
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.server import run
from kbroker.server.run import ROOM_FOR_FILES
from kbroker.settings.broker import BrokerConfig
from tests.e2e.wire import frame_of


def serve(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kbroker", "serve"]
    for override in (f"log.dirs={folder}", "listeners=PLAINTEXT://127.0.0.1:0", *overrides):
        command += ["--override", override]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = serve(tmp_path / "data")
    yield process
    process.kill()
    process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_stops_in_order(
    broker: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    line = first_line(broker)
    pattern = rf"kbroker {re.escape(__version__)} listening on PLAINTEXT://127.0.0.1:(\d+)"
    match = re.match(pattern + r" \(node 1, cluster [\w-]{22}\)$", line)
    assert match, line
    with socket.create_connection(("127.0.0.1", int(match[1])), timeout=5):
        broker.send_signal(number)
        assert broker.wait(20) == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux only")
def test_descriptors_have_room_from_the_start(broker: subprocess.Popen[str]) -> None:
    """To make more of it with threads at work waits for all CPUs."""
    assert first_line(broker)
    status = Path(f"/proc/{broker.pid}/status").read_text()
    room = int(status.partition("FDSize:")[2].split()[0])
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert room >= min(ROOM_FOR_FILES, limit)


def test_a_second_signal_stops_at_once(broker: subprocess.Popen[str], tmp_path: Path) -> None:
    """The first stop waits for a peer that does not read its response."""
    port = int(first_line(broker).split(":")[-1].split()[0])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = frame_of(ApiVersionsRequest(), 0)
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):  # until the broker reads no more either
            for _ in range(1_000_000):
                connection.send(request)
        broker.send_signal(signal.SIGTERM)
        assert broker.stderr is not None
        while "stop" not in broker.stderr.readline():
            pass
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(2) == 130
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_startup_problem_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "holiday.jpg").touch()
    process = serve(tmp_path / "data")
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("kbroker: ") and "holiday.jpg" in line


@pytest.mark.parametrize(
    ("override", "said"),
    [
        pytest.param("num.partitions=none", "num.partitions=none", id="bad property"),
        pytest.param("log.retention.ms", "log.retention.ms", id="no value"),
        pytest.param("log.segment.bytes=1", "log.segment.bytes=1", id="out of range"),
        pytest.param("num.io.threads=8", "locked", id="locked folder"),
    ],
)
def test_a_mistake_of_the_user_beside_a_running_broker(
    broker: subprocess.Popen[str], tmp_path: Path, override: str, said: str
) -> None:
    """One line that says what; the folder's owner notices nothing."""
    port = int(first_line(broker).split(":")[-1].split()[0])
    process = serve(tmp_path / "data", override)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("kbroker: ") and said in line
    socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_the_folder_of_another_node(broker: subprocess.Popen[str], tmp_path: Path) -> None:
    first_line(broker)
    broker.terminate()
    broker.wait(20)
    process = serve(tmp_path / "data", "node.id=2")
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("kbroker: ") and "meta.properties" in line


def test_a_port_in_use_leaves_the_folder_unlocked(
    broker: subprocess.Popen[str], tmp_path: Path
) -> None:
    port = first_line(broker).split(":")[-1].split()[0]
    second = serve(tmp_path / "other", f"listeners=PLAINTEXT://127.0.0.1:{port}")
    _, errors = second.communicate(timeout=20)
    assert second.returncode == 1
    assert errors.count("\n") == 1 and f"port {port} is in use" in errors
    third = serve(tmp_path / "other")
    assert "listening" in first_line(third)
    third.terminate()
    third.communicate(timeout=20)


def test_a_metadata_log_that_cannot_be_written_during_the_start_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registration that waits for the write never resolves."""
    syncs = 0

    def sync_all(files: Sequence[Syncable]) -> None:
        nonlocal syncs
        syncs += 1
        if syncs > 2:  # the election and the bootstrap records went well
            raise LogDirectoryError(tmp_path, "fsync", OSError(5, "Input/output error"))
        for file in files:
            file.sync()

    monkeypatch.setattr("kbroker.quorum.driver._sync_all", sync_all)
    config = BrokerConfig.from_properties(
        {"log.dirs": str(tmp_path / "data"), "listeners": "PLAINTEXT://127.0.0.1:0"}
    )

    async def serve_at_most_20_s() -> int:
        async with asyncio.timeout(20):
            return await run._serve(config)

    assert asyncio.run(serve_at_most_20_s()) == 1
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
