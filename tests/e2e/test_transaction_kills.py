"""Read-process-write loops of three client libraries while the broker, and now and then a client,
is killed: a reader of committed records sees the effect of each input exactly once.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from kbroker.testing.process import BrokerProcess
from scripts.kafka_jars import tools_class_path
from spark_jobs.java import java_problem
from tests.clients.adapters import wait_until
from tests.e2e.transaction_history import KEYS, Outcomes, Place, Seen, anomalies

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

HERE = Path(__file__).parent
PLACES: list[Place] = [("by-key", index) for index in range(3)] + [
    ("all", index) for index in range(3)
]
OVERRIDES = {
    # Few partitions and small segments: kills also hit rolls, and transactions share partitions.
    "log.segment.bytes": "1048576",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    # A worker that was killed is soon forgotten.
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "2000",
}


class Killable(Protocol):
    """A broker that can be killed and started again on the same port."""

    @property
    def bootstrap_servers(self) -> str: ...
    def start(self) -> Any: ...
    def kill(self) -> None: ...


def worker_command(library: str) -> list[str]:
    if library == "java":
        java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", tools_class_path()]
        return [*java, str(HERE / "TransactionWorker.java")]
    return [sys.executable, "-m", "tests.e2e.transaction_worker", library]


class Worker:
    """A loop in a process of its own, and what it says."""

    def __init__(self, library: str, output: int, bootstrap: str, log: Path) -> None:
        self.name = library
        self.outcomes = Outcomes()
        self.commits = 0
        self.complaints: list[str] = []
        self._output = output
        self._bootstrap = bootstrap
        self._log = log
        self._runs = 0
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        command = worker_command(self.name)
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, self._bootstrap, self.name, str(self._output), str(self._runs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._runs += 1
        self._reader = threading.Thread(target=self._listen, args=[self._process], daemon=True)
        self._reader.start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with self._log.open("a") as log:
            for line in process.stdout:
                print(time.strftime("%H:%M:%S"), line, end="", file=log, flush=True)
                self.outcomes.take(line)
                if line.startswith("commit "):
                    self.commits += 1
                elif line.startswith("slow "):
                    self.complaints.append(line.strip())

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        assert self._reader is not None
        self._reader.join(30)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


class Feeder:
    """Writes the inputs of all workers, so many a second, numbered from 0."""

    def __init__(self, bootstrap: str, names: list[str], pause_s: float) -> None:
        from confluent_kafka import Producer

        self.counts = dict.fromkeys(names, 0)
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(self._pause_s):
            for name, number in self.counts.items():
                self._producer.produce(f"in-{name}", b"%d" % number, b"%d" % (number % KEYS))
                self.counts[name] = number + 1
            self._producer.poll(0)

    def finish(self) -> dict[str, int]:
        self._stopping.set()
        self._thread.join(30)
        assert self._producer.flush(60) == 0
        return self.counts


class Reader:
    """Reads committed records all along, whatever happens to the broker."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        self.read: dict[Place, list[Seen]] = {place: [] for place in PLACES}
        self.next: dict[Place, int] = dict.fromkeys(PLACES, 0)
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in PLACES])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(500, 0.1):
                place = (message.topic(), message.partition())
                if message.error() is None:
                    self.read[place].append(Seen.of(message.key(), message.value()))
                    self.next[place] = message.offset() + 1
                elif message.error().name() == "_PARTITION_EOF":
                    self.next[place] = message.offset()

    def finish(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        self._consumer.close()


def ends(bootstrap: str) -> dict[Place, int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends", "log_level": 0})
    try:
        return {
            place: consumer.get_watermark_offsets(TopicPartition(*place), 20)[1] for place in PLACES
        }
    finally:
        consumer.close()


def create_topics(bootstrap: str, libraries: list[str]) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    topics = {f"in-{name}": 1 for name in libraries} | {"by-key": 3, "all": 3}
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = [NewTopic(topic, count, 1) for topic, count in topics.items()]
    for outcome in admin.create_topics(new).values():
        outcome.result(20)


def run_under_kills(
    broker: Killable,
    libraries: list[str],
    folder: Path,
    *,
    kills: int,
    client_kills: int,
    pause_s: float = 0.02,
) -> list[Worker]:
    """Every kill comes after each worker has committed something since the last. client_kills:
    after how many kills of the broker a worker is killed too; 0 for never.
    """
    bootstrap = broker.bootstrap_servers
    create_topics(bootstrap, libraries)
    workers = [
        Worker(library, index, bootstrap, folder / f"{library}.txt")
        for index, library in enumerate(libraries)
    ]
    moment = random.Random(kills)
    with ExitStack() as stack:
        for worker in workers:
            stack.callback(worker.kill)
            worker.start()
        feeder = Feeder(bootstrap, libraries, pause_s)
        reader = Reader(bootstrap)
        for number in range(1, kills + 1):
            before = {worker: worker.commits for worker in workers}
            wait_until(
                lambda before=before: all(w.commits > before[w] + 2 for w in workers),  # type: ignore[misc]  # bound now
                120,
                f"commits of all workers before kill {number}; see {folder}",
            )
            time.sleep(moment.uniform(0.0, 0.3))
            broker.kill()
            if client_kills and number % client_kills == 0:
                victim = workers[number // client_kills % len(workers)]
                victim.kill()
                victim.start()
            broker.start()
        inputs = feeder.finish()

        def complete() -> bool:
            lists = {w.name: reader.read["all", i][-1:] for i, w in enumerate(workers)}
            return all(
                found and found[0].number >= inputs[name] - 1 for name, found in lists.items()
            )

        try:
            wait_until(complete, 60, "the last inputs")
            for worker in workers:
                worker.kill()
            wait_until(lambda: reader.next == ends(bootstrap), 60, "the end of all outputs")
        finally:
            reader.finish()
    check(bootstrap, workers, inputs, reader.read)
    return workers


def check(
    bootstrap: str, workers: list[Worker], inputs: dict[str, int], read: dict[Place, list[Seen]]
) -> None:
    """What was read all along, and what a reader finds who comes afterwards."""
    outcomes = Outcomes()
    for worker in workers:
        outcomes.ends |= worker.outcomes.ends
    assert anomalies(inputs, outcomes, read) == []
    assert min(inputs.values()) > 0
    assert "abort" in outcomes.ends.values()
    later, goal = Reader(bootstrap), ends(bootstrap)
    try:
        wait_until(lambda: later.next == goal, 60, "a second reader's end")
    finally:
        later.finish()
    assert later.read == read


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES) as process:
        yield process


def test_each_effect_once_in_a_few_kills(broker: BrokerProcess, tmp_path: Path) -> None:
    run_under_kills(broker, ["confluent", "aiokafka"], tmp_path, kills=3, client_kills=0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")
def test_each_effect_once_in_a_hundred_kills(broker: BrokerProcess, tmp_path: Path) -> None:
    kills = int(os.environ.get("KBROKER_TEST_KILLS", "100"))
    workers = run_under_kills(
        broker, ["java", "confluent", "aiokafka"], tmp_path, kills=kills, client_kills=10
    )
    assert [worker.complaints for worker in workers] == [[], [], []]
