"""`kbroker serve` as a process: its output and its exit."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from kbroker import __version__
from kbroker.node import run
from kbroker.node.loop.garbage import CollectorPolicy
from kbroker.node.run import ROOM_FOR_FILES
from kbroker.protocol.messages.admin.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.quorum.formatting.format import FormatOptions, format_directories
from kbroker.settings.broker import BrokerConfig
from tests.e2e.wire import call, frame_of
from tests.node.broken_disk import break_metadata_log
from tests.node.test_advertised import UNRESOLVABLE

ROOT = Path(__file__).parents[2]


def serve(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kbroker", "serve"]
    for override in (f"log.dirs={folder}", "listeners=PLAINTEXT://127.0.0.1:0", *overrides):
        command += ["--override", override]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """The process does not outlive the block."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with ended(serve(tmp_path / "data")) as process:
        yield process


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_stops_in_order(
    broker: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    line = first_line(broker)
    pattern = rf"kbroker {re.escape(__version__)} listening on PLAINTEXT://127.0.0.1:(\d+)"
    pattern += r", advertised as PLAINTEXT://127.0.0.1:\1"
    match = re.match(pattern + r" \(node 1, cluster [\w-]{22}\)$", line)
    assert match, line
    with socket.create_connection(("127.0.0.1", int(match[1])), timeout=5):
        broker.send_signal(number)
        assert broker.wait(20) == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_clients_alter_the_levels_of_its_loggers(broker: subprocess.Popen[str]) -> None:
    port = int(first_line(broker).split(":")[-1].split()[0])
    Resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    root = IncrementalAlterConfigsRequest.AlterableConfig(name="root", value="ERROR")
    request = IncrementalAlterConfigsRequest(
        resources=[Resource(resource_type=8, resource_name="1", configs=[root])]
    )
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        response = call(connection, request, 1)
    assert isinstance(response, IncrementalAlterConfigsResponse)
    assert [(each.error_code, each.error_message) for each in response.responses] == [(0, None)]
    broker.send_signal(signal.SIGTERM)
    assert broker.wait(20) == 0
    assert broker.stderr is not None
    assert "kbroker.node.node: stopping" not in broker.stderr.read(), "which is at INFO"


def test_it_says_what_clients_are_told_to_connect_to(tmp_path: Path) -> None:
    overrides = (
        "listeners=INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "advertised.listeners=OUTSIDE://broker.example.com:19092",
        "inter.broker.listener.name=OUTSIDE",
    )
    with ended(serve(tmp_path / "data", *overrides)) as process:
        lines = [first_line(process), first_line(process)]
    assert re.search(r"listening on INSIDE://127.0.0.1:\d+, not advertised \(node 1", lines[0])
    assert re.search(
        r"listening on OUTSIDE://\S+, advertised as OUTSIDE://broker.example.com:19092 \(", lines[1]
    )


@pytest.mark.parametrize(
    ("host", "said"),
    [
        pytest.param(UNRESOLVABLE, f"cannot resolve {UNRESOLVABLE}", id="no-such-name"),
        pytest.param("127.0.0.1", "cannot connect to it (Connection refused)", id="closed-port"),
    ],
)
def test_it_says_that_what_clients_are_told_is_of_no_use(
    tmp_path: Path, host: str, said: str
) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"PLAINTEXT://{host}:{reserved.getsockname()[1]}"
        override = f"advertised.listeners={address}"
        with ended(serve(tmp_path / "data", override)) as process:
            assert f"advertised as {address} (" in first_line(process)
            assert process.stderr is not None
            line = next(line for line in process.stderr if "clients are told" in line)
    assert (
        f" WARNING [node 1] kbroker.node.advertised: clients are told to connect to {address}, b"
        in line
    )
    assert f"but this machine {said}" in line
    assert line.endswith("check advertised.listeners\n")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.mark.skipif(not is_free(9092), reason="another broker is on port 9092")
def test_without_a_file_it_is_as_the_documents_say(tmp_path: Path) -> None:
    """`kbroker serve` and nothing else, as in docs/getting-started.md."""
    started = subprocess.Popen(
        [sys.executable, "-m", "kbroker", "serve"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with ended(started) as process:
        address = "PLAINTEXT://localhost:9092"
        line = first_line(process)
        assert f" listening on {address}, advertised as {address} (node 1, cluster " in line
        assert (tmp_path / "data" / "meta.properties").is_file()
        process.terminate()
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    (notice,) = [line for line in errors.splitlines() if "not authenticated" in line]
    assert f"every client that can reach {address} has access to all topics" in notice
    assert "clients are told" not in errors


def test_without_a_file_data_is_in_the_working_directory(tmp_path: Path) -> None:
    """Which listener it has then is in tests/settings: its port may be in use here."""
    command = [sys.executable, "-m", "kbroker", "serve", "-o", "listeners=PLAINTEXT://localhost:0"]
    started = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with ended(started) as process:
        assert "listening on PLAINTEXT://localhost:" in first_line(process)
        assert (tmp_path / "data" / "meta.properties").is_file()


@pytest.mark.parametrize(
    ("listener", "level"), [("127.0.0.1", "INFO"), ("localhost", "INFO"), ("0.0.0.0", "WARNING")]
)
def test_it_says_that_clients_are_not_authenticated(
    tmp_path: Path, listener: str, level: str
) -> None:
    with ended(serve(tmp_path / "data", f"listeners=PLAINTEXT://{listener}:0")) as process:
        first_line(process)
        process.terminate()
        _, errors = process.communicate(timeout=20)
    (notice,) = [line for line in errors.splitlines() if "not authenticated" in line]
    assert f" {level} " in notice and f"PLAINTEXT://{listener}:" in notice


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "author"),
        ("super.users=User:admin", "super.users=User:admin: it asks for protection"),
        ("ssl.client.auth=required", "ssl.client.auth=required: it asks for protection"),
        ("listeners=SASL_SSL://127.0.0.1:0", "listener SASL_SSL uses SASL_SSL, which"),
    ],
)
def test_a_secured_configuration_does_not_start_open(
    tmp_path: Path, override: str, said: str
) -> None:
    with ended(serve(tmp_path / "data", override)) as process:
        assert first_line(process) == ""
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    (line,) = errors.splitlines()
    assert line.startswith(f"kbroker: --override {override.partition('=')[0]}=")
    assert said in line and "; allowed: " in line
    assert not (tmp_path / "data").exists()


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
        assert "a second signal: stopping at once, with exit code 130" in broker.stderr.read()
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_second_signal_ends_the_wait_for_controllers_that_are_lost(tmp_path: Path) -> None:
    """The first signal begins a controlled shutdown that no controller answers."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    quorum = (
        "controller.listener.names=CONTROLLER",
        f"controller.quorum.voters=1@127.0.0.1:{port}",
    )
    controller_settings = ("process.roles=controller", f"listeners=CONTROLLER://127.0.0.1:{port}")
    with ended(serve(tmp_path / "1", *quorum, *controller_settings)) as controller:
        line = first_line(controller)
        cluster_id = line.rpartition("cluster ")[2].rstrip(")")
        config = BrokerConfig.from_properties(
            {
                **dict(each.split("=", 1) for each in quorum),
                "process.roles": "broker",
                "node.id": "2",
                "log.dirs": str(tmp_path / "2"),
            }
        )
        format_directories(config, FormatOptions(cluster_id=cluster_id), random=Random(2))
        with ended(serve(tmp_path / "2", *quorum, "process.roles=broker", "node.id=2")) as broker:
            assert "(node 2, " in first_line(broker)
            controller.kill()
            controller.wait(5)
            broker.send_signal(signal.SIGINT)
            assert broker.stderr is not None
            while "stopping" not in broker.stderr.readline():
                pass
            with pytest.raises(subprocess.TimeoutExpired):
                broker.wait(1)
            broker.send_signal(signal.SIGINT)
            assert broker.wait(2) == 130
            assert "a second signal: stopping at once" in broker.stderr.read()


def test_a_startup_problem_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "holiday.jpg").touch()
    process = serve(tmp_path / "data")
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("kbroker: ") and "holiday.jpg" in line


@pytest.mark.parametrize("folder", ["file", "file/data", "x" * 300])
def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path, folder: str) -> None:
    """As one on a read-only file system, and one without permission."""
    (tmp_path / "file").touch()
    with ended(serve(tmp_path / folder)) as process:
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("kbroker: none of log.dirs can be used: cannot ")
    assert str(tmp_path) in line


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
    # the election and the bootstrap records go well
    break_metadata_log(monkeypatch, tmp_path, after=2)
    config = BrokerConfig.from_properties(
        {"log.dirs": str(tmp_path / "data"), "listeners": "PLAINTEXT://127.0.0.1:0"}
    )

    async def serve_at_most_20_s() -> int:
        async with asyncio.timeout(20):
            return await run._serve(config, CollectorPolicy(), print)

    assert asyncio.run(serve_at_most_20_s()) == 1
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
