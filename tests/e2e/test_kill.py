"""kill -9 under load, again and again: what was acknowledged is there, in order, once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.testing.process import BrokerProcess
from tests.clients.adapters import ConfluentAdapter, wait_until

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

TOPIC = "load"
PARTITIONS = 3


class Worker:
    """An idempotent producer that counts upwards and notes what was acknowledged."""

    def __init__(self, bootstrap: str, name: str, codec: str) -> None:
        from confluent_kafka import Producer

        self.name = name
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failures: list[str] = []
        self._sent = 0
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "compression.type": codec,
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.max.ms": 200,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged[message.partition(), message.offset()] = message.value()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._sent - len(self.acknowledged) < 2000:
                value = b"%s %d" % (self.name.encode(), self._sent)
                self._producer.produce(
                    TOPIC, value, partition=self._sent % PARTITIONS, on_delivery=self._on_delivery
                )
                self._sent += 1
            self._producer.poll(0 if self._sent % 50 else 0.005)

    def finish(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        assert self._producer.flush(60) == 0
        assert self.failures == []
        assert len(self.acknowledged) == self._sent


class Committer:
    """A consumer in a group that commits as it reads; knows what was tried and what was
    acknowledged last.
    """

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Consumer

        self.tried = dict.fromkeys(range(PARTITIONS), 0)
        self.committed = dict.fromkeys(range(PARTITIONS), 0)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "committer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 30_000,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._consumer.subscribe([TOPIC])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        while not self._stopping.is_set():
            messages = [m for m in self._consumer.consume(300, 0.1) if m.error() is None]
            if not messages:
                continue
            ends = {message.partition(): message.offset() + 1 for message in messages}
            for partition, offset in ends.items():
                self.tried[partition] = max(self.tried[partition], offset)
            try:
                done = self._consumer.commit(
                    offsets=[TopicPartition(TOPIC, p, o) for p, o in ends.items()],
                    asynchronous=False,
                )
            except KafkaException:
                continue  # the broker was away: whether it is stored is not known
            for item in done or ():
                if item.error is None:
                    self.committed[item.partition] = item.offset

    def finish(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        self._consumer.close()


def stored_commits(bootstrap: str) -> dict[int, int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "committer"})
    try:
        found = consumer.committed(
            [TopicPartition(TOPIC, p) for p in range(PARTITIONS)], timeout=30
        )
        return {item.partition: max(item.offset, 0) for item in found}
    finally:
        consumer.close()


def check_log(bootstrap: str, workers: list[Worker]) -> None:
    """Every acknowledged record stands at its offset; each worker's records are in order, none
    twice.
    """
    for partition in range(PARTITIONS):
        wanted = {o: v for w in workers for (p, o), v in w.acknowledged.items() if p == partition}
        received = ConfluentAdapter(bootstrap).read(TOPIC, partition, max(wanted) + 1)
        assert [record.offset for record in received] == list(range(max(wanted) + 1))
        values = {record.offset: record.value for record in received}
        assert {offset: values.get(offset) for offset in wanted} == wanted
        for worker in workers:
            mine = [
                int((record.value or b"").split()[1])
                for record in received
                if (record.value or b"").startswith(worker.name.encode())
            ]
            assert mine == list(range(partition, partition + PARTITIONS * len(mine), PARTITIONS))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    # Small segments, so that the kills also hit rolls and more than one segment is recovered.
    overrides = {"log.segment.bytes": "1048576", "group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(tmp_path / "data", overrides=overrides) as process:
        yield process


@pytest.mark.parametrize("kills", [7, pytest.param(20, marks=pytest.mark.slow)])
def test_nothing_acknowledged_is_lost_in_many_kills(broker: BrokerProcess, kills: int) -> None:
    bootstrap = broker.bootstrap_servers
    ConfluentAdapter(bootstrap).create_topic(TOPIC, PARTITIONS)
    workers = [Worker(bootstrap, "a", "none"), Worker(bootstrap, "b", "lz4")]
    committer = Committer(bootstrap)
    moment = random.Random(20)
    for _ in range(kills):
        before = [len(worker.acknowledged) for worker in workers]
        committed_before = dict(committer.committed)
        wait_until(
            lambda before=before: all(
                len(w.acknowledged) > n + 50 for w, n in zip(workers, before, strict=True)
            ),
            60,
            f"records acknowledged after a restart; broker log: {broker.log}",
        )
        wait_until(
            lambda seen=committed_before: committer.committed != seen,
            60,
            "offsets committed after a restart",
        )
        time.sleep(moment.uniform(0.0, 0.3))
        broker.kill()
        broker.start()
    for worker in workers:
        worker.finish()
    committer.finish()
    broker.kill()
    broker.start()
    check_log(bootstrap, workers)
    stored = stored_commits(bootstrap)
    for partition in range(PARTITIONS):
        assert committer.committed[partition] <= stored[partition] <= committer.tried[partition]
    assert min(stored.values()) > 0
