"""A broker in a separate process: for tests that kill their broker, for the demo and for
benchmarks.

The neighbour is `embedded.py`, the broker in the test's own process, which starts faster and whose
state can be inspected.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kbroker.model import StartupError

_LISTENING = re.compile(r"listening on (?P<name>[A-Z0-9_]+)://(?P<host>\S+):(?P<port>\d+)")


class BrokerProcess:
    """`kbroker serve` on a folder and a free port of the loopback interface.

    data: the log directory, kept between starts. A second start uses the port of the first, so that
    clients find the broker again. overrides: Kafka's property names. properties: a
    server.properties; None starts with defaults. The child's log is written to `<data>.log`, or to
    `log` if given.
    """

    def __init__(
        self,
        data: Path,
        *,
        overrides: Mapping[str, str] | None = None,
        properties: Path | None = None,
        log: Path | None = None,
        command: Sequence[str] = (sys.executable, "-m", "kbroker"),
        start_timeout_s: float = 30.0,
    ) -> None:
        self.data = data
        self.log = log if log is not None else data.with_name(data.name + ".log")
        self.host = "127.0.0.1"
        self.port = 0
        self._overrides = dict(overrides or {})
        self._properties = properties
        self._command = tuple(command)
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def bootstrap_servers(self) -> str:
        """host:port of the client listener; port 0 before the first start."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id. Raises StartupError if it isn't running."""
        if self._process is None:
            raise StartupError("the broker process is not running")
        return self._process.pid

    def start(self) -> Self:
        """Start and wait until it listens. Raises StartupError with the end of its output if it
        does not.
        """
        self._process = process = self._open(subprocess.PIPE)
        try:
            self.port = self._wait_for_port(process)
        except BaseException:
            self.kill()
            raise
        return self

    def launch(self) -> None:
        """Start without waiting: for a node that cannot serve before other nodes do, with its ports
        in `overrides`. Its standard output is also written to the log.
        """
        self._process = self._open(None)

    def _open(self, stdout: int | None) -> subprocess.Popen[str]:
        """Start the process. stdout: None for the log."""
        overrides = {
            "listeners": f"PLAINTEXT://{self.host}:{self.port}",
            "log.dirs": str(self.data),
            **self._overrides,
        }
        command = [*self._command, "serve"]
        if self._properties is not None:
            command.append(str(self._properties))
        for name, value in overrides.items():
            command += ["--override", f"{name}={value}"]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def _wait_for_port(self, process: subprocess.Popen[str]) -> int:
        if process.stdout is None:
            raise StartupError("the broker's standard output is not a pipe")
        watchdog = threading.Timer(self._start_timeout_s, process.kill)
        watchdog.start()
        try:
            for line in process.stdout:
                match = _LISTENING.search(line)
                if match:
                    # Keep reading in the background: a full pipe would block the broker.
                    self._reader = threading.Thread(target=process.stdout.read, daemon=True)
                    self._reader.start()
                    return int(match["port"])
        finally:
            watchdog.cancel()
        tail = self.log.read_text(errors="replace").splitlines()[-5:]
        raise StartupError(
            f"kbroker serve ended with code {process.wait()} before it listened: {' | '.join(tail)}"
        )

    def stop(self, timeout_s: float = 30.0) -> int:
        """SIGTERM, wait, SIGKILL if that takes longer than timeout_s. Returns the exit code (0 if
        not running).
        """
        process, self._process = self._process, None
        if process is None:
            return 0
        process.terminate()
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            self._close_output(process)

    def kill(self) -> None:
        """SIGKILL, as a crash of the process; data in the kernel's cache is kept."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            self._close_output(process)

    def _close_output(self, process: subprocess.Popen[str]) -> None:
        """Close the pipe, after its reader thread has seen the end."""
        if self._reader is not None:
            self._reader.join()
            self._reader = None
        if process.stdout is not None:
            process.stdout.close()

    def pause(self) -> None:
        """SIGSTOP: the broker hangs, its sockets stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def resident_bytes(self) -> int:
        """Resident set of the process (Linux)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise StartupError(f"no VmRSS of process {self.pid}")

    def cpu_seconds(self) -> float:
        """User and system time spent so far (Linux)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def wait_for_exit(self, timeout_s: float) -> int | None:
        """The exit code if the process ends by itself, None if it still runs after timeout_s."""
        process = self._process
        deadline = time.monotonic() + timeout_s
        while process is not None and time.monotonic() < deadline:
            code = process.poll()
            if code is not None:
                return code
            time.sleep(0.02)
        return None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
