"""A standalone cluster of Spark on this machine: a master and workers, each with executors, in
processes of their own. Executors find no package of this checkout but in a job's --py-files.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from scripts.ports import free_port
from scripts.spark_classes import JVM_OPTIONS
from tests.clients.adapters import wait_until
from tests.spark.processes import is_below, kill_with_children, process_parents, write_python

HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 120.0
EXECUTOR: Final = b"CoarseGrainedExecutorBackend"


class StandaloneCluster:
    """Workers with a core each. folder: for what they write; must exist."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        import pyspark

        self._bin = Path(pyspark.__file__).parent / "bin"
        self._folder = folder
        self._python = folder / "python"
        self._port, self._ui_port = free_port(), free_port()
        self._count = workers
        self._workers: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    @property
    def master(self) -> str:
        """For --master."""
        return f"spark://{HOST}:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """Of every process of the cluster, and of those that submit jobs."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {
            **kept,
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JVM_OPTIONS,
            "PYSPARK_PYTHON": str(self._python),
        }

    def submit_command(self, options: Sequence[str]) -> list[str]:
        """Of spark-submit in client mode. options: its further ones, the file, and arguments."""
        configuration = {
            "spark.driver.host": HOST,
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": JVM_OPTIONS,
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": JVM_OPTIONS,
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        }
        settings = [f"--conf={name}={value}" for name, value in configuration.items()]
        return [str(self._bin / "spark-submit"), "--master", self.master, *settings, *options]

    def __enter__(self) -> Self:
        write_python(self._python)
        with ExitStack() as stack:
            self._start(
                *("master", "org.apache.spark.deploy.master.Master", "--port", str(self._port)),
                *("--webui-port", str(self._ui_port)),
                stack=stack,
            )
            wait_until(lambda: self._alive() == 0, START_TIMEOUT_S, "Spark's master")
            for number in range(self._count):
                worker = self._start(
                    *(f"worker-{number}", "org.apache.spark.deploy.worker.Worker"),
                    *("--cores", "1", "--memory", "1g", "--webui-port", str(free_port())),
                    *("--work-dir", str(self._folder / f"work-{number}"), self.master),
                    stack=stack,
                )
                self._workers.append(worker)
            wait_until(lambda: self._alive() == self._count, START_TIMEOUT_S, "Spark's workers")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def kill_executor(self, random_: random.Random) -> None:
        """kill -9 of one executor; its worker starts another. Raises IndexError if none runs."""
        os.kill(random_.choice(self.executors()), signal.SIGKILL)

    def kill_worker(self, random_: random.Random) -> None:
        """kill -9 of one worker with all that it runs, as if its machine were lost."""
        worker = self._workers.pop(random_.randrange(len(self._workers)))
        kill_with_children(worker)

    def executors(self) -> list[int]:
        """Process ids of the executors that run."""
        parents = process_parents()
        pids = [worker.pid for worker in self._workers]
        below = {pid for pid in parents for worker in pids if is_below(pid, worker, parents)}
        return sorted(pid for pid in below if _is_executor(pid))

    def _start(self, name: str, *command: str, stack: ExitStack) -> subprocess.Popen[bytes]:
        log = stack.enter_context((self._folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            [str(self._bin / "spark-class"), command[0], "--host", HOST, *command[1:]],
            cwd=self._folder,
            env=self.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        stack.callback(kill_with_children, process)
        return process

    def _alive(self) -> int:
        """How many workers the master knows; -1 before it answers."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._ui_port}/json/", timeout=5) as page:
                found: Mapping[str, Any] = json.load(page)
        except OSError:
            return -1
        return sum(worker["state"] == "ALIVE" for worker in found["workers"])


def _is_executor(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return EXECUTOR in command
