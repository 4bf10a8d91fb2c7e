"""A driver in a process of its own that writes one batch and may be killed at one of its requests,
and a task in a process of its own. Started by test_kills.

    python -m tests.spark.exactly_once.batch_worker driver BOOTSTRAP TOPIC BATCH_ID KILL
    python -m tests.spark.exactly_once.batch_worker task GRANT_FILE BATCH_ID TASK KILL

KILL is `API:number:when`: at the number-th request of that API; when is `before` it is sent, `sent`
without waiting for the response, or `answered`. `-` for none.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.schema import Request, Response
from spark_jobs.exactly_once.blocks import block_of
from spark_jobs.exactly_once.claims import Claims
from spark_jobs.exactly_once.driver import QueryDriver, QuerySettings, TaskReport
from spark_jobs.exactly_once.grant import Grant, WriterLimits
from spark_jobs.exactly_once.writer import TaskWriter
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from spark_jobs.wire.connection import BrokerSocket

R = TypeVar("R", bound=Response)

PARTITIONS = 3
ROWS = 300
NO_KILL = "-"
MODULE = "tests.spark.exactly_once.batch_worker"
LIMITS = WriterLimits(batch_bytes=1000)
"""Several batches for each partition."""


def settings(topic: str) -> QuerySettings:
    return QuerySettings(f"to-{topic}", (topic,), transaction_timeout_ms=60_000, limits=LIMITS)


def rows(batch_id: int, partition: int) -> list[bytes]:
    """The values of a batch in one partition, in order."""
    return [b"%d-%d" % (batch_id, number) for number in range(partition, ROWS, PARTITIONS)]


class Killer:
    """Ends this process at one request, whichever connection it takes."""

    def __init__(self, kill: str) -> None:
        api, _, rest = kill.partition(":")
        number, _, self.when = rest.partition(":")
        self.api_key = None if kill == NO_KILL else ApiKey[api]
        self.left = int(number or 0)

    def is_due(self, request: Request) -> bool:
        if self.api_key != request.API_KEY:
            return False
        self.left -= 1
        return self.left == 0

    @staticmethod
    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class KillingSocket:
    """A connection whose process ends at one request."""

    def __init__(self, inner: BrokerSocket, killer: Killer) -> None:
        self._inner = inner
        self._killer = killer

    @property
    def is_closed(self) -> bool:
        return self._inner.is_closed

    def version_of(self, api_key: int, max_version: int | None = None) -> int:
        return self._inner.version_of(api_key, max_version)

    def send(self, request: Request, version: int) -> int:
        is_due = self._killer.is_due(request)
        if is_due and self._killer.when == "before":
            self._killer.kill()
        correlation_id = self._inner.send(request, version)
        if is_due and self._killer.when == "answered":
            self._inner.receive(correlation_id, Response)
        if is_due:
            self._killer.kill()
        return correlation_id

    def receive(self, correlation_id: int, response_type: type[R]) -> R:
        return self._inner.receive(correlation_id, response_type)

    def close(self) -> None:
        self._inner.close()


def client_of(address: ClusterAddress, kill: str = NO_KILL) -> BlockingClient:
    killer = Killer(kill)

    def connect(host: str, port: int, timeout_s: float) -> KillingSocket:
        inner = BrokerSocket.connect(
            host, port, "tests", connect_timeout_s=timeout_s, request_timeout_s=30
        )
        return KillingSocket(inner, killer)

    opened = BlockingClient(address, connect=connect)
    _opened.append(opened)
    return opened


_opened: list[BlockingClient] = []


def close_clients() -> None:
    """Close what drivers and tasks of this process have opened, also those that failed."""
    while _opened:
        _opened.pop().close()


def write_task(grant: Grant, batch_id: int, task: int, kill: str = NO_KILL) -> TaskReport:
    """One task attempt in this process."""
    client = client_of(grant.address, kill)
    claims = Claims(client, grant, task=task, attempt=uuid.uuid4().hex)
    writer = TaskWriter(grant, client, claims)
    (topic,) = grant.topics
    for value in rows(batch_id, task):
        writer.write(TopicPartition(topic, task), block_of([(1_700_000_000_000, None, value, ())]))
    return TaskReport(writer.finish())


def write_batch(batch_id: int, kill: str = NO_KILL) -> Callable[[Grant], Sequence[TaskReport]]:
    """The tasks of a batch in this process; with the last one the driver is killed too."""

    def write(grant: Grant) -> list[TaskReport]:
        return [
            write_task(grant, batch_id, task, kill if task == PARTITIONS - 1 else NO_KILL)
            for task in range(PARTITIONS)
        ]

    return write


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this module in a process of its own, to its end."""
    return subprocess.run(
        [sys.executable, "-m", MODULE, *arguments], capture_output=True, text=True, timeout=120
    )


def write_in_processes(
    batch_id: int, kills: Sequence[str], ends: list[int]
) -> Callable[[Grant], Sequence[TaskReport]]:
    """Each task in a process, as in Spark's executors: one that was killed is run a second time.

    kills: of the first task's processes, one after the other; consumed. ends: gets exit codes.
    """
    left = list(kills)

    def write(grant: Grant) -> list[TaskReport]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "grant"
            path.write_bytes(pickle.dumps(grant))
            for attempt in range(2):
                kill = left.pop(0) if left else NO_KILL
                run = start("task", str(path), str(batch_id), "0", kill)
                ends.append(run.returncode)
                if run.returncode == 0:
                    break
                if attempt:
                    raise RuntimeError(run.stderr)
        (topic,) = grant.topics
        done = TaskReport({TopicPartition(topic, 0): len(rows(batch_id, 0))})
        return [done, *(write_task(grant, batch_id, task) for task in range(1, PARTITIONS))]

    return write


def main(mode: str, *arguments: str) -> None:
    if mode == "task":
        path, batch_id, task, kill = arguments
        write_task(pickle.loads(Path(path).read_bytes()), int(batch_id), int(task), kill)
        return
    bootstrap, topic, batch_id, kill, task_kill = arguments
    driver = QueryDriver(client_of(ClusterAddress(bootstrap), kill), settings(topic))
    driver.write_batch(int(batch_id), write_batch(int(batch_id), task_kill), query_id="id")
    Killer.kill()  # before Spark's own commit log: the batch will be replayed


if __name__ == "__main__":
    main(*sys.argv[1:])
