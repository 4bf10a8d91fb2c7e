"""An honest producer and consumer, who should notice nothing of what else is done to the broker.

    python -m benchmarks.honest_clients --bootstrap HOST:PORT --seconds N [--rate 200]

The producer (confluent-kafka, idempotent, acks=all) sends numbered records at a steady rate, the
consumer reads them as a member of a group of the classic protocol. Prints how many records were
produced and consumed, how many were lost or came twice, errors, and p50, p99 and the maximum of two
latencies: from the send to its acknowledgement, and from the send to the consumer. Exit code 1 for
a record lost or duplicated, or an error.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import uuid
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS: Final = 3
DRAIN_S: Final = 30.0
"""How long the consumer may go on after the last send."""

IGNORED: Final = frozenset({KafkaError._PARTITION_EOF})


@dataclass
class Report:
    """What the two saw. Latencies in ms."""

    produced: int = 0
    consumed: int = 0
    lost: int = 0
    duplicated: int = 0
    errors: list[str] = field(default_factory=list)
    ack_ms: dict[str, float] = field(default_factory=dict)
    end_to_end_ms: dict[str, float] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.duplicated or self.errors or not self.produced)

    def text(self) -> str:
        lines = [
            f"{self.produced} records acknowledged, {self.consumed} consumed, {self.lost} lost,"
            f" {self.duplicated} twice, {len(self.errors)} errors"
        ]
        for name, values in (("acknowledged", self.ack_ms), ("consumed", self.end_to_end_ms)):
            told = ", ".join(f"{key} {value:.1f} ms" for key, value in values.items())
            lines.append(f"{name} after: {told}")
        lines += [f"error: {error}" for error in self.errors[:10]]
        return "\n".join(lines)


def summary(values: list[float]) -> dict[str, float]:
    """p50, p99 and the maximum of seconds, in ms."""
    ordered = sorted(values) or [0.0]
    last = len(ordered) - 1
    return {
        "p50": ordered[int(last * 0.5)] * 1000,
        "p99": ordered[int(last * 0.99)] * 1000,
        "max": ordered[last] * 1000,
    }


class HonestPair:
    """One producer and one consumer of a topic of their own."""

    def __init__(self, bootstrap: str, rate: int) -> None:
        self._bootstrap = bootstrap
        self._rate = rate
        self._topic = f"honest-{uuid.uuid4().hex[:12]}"
        self._errors: list[str] = []
        self._acks: list[float] = []
        self._sent: dict[int, float] = {}
        self._acknowledged: set[int] = set()
        self._seen: Counter[int] = Counter()
        self._latencies: list[float] = []
        self._done = threading.Event()
        self._assigned = threading.Event()

    def run(self, seconds: float) -> Report:
        """Produce for so long, then wait until the consumer has all of it."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        made = admin.create_topics([NewTopic(self._topic, PARTITIONS, 1)])
        made[self._topic].result(60)
        reader = threading.Thread(target=self._consume, daemon=True)
        reader.start()
        self._assigned.wait(60)
        self._produce(seconds)
        deadline = time.monotonic() + DRAIN_S
        while len(self._seen) < len(self._acknowledged) and time.monotonic() < deadline:
            time.sleep(0.1)
        self._done.set()
        reader.join(60)
        return Report(
            produced=len(self._acknowledged),
            consumed=len(self._seen),
            lost=len(self._acknowledged - set(self._seen)),
            duplicated=sum(count > 1 for count in self._seen.values()),
            errors=self._errors,
            ack_ms=summary(self._acks),
            end_to_end_ms=summary(self._latencies),
        )

    def _produce(self, seconds: float) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 0,
                "error_cb": self._failed,
            }
        )

        def delivered(number: int, error: KafkaError | None) -> None:
            if error is not None:
                self._errors.append(f"record {number}: {error}")
                return
            self._acks.append(time.monotonic() - self._sent[number])
            self._acknowledged.add(number)

        began = time.monotonic()
        number = 0
        while (now := time.monotonic()) - began < seconds:
            due = began + number / self._rate
            if due > now:
                producer.poll(due - now)
                continue
            self._sent[number] = now
            producer.produce(
                self._topic,
                b"%d" % number,
                on_delivery=lambda error, _, number=number: delivered(number, error),
            )
            number += 1
            producer.poll(0)
        left = producer.flush(DRAIN_S)
        if left:
            self._errors.append(f"{left} records were not acknowledged in {DRAIN_S:.0f} s")

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"{self._topic}-group",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "error_cb": self._failed,
            }
        )
        consumer.subscribe([self._topic], on_assign=lambda *_: self._assigned.set())
        while not self._done.is_set():
            message = consumer.poll(0.1)
            if message is not None:
                self._consumed(message)
        consumer.close()

    def _consumed(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            if error.code() not in IGNORED:
                self._errors.append(f"consumer: {error}")
            return
        number = int(message.value() or b"-1")
        self._seen[number] += 1
        self._latencies.append(time.monotonic() - self._sent[number])

    def _failed(self, error: KafkaError) -> None:
        self._errors.append(f"client: {error}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", required=True, help="HOST:PORT")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=200, help="records a second")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    arguments = parser.parse_args()
    report = HonestPair(arguments.bootstrap, arguments.rate).run(arguments.seconds)
    print(json.dumps(asdict(report)) if arguments.json else report.text())
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
