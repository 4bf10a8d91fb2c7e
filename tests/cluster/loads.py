"""Clients of a cluster, each a process in the client's network. What their lines mean is a
`Sink`'s: here, of clients that change the metadata; of those that produce and consume, in
`history_lines`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from kbroker.settings.tables.keys import ResourceType
from scripts.kafka_jars import tools_class_path
from tests.cluster.cluster import CLIENT, Cluster

HERE: Final = Path(__file__).parent
SIMULATED_BROKERS: Final = 3
STOP_TIMEOUT_S: Final = 20.0
TYPES: Final = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP}

Resource = tuple[int, str]
"""Type and name."""


class Sink(Protocol):
    """Takes what a client prints, in a thread of the client's own. count: of its successes."""

    count: int

    def take(self, line: str) -> None:
        """A line, without its end."""


S = TypeVar("S", bound=Sink)


class Lines:
    """The lines themselves."""

    def __init__(self) -> None:
        self.count = 0
        self.lines: list[str] = []

    def take(self, line: str) -> None:
        """See `Sink`."""
        self.lines.append(line)
        self.count += 1


class Acknowledged:
    """The changes of metadata that were acknowledged to a client."""

    def __init__(self) -> None:
        self.count = 0
        self._configs: dict[Resource, dict[str, str]] = {}
        self._lock = threading.Lock()

    def take(self, line: str) -> None:
        """See `Sink`."""
        with self._lock:
            match line.split():
                case ["created", topic]:
                    self._configs_of(ResourceType.TOPIC, topic)
                case ["set", kind, name, key, value]:
                    self._configs_of(TYPES[kind], name)[key] = value
                case _:
                    return
            self.count += 1

    def configs(self) -> dict[Resource, dict[str, str]]:
        """By resource, as acknowledged until now; empty for a topic that was only created."""
        with self._lock:
            return {resource: dict(configs) for resource, configs in self._configs.items()}

    def _configs_of(self, resource_type: int, name: str) -> dict[str, str]:
        return self._configs.setdefault((int(resource_type), name), {})


class ClientProcess(Generic[S]):
    """A process that ends with its standard input. Its lines go to a log and to the sink."""

    def __init__(self, name: str, command: Sequence[str], log: Path, sink: S) -> None:
        self.name = name
        self.sink = sink
        self._log = log
        self._is_stopping = False
        self._sink_error: Exception | None = None
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=HERE.parent.parent,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._log.open("a") as log:
            for line in self._process.stdout:
                print(time.strftime("%H:%M:%S"), line, end="", file=log, flush=True)
                try:
                    self.sink.take(line.strip())
                except Exception as error:  # noqa: BLE001  # of this thread, reported by `failure`
                    self._sink_error = error

    @property
    def failure(self) -> str | None:
        """Why it ended by itself, or printed what its sink does not take; else None."""
        if self._sink_error is not None:
            return f"lines of the client {self.name}: {self._sink_error!r}"
        code = self._process.poll()
        if code is None or self._is_stopping:
            return None
        tail = " | ".join(self._log.read_text(errors="replace").splitlines()[-5:])
        return f"the client {self.name} ended with code {code}: {tail}"

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Close its input and wait until all its lines were read; kill it after timeout_s."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._is_stopping = True
        self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(STOP_TIMEOUT_S)
        self._process.stdout.close()


def start_simulated_brokers(cluster: Cluster, log: Path) -> ClientProcess[Lines]:
    """Brokers for clusters without any, so that topics can be created."""
    command = [sys.executable, "-m", "tests.cluster.simulated_brokers", cluster.voters]
    command += ["--brokers", str(SIMULATED_BROKERS), "--interval", "0.5"]
    inside = cluster.network.command(CLIENT)
    return ClientProcess("simulated brokers", [*inside, *command], log, Lines())


def java_command(program: str) -> list[str]:
    """Runs a Java source of this folder with Kafka's own clients."""
    java = ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", tools_class_path()]
    return [*java, str(HERE / f"{program}.java")]


def start_load(library: str, cluster: Cluster, log: Path) -> ClientProcess[Acknowledged]:
    """library: java, confluent (needs brokers) or wire (of controllers)."""
    if library == "java":
        command = java_command("AdminLoad")
        has_brokers = bool(cluster.brokers)
        command += (
            ["servers", cluster.bootstrap_servers]
            if has_brokers
            else ["controllers", cluster.bootstrap_controllers]
        )
    else:
        where = cluster.voters if library == "wire" else cluster.bootstrap_servers
        command = [sys.executable, "-m", "tests.cluster.admin_load", library, where]
    replication_factor = len(cluster.brokers) or SIMULATED_BROKERS
    command += [library, str(replication_factor)]
    inside = cluster.network.command(CLIENT)
    return ClientProcess(library, [*inside, *command], log, Acknowledged())
