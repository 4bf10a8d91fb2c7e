"""Kafka Streams' word count (java/WordCount.java) as a process, and what it ought to find.

classes = compile_word_count()
with WordCount(classes, bootstrap, "in", "out", tmp_path / "one", settings) as one:
    ...
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from scripts.kafka_jars import streams_class_path
from spark_jobs.java import java_problem
from tests.clients.java_classes import classes_of, has_compiler

SOURCE = Path(__file__).with_name("java") / "WordCount.java"
PARTITIONS = 4
WORDS = ["and", "but", "for", "nor", "or", "so", "yet", "if", "as", "than", "that", "though"]


def streams_problem() -> str | None:
    """Why a Streams application can't be built and run here; None if it can."""
    if not has_compiler():
        return "needs a Java compiler (javac)"
    return java_problem()


def compile_word_count() -> str:
    """The class path to run it with."""
    jars = streams_class_path()
    return os.pathsep.join((classes_of(SOURCE, jars), jars))


class WordCount:
    """One instance. folder: its state and its log. settings: of Kafka Streams."""

    def __init__(
        self,
        classes: str,
        bootstrap: str,
        source: str,
        sink: str,
        folder: Path,
        settings: Mapping[str, str],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log"
        options = {
            "bootstrap.servers": bootstrap,
            "state.dir": str(folder / "state"),
            "commit.interval.ms": "200",
            "auto.offset.reset": "earliest",
            **settings,
        }
        java = shutil.which("java")
        assert java is not None
        command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += ["-cp", classes, "WordCount"]
        command += [source, sink, *(f"{name}={value}" for name, value in options.items())]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, bufsize=0
            )

    def states(self) -> list[str]:
        """The states it came through."""
        return [line for line in self.log.read_text().splitlines() if line.isupper()]

    def stop(self) -> int:
        """Let it close, and the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(60)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()


def create_topics(bootstrap: str, *names: str) -> None:
    """Each with PARTITIONS partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        future.result(10)


def produce_lines(bootstrap: str, topic: str, numbers: Iterable[int]) -> Counter[str]:
    """Three words a line, all partitions; how often each word was sent."""
    producer = Producer({"bootstrap.servers": bootstrap})
    counts: Counter[str] = Counter()
    for number in numbers:
        words = [WORDS[number * step % len(WORDS)] for step in (1, 3, 5)]
        counts.update(words)
        producer.produce(topic, " ".join(words), partition=number % PARTITIONS)
    assert producer.flush(10) == 0
    return counts


class Results:
    """The word count as the sink topic has it: the last committed count of each word."""

    def __init__(self, bootstrap: str, topic: str, *, isolation: str = "read_committed") -> None:
        self.counts: dict[str, int] = {}
        self.history: list[tuple[str, int]] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"reader-of-{topic}",
                "auto.offset.reset": "earliest",
                "isolation.level": isolation,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic])

    def read_until(self, expected: Mapping[str, int], *apps: WordCount, timeout_s: float) -> None:
        """Until each word was counted as often as expected, or more often. An app that ended
        meanwhile fails it.
        """
        deadline = time.monotonic() + timeout_s
        while any(self.counts.get(word, 0) < count for word, count in expected.items()):
            for app in apps:
                assert app.process.poll() is None, app.log.read_text()[-4000:]
            assert time.monotonic() < deadline, (expected, self.counts)
            self._take(0.2)

    def read_rest(self, quiet_s: float = 1.0) -> None:
        """What is left, after the applications stopped."""
        while self._take(quiet_s):
            pass

    def _take(self, timeout_s: float) -> bool:
        message = self._consumer.poll(timeout_s)
        if message is None or message.error() is not None:
            return False
        key, value = message.key(), message.value()
        assert key is not None and value is not None
        self.counts[key.decode()] = int(value)
        self.history.append((key.decode(), int(value)))
        return True

    def close(self) -> None:
        """Leave."""
        self._consumer.close()
