"""Read-process-write loops in processes of their own, fed and read while something happens to the
broker: the frame of the tests of kills and of feature switches.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from scripts.kafka_jars import tools_class_path
from tests.clients.adapters import wait_until
from tests.clients.java_classes import classes_of
from tests.e2e.transaction_history import KEYS, Outcomes, Place, Seen, anomalies

HERE = Path(__file__).parent
PLACES: list[Place] = [("by-key", index) for index in range(3)] + [
    ("all", index) for index in range(3)
]
FEED_PAUSE_S = 0.02
MAX_AHEAD = 100
OVERRIDES = {
    # Few partitions and small segments: kills also hit rolls and compaction, and transactions share
    # partitions.
    "log.segment.bytes": "1048576",
    "offsets.topic.segment.bytes": "1048576",
    "transaction.state.log.segment.bytes": "1048576",
    "log.cleaner.backoff.ms": "500",
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


def worker_command(library: str) -> list[str]:
    if library == "java":
        jars = tools_class_path()
        classes = classes_of(HERE / "TransactionWorker.java", jars)
        java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]
        return [*java, os.pathsep.join((classes, jars)), "TransactionWorker"]
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
    """Writes the inputs of all workers, numbered from 0, never far ahead of what was read of
    their outputs.
    """

    def __init__(self, bootstrap: str, reader: Reader, names: list[str]) -> None:
        from confluent_kafka import Producer

        self.counts = dict.fromkeys(names, 0)
        self._reader = reader
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
        while not self._stopping.wait(FEED_PAUSE_S):
            for index, (name, number) in enumerate(self.counts.items()):
                if number - self._reader.done(index) < MAX_AHEAD:
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

    def done(self, output: int) -> int:
        """How many inputs of the worker with this output were read."""
        found = self.read["all", output]
        return found[-1].number + 1 if found else 0

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


def run_under(
    event: Callable[[int, list[Worker]], None],
    times: int,
    bootstrap: str,
    libraries: list[str],
    folder: Path,
) -> list[Worker]:
    """Run the loops and call event(number, workers) so many times, each after every worker has
    committed something since the last; then check what is read.
    """
    create_topics(bootstrap, libraries)
    workers = [
        Worker(library, index, bootstrap, folder / f"{library}.txt")
        for index, library in enumerate(libraries)
    ]
    moment = random.Random(times)
    with ExitStack() as stack:
        for worker in workers:
            stack.callback(worker.kill)
            worker.start()
        reader = Reader(bootstrap)
        feeder = Feeder(bootstrap, reader, libraries)
        for number in range(1, times + 1):
            before = {worker: worker.commits for worker in workers}
            wait_until(
                lambda before=before: all(w.commits > before[w] + 2 for w in workers),  # type: ignore[misc]  # bound now
                120,
                f"commits of all workers before event {number}; see {folder}",
            )
            time.sleep(moment.uniform(0.0, 0.3))
            print(
                time.strftime("%H:%M:%S"),
                f"event {number} of {times};",
                ", ".join(f"{worker.name} {worker.commits} commits" for worker in workers),
                flush=True,
            )
            event(number, workers)
        inputs = feeder.finish()

        def done() -> dict[str, int]:
            return {name: reader.done(index) for index, name in enumerate(inputs)}

        try:
            try:
                wait_until(lambda: done() == inputs, 60, "the last inputs")
            except AssertionError as error:
                commits = {worker.name: worker.commits for worker in workers}
                raise AssertionError(f"{error}: {done()} of {inputs}, {commits} commits") from error
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
