"""A server of Spark Connect on this machine, whose Python knows the packages of requirements/
connect.txt beside the installed ones, but not this checkout.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from scripts.ports import free_port
from scripts.spark_classes import JVM_OPTIONS
from spark_jobs.lake.formats import LakeFormat
from spark_jobs.spark_conf import settings, spark_home
from tests.clients.adapters import wait_until
from tests.clients.admin.toolchains import python_packages
from tests.spark.processes import kill_with_children, write_python

ROOT: Final = Path(__file__).resolve().parents[2]
HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 120.0


class ConnectServer:
    """folder: for what it writes; must exist. formats: of tables that it can write."""

    def __init__(self, folder: Path, *formats: LakeFormat) -> None:
        self._folder = folder
        self._formats = formats
        self._packages = python_packages("spark-connect", ROOT / "requirements" / "connect.txt")
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def remote(self) -> str:
        """For `spark.remote`."""
        return f"sc://{HOST}:{self._port}"

    @property
    def client_environment(self) -> dict[str, str]:
        """Of a client's process, which has this checkout, and no Java."""
        path = os.pathsep.join((str(ROOT), str(self._packages)))
        kept = {name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ}
        return {**kept, "PATH": str(Path(sys.executable).parent), "PYTHONPATH": path}

    def __enter__(self) -> Self:
        python = self._folder / "python"
        write_python(python, self._packages)
        server_settings = {
            **settings(*self._formats),
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        }
        arguments = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]"]
        arguments += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        arguments += [f"--conf={name}={value}" for name, value in server_settings.items()]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"SPARK_LOCAL_IP": HOST, "SPARK_SUBMIT_OPTS": JVM_OPTIONS}
        environment["PYSPARK_PYTHON"] = str(python)
        with (self._folder / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*arguments, "spark-internal"],
                cwd=self._folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_until(self._answers, START_TIMEOUT_S, "a server of Spark Connect")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def log(self) -> str:
        """What it has printed."""
        return (self._folder / "server.log").read_text(errors="replace")

    def _end(self) -> None:
        if self._process is not None:
            kill_with_children(self._process)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        try:
            socket.create_connection((HOST, self._port), 1).close()
        except OSError:
            return False
        return True
