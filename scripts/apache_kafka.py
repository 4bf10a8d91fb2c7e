"""A real Apache Kafka 4.3.1 in a process of its own: the yardstick of tests and benchmarks.

Needs Java; the jars come through kafka_jars.py at the first start. The counterpart of
`kbroker.testing.process.BrokerProcess`, with the same names where both can do a thing.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from scripts.kafka_jars import broker_class_path
from scripts.ports import free_port

CLUSTER_ID = "a2Jyb2tlci15YXJkc3RpYw"
START_TIMEOUT_S = 60.0


class ApacheKafka:
    """One node, broker and controller, on the folder `data`; `start` formats it if there is none.

    overrides: further properties. controller_port: as the folder's quorum knows it, 0 for a free
    one. heap: JVM heap limit. standalone: a dynamic quorum of this node (KIP-853), not a static
    one. The server's output goes to `<data>.log`. A second start takes the
    port of the first.
    """

    def __init__(
        self,
        data: Path,
        *,
        overrides: Mapping[str, str] | None = None,
        controller_port: int = 0,
        heap: str = "512m",
        standalone: bool = False,
    ) -> None:
        self.data = data
        self.log = data.with_name(data.name + ".log")
        self.port, self._controller_port = free_port(), controller_port or free_port()
        self._overrides = dict(overrides or {})
        self._heap = heap
        self._standalone = standalone
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        """host:port of the client listener."""
        return f"127.0.0.1:{self.port}"

    @property
    def bootstrap_controllers(self) -> str:
        """host:port of the controller listener."""
        return f"127.0.0.1:{self._controller_port}"

    @property
    def pid(self) -> int:
        """Process id. Raises ProcessLookupError if it isn't running."""
        if self._process is None:
            raise ProcessLookupError("Apache Kafka is not running")
        return self._process.pid

    def java(self, *arguments: str) -> list[str]:
        """Command line of a class of Kafka's with its arguments."""
        return ["java", f"-Xmx{self._heap}", "-cp", broker_class_path(), *arguments]

    def write_properties(self) -> Path:
        """The server.properties beside the data."""
        controller = self._controller_port
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            **self._quorum(),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self._overrides,
        }
        path = self.data.with_name(self.data.name + ".properties")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return path

    def _quorum(self) -> dict[str, str]:
        if self._standalone:
            return {"controller.quorum.bootstrap.servers": self.bootstrap_controllers}
        return {"controller.quorum.voters": f"1@{self.bootstrap_controllers}"}

    def format(self) -> None:
        """Format the folder. Raises subprocess.CalledProcessError where Kafka won't."""
        command = self.java("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID)
        if self._standalone:
            command.append("--standalone")
        subprocess.run(
            [*command, "-c", str(self.write_properties())], check=True, capture_output=True
        )

    def launch(self) -> None:
        """Start the process and don't wait for it."""
        command = self.java("kafka.Kafka", str(self.write_properties()))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def start(self) -> Self:
        """Start, and wait until its port opens (it may still refuse for some seconds).

        Raises TimeoutError with the end of its output if it does not.
        """
        if not self.data.exists():
            self.format()
        self.launch()
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.running():
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            except OSError:
                time.sleep(0.1)
        self.kill()
        tail = self.log.read_text(errors="replace").splitlines()[-5:]
        raise TimeoutError(f"Apache Kafka did not start: {' | '.join(tail)}")

    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def stop(self, timeout_s: float = 60.0) -> None:
        """SIGTERM and wait; SIGKILL if that takes longer than timeout_s."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """SIGKILL, as a crash of the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """SIGSTOP: the process hangs, its sockets stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def resident_bytes(self) -> int:
        """Resident set of the process (Linux)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise ProcessLookupError(f"no VmRSS of process {self.pid}")

    def cpu_seconds(self) -> float:
        """User and system time spent so far (Linux)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
