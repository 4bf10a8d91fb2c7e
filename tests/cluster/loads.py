"""Clients that change the metadata, each a process in the client's network, and what was
acknowledged to them.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kbroker.settings.keys import ResourceType
from scripts.kafka_jars import tools_class_path
from tests.cluster.cluster import CLIENT, Cluster

HERE: Final = Path(__file__).parent
SIMULATED_BROKERS: Final = 3
STOP_TIMEOUT_S: Final = 20.0
TYPES: Final = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP}

Resource = tuple[int, str]
"""Type and name."""


class Acknowledged:
    """What the cluster must have. Lines are taken in a thread of their own."""

    def __init__(self) -> None:
        self.count = 0
        self._configs: dict[Resource, dict[str, str]] = {}
        self._lock = threading.Lock()

    def take(self, line: str) -> None:
        """A line that a load printed."""
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


class ClientProcess:
    """A process in the client's network that ends with its standard input. Its lines go to a log
    and to `taken`.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.acknowledged = Acknowledged()
        self.lines: list[str] = []
        self._log = log
        self._is_stopping = False
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
                self.lines.append(line.strip())
                self.acknowledged.take(line)

    @property
    def failure(self) -> str | None:
        """Why it ended by itself; None while it runs, and after `stop`."""
        code = self._process.poll()
        if code is None or self._is_stopping:
            return None
        tail = " | ".join(self._log.read_text(errors="replace").splitlines()[-5:])
        return f"the client {self.name} ended with code {code}: {tail}"

    def stop(self) -> None:
        """Close its input and wait until all its lines were read."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._is_stopping = True
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(STOP_TIMEOUT_S)
        self._process.stdout.close()


def start_simulated_brokers(cluster: Cluster, log: Path) -> ClientProcess:
    """Brokers for clusters without any, so that topics can be created."""
    command = [sys.executable, "-m", "tests.cluster.simulated_brokers", cluster.voters]
    command += ["--brokers", str(SIMULATED_BROKERS), "--interval", "0.5"]
    inside = cluster.network.command(CLIENT)
    return ClientProcess("simulated brokers", [*inside, *command], log)


def start_load(library: str, cluster: Cluster, log: Path) -> ClientProcess:
    """library: java, confluent (needs brokers) or wire (of controllers)."""
    if library == "java":
        command = ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", tools_class_path()]
        command.append(str(HERE / "AdminLoad.java"))
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
    return ClientProcess(library, [*cluster.network.command(CLIENT), *command], log)
