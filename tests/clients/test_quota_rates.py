"""Clients of librdkafka within their quotas for two minutes, beside clients without: bytes of a
producer and of a consumer, request percentage, controller mutations; each within 10 percent of its
quota, on a broker with default windows.

A rate of Kafka's looks back over eleven windows of a second, and a client that is above it waits
until the oldest is over: it comes in bursts of up to ten seconds' worth, which a measurement over
many of these periods levels out.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from kbroker.protocol.messages.admin.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from kbroker.testing.process import BrokerProcess
from scripts.ports import free_port
from tests.e2e.wire import call

pytestmark = [
    pytest.mark.clients,
    pytest.mark.slow,
    pytest.mark.serial,
    pytest.mark.timeout(300),
]

BYTE_RATE: Final = 500_000
PERCENT: Final = 15.0
"""A third of what the client takes without a quota. Large enough for a request that is held up for
some ten milliseconds, on a machine that does other work, not to be a tenth of a period's time; a
client with 1 percent is held in tests/server/test_throttling.py, on a simulated clock.
"""
DESCRIBED: Final = ("held", "held-2", "held-3", "held-4")
MUTATION_RATE: Final = 2.0
FREE_BYTE_RATE: Final = 4 * BYTE_RATE
FREE_CALLS_A_SECOND: Final = 2
RECORD_BYTES: Final = 10_000
FETCHED_BYTES: Final = 50_000
"""At once: a response that would exceed the quota is put off as a whole."""
WARM_UP_S: Final = 24.0
"""Two periods: what a client that was idle may use at once is used up."""
MEASURED_S: Final = 121.0
"""Eleven periods of eleven windows."""
REQUESTS_MEASURED_S: Final = 66.0
"""Six periods: a client of requests alone has no bursts of a whole period's time."""
TIMEOUT_S: Final = 20.0


class Load:
    """A client in a thread of its own. throttled: how many responses told it a throttle time."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self.settings = {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "log_level": 0,
            "throttle_cb": self._on_throttle,
        }
        self.count = 0.0
        self.throttled = 0
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded)

    def _on_throttle(self, event: object) -> None:
        self.throttled += 1

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 the main thread raises it
            self.error = error

    def run(self) -> None:
        """Work until `ended`, and count in `count`."""
        raise NotImplementedError  # abstract: each load works in its own way

    def paced(self, rate: float) -> Iterator[None]:
        """Steps at a rate, in units per second, that catch up when they are late."""
        started, number = time.monotonic(), 0
        while not self.ended.is_set():
            number += 1
            self.ended.wait(max(started + number / rate - time.monotonic(), 0))
            yield

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


class Producing(Load):
    """Bytes that were acknowledged. rate: bytes per second; None for as many as there can be."""

    def __init__(self, bootstrap: str, client_id: str, topic: str, rate: float | None) -> None:
        super().__init__(bootstrap, client_id)
        self._topic, self._rate = topic, rate

    def run(self) -> None:
        """Send."""
        limits = {"batch.size": 100_000, "queue.buffering.max.kbytes": 1_000}
        producer = Producer({**self.settings, **limits})

        def on_delivery(error: object, message: object) -> None:
            assert error is None, error
            self.count += RECORD_BYTES

        def send() -> None:
            while not self.ended.is_set():
                try:
                    producer.produce(
                        self._topic, bytes(RECORD_BYTES), partition=0, on_delivery=on_delivery
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
            producer.poll(0)

        if self._rate is None:
            while not self.ended.is_set():
                send()
        else:
            for _ in self.paced(self._rate / RECORD_BYTES):
                send()
        producer.flush(TIMEOUT_S)


class Consuming(Load):
    """Bytes that were received of a topic, from its start on."""

    def __init__(self, bootstrap: str, client_id: str, topic: str) -> None:
        super().__init__(bootstrap, client_id)
        self._topic = topic

    def run(self) -> None:
        """Read."""
        limit = {"fetch.message.max.bytes": FETCHED_BYTES}
        consumer = Consumer({**self.settings, **limit, "group.id": "unused"})
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        while not self.ended.is_set():
            for message in consumer.consume(100, 0.2):
                assert message.error() is None, message.error()
                self.count += len(message.value() or b"")
        consumer.close()


class Calling(Load):
    """Calls of an AdminClient that were answered; what is refused for a quota librdkafka repeats by
    itself. rate: calls per second; None for as many as there can be.
    """

    def __init__(
        self,
        bootstrap: str,
        client_id: str,
        call: Callable[[AdminClient], object],
        rate: float | None,
    ) -> None:
        super().__init__(bootstrap, client_id)
        self._call, self._rate = call, rate

    def run(self) -> None:
        """Call."""
        admin = AdminClient(self.settings)
        for _ in self.paced(self._rate or 1_000_000):
            self._call(admin)
            self.count += 1
            admin.poll(0)


def describe_topics(admin: AdminClient) -> None:
    """A request that takes the broker about three milliseconds."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in DESCRIBED]
    for future in admin.describe_configs(resources).values():
        future.result(TIMEOUT_S)


def creating(stem: str) -> Callable[[AdminClient], None]:
    """Creates a topic of one partition at each call."""
    numbers = iter(range(1_000_000))

    def create(admin: AdminClient) -> None:
        name = f"{stem}-{next(numbers)}"
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(TIMEOUT_S)

    return create


def set_quota(broker: BrokerProcess, client_id: str, key: str, value: float) -> None:
    """Over a plain socket: librdkafka's AdminClient has no quotas."""
    kind = AlterClientQuotasRequest
    entity = kind.EntityData(entity_type="client-id", entity_name=client_id)
    entry = kind.EntryData(entity=[entity], ops=[kind.OpData(key=key, value=value)])
    with socket.create_connection((broker.host, broker.port), timeout=20) as connection:
        response = call(connection, kind(entries=[entry]), 1)
    assert isinstance(response, AlterClientQuotasResponse)
    assert [each.error_code for each in response.entries] == [0]


def busy_seconds(metrics_port: int, api: str) -> float:
    """The time that the broker spent with requests of an API, as its metrics have it."""
    with urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=TIMEOUT_S) as response:
        lines = response.read().decode().splitlines()
    name = f'kafka_network_requestmetrics_totaltime_seconds_sum{{request="{api}"}} '
    (line,) = (line for line in lines if line.startswith(name))
    return float(line.removeprefix(name))


def measured(loads: Sequence[Load], seconds: float) -> list[float]:
    """What each counted per second."""
    started, before = time.monotonic(), [load.count for load in loads]
    time.sleep(seconds)
    after, elapsed = [load.count for load in loads], time.monotonic() - started
    return [(late - early) / elapsed for early, late in zip(before, after, strict=True)]


def create_topics(bootstrap: str, *names: str) -> None:
    """Of one partition each, by a client without a quota."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result(TIMEOUT_S)


def test_bytes_and_mutations_are_held_to_their_rates(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, ExitStack() as stack:
        where = broker.bootstrap_servers
        set_quota(broker, "held-producer", "producer_byte_rate", BYTE_RATE)
        set_quota(broker, "held-consumer", "consumer_byte_rate", BYTE_RATE)
        set_quota(broker, "held-creator", "controller_mutation_rate", MUTATION_RATE)
        create_topics(where, "held", "free")
        offered = 4 * MUTATION_RATE
        loads = (
            Producing(where, "free-producer", "free", FREE_BYTE_RATE),
            Consuming(where, "free-consumer", "free"),
            Calling(where, "free-creator", creating("free"), FREE_CALLS_A_SECOND),
            Producing(where, "held-producer", "held", None),
            Consuming(where, "held-consumer", "free"),
            Calling(where, "held-creator", creating("held"), offered),
        )
        free, held = loads[:3], loads[3:]
        for load in loads:
            stack.enter_context(load)
        time.sleep(WARM_UP_S)
        rates = measured(loads, MEASURED_S)
    print("free, held:", [round(rate, 2) for rate in rates])
    assert rates[3:] == pytest.approx([BYTE_RATE, BYTE_RATE, MUTATION_RATE], rel=0.1)
    assert all(load.throttled for load in held)
    fast = [FREE_BYTE_RATE, FREE_BYTE_RATE, FREE_CALLS_A_SECOND]
    assert rates[:3] == pytest.approx(fast, rel=0.05)
    assert not any(load.throttled for load in free)


def test_requests_are_held_to_their_percentage(tmp_path: Path) -> None:
    """Of the broker's time, which its metrics have by API."""
    port = free_port()
    overrides = {"kbroker.metrics.listener": f"127.0.0.1:{port}"}
    with BrokerProcess(tmp_path / "data", overrides=overrides) as broker, ExitStack() as stack:
        where = broker.bootstrap_servers
        set_quota(broker, "held-caller", "request_percentage", PERCENT)
        create_topics(where, *DESCRIBED)
        free = Calling(
            where,
            "free-caller",
            lambda admin: admin.list_topics(timeout=TIMEOUT_S),
            FREE_CALLS_A_SECOND,
        )
        held = Calling(where, "held-caller", describe_topics, None)
        stack.enter_context(free)
        stack.enter_context(held)
        time.sleep(WARM_UP_S)
        started, busy = time.monotonic(), -busy_seconds(port, "DescribeConfigs")
        free_rate, held_rate = measured([free, held], REQUESTS_MEASURED_S)
        busy += busy_seconds(port, "DescribeConfigs")
        percent = 100 * busy / (time.monotonic() - started)
    print(f"{percent:.2f} percent of {PERCENT}, {held_rate:.1f} calls/s; free {free_rate:.2f}")
    assert percent == pytest.approx(PERCENT, rel=0.1)
    assert held.throttled and held_rate > 1
    assert free_rate == pytest.approx(FREE_CALLS_A_SECOND, rel=0.05)
    assert not free.throttled
