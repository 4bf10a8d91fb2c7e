"""Rounds in which a job's driver, one of its Python workers or its broker is killed in the middle
of a batch, and what went wrong then.

The driver is killed with its JVM; in local mode its JVM is the executor too.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import pytest

from kbroker.testing.process import BrokerProcess
from tests.spark.processes import is_below, process_parents

ROOT: Final = Path(__file__).resolve().parents[2]
ROUNDS: Final = pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(
            int(os.environ.get("KBROKER_TEST_KILLS", "20")), marks=pytest.mark.spark_kills
        ),
        pytest.param(200, marks=[pytest.mark.slow, pytest.mark.soak]),
    ],
)
LIFE: Final = 10
"""Kills in the life of one driver, whose start takes as long as several of them; the last one is
its own.
"""
BATCH_ROWS: Final = 60
FED_ROWS: Final = 5 * BATCH_ROWS
"""New records for each kill, which needs a batch to be in the middle of, also where others came and
went while it waited for its moment.
"""
REST_ROWS: Final = 100 * BATCH_ROWS
"""Rows in a batch of the last run, which is not killed: the test is not about the rest."""
BATCH_S: Final = 240.0
"""In which a job that was left alone, or whose broker is back, writes a batch."""
LONGEST_WAIT_S: Final = 10.0
"""A batch that saw its broker die may have taken long; the next one does not."""

Victim = Literal["worker", "broker", "driver"]


class JobProcess:
    """A job of the command line in a session of processes of its own, killed at the end of the
    block if it still runs. command: with `--progress json`. submitted: by spark-submit, which
    prints both streams of the job to its standard output.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        submitted: bool = False,
    ) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE if submitted else subprocess.DEVNULL,
            stderr=subprocess.STDOUT if submitted else subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        stream = self._process.stdout if submitted else self._process.stderr
        assert stream is not None
        self._stream = stream
        self._batches: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._stream:
            if line.startswith("{"):
                self._batches.put(json.loads(line))
            else:
                self.said.append(line)
        self._batches.put(None)

    def next_batch(self) -> dict[str, Any] | None:
        """The next batch that it reports from now on; None once it has ended."""
        while True:  # what it has reported before
            try:
                found = self._batches.get_nowait()
            except queue.Empty:
                break
            if found is None:
                self._batches.put(None)
                return None
        return self._batches.get(timeout=BATCH_S)

    def exit_code(self) -> int:
        """Of the process, once it has ended by itself."""
        code = self._process.wait(BATCH_S)
        self._reader.join(30)
        return code

    def kill(self) -> None:
        """Driver, JVM and Python workers, unless it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill_worker(self, random_: random.Random) -> bool:
        """One of the Python workers, if there is one."""
        parents = process_parents()
        daemons = {pid for pid in parents if is_below(pid, self._process.pid, parents)}
        workers = sorted(pid for pid in daemons if parents[pid] in daemons and _is_python(pid))
        if not workers:
            return False
        try:
            os.kill(random_.choice(workers), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._process.wait()
        self._reader.join(30)
        self._stream.close()


def _is_python(pid: int) -> bool:
    """Whether it is a worker, or the process that forks them."""
    try:
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def local_job(arguments: Sequence[str], module: str, batch_rows: int = BATCH_ROWS) -> JobProcess:
    """A job whose executor is its driver, and begins a failed task again, as those of a cluster
    do.
    """
    command = [sys.executable, "-m", module, *arguments]
    command += ["--master", "local[2,4]", "--progress", "json"]
    command += ["--conf", "spark.sql.shuffle.partitions=2"]
    command += ["--maxOffsetsPerTrigger", str(batch_rows)]
    return JobProcess(command, folder=ROOT, environment={**os.environ, "PYTHONPATH": str(ROOT)})


@dataclass
class Rounds:
    """Rounds of one job. feed: produces the records of a range of numbers. module: that is run with
    the arguments and the options of jobs. struck: kills so far. failures: what a job said that
    ended by itself with an error, which is allowed behind a kill. victims: beside the driver.
    """

    arguments: Sequence[str]
    feed: Callable[[range], None]
    broker: BrokerProcess
    module: str = "spark_jobs"
    victims: tuple[Victim, ...] = ("worker", "broker")
    random: random.Random = field(default_factory=lambda: random.Random(11))
    fed: int = 0
    struck: Counter[Victim] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def run(self, rounds: int) -> int:
        """Kill so often, then let the job come to its end. Gives the number of records fed."""
        while (left := rounds - self.struck.total()) > 0:
            kills = min(LIFE, left)
            self._feed(kills + 1)
            victims = self.random.choices(self.victims, k=kills - 1)
            with local_job(self.arguments, self.module) as job:
                if self._is_cut_off(job, (*victims, "driver")):
                    continue
                self._check_end(job, is_struck=True)
            assert len(self.failures) <= rounds, self.failures
        self._feed(1)
        with local_job(self.arguments, self.module, REST_ROWS) as job:
            while job.next_batch() is not None:
                pass
            self._check_end(job, is_struck=False)
        print(f"{self.arguments[0]}: killed {dict(self.struck)}, ended with {self.failures}")
        assert all(self.struck[victim] for victim in self.victims) or rounds < LIFE
        return self.fed

    def _feed(self, kills: int) -> None:
        count = kills * FED_ROWS
        self.feed(range(self.fed, self.fed + count))
        self.fed += count

    def _is_cut_off(self, job: JobProcess, victims: Sequence[Victim]) -> bool:
        """Strike within batches; False if the job ended before it was killed."""
        for victim in victims:
            batch = job.next_batch()
            if batch is None:
                return False
            seconds = min(batch["duration_ms"] / 1000, LONGEST_WAIT_S)
            time.sleep(self.random.uniform(0, 1.5) * seconds)
            self.struck[victim] += self._strike(job, victim)
        return True

    def _strike(self, job: JobProcess, victim: Victim) -> bool:
        match victim:
            case "driver":
                job.kill()
            case "worker":
                return job.kill_worker(self.random)
            case "broker":
                self.broker.kill()
                time.sleep(self.random.random())
                self.broker.start()
        return True

    def _check_end(self, job: JobProcess, *, is_struck: bool) -> None:
        code = job.exit_code()
        if code == 0:
            return
        said = "".join(job.said)
        assert is_struck and code == 1, said
        assert len(job.said) == 1, said
        self.failures.append(said)
