"""What a producer and a consumer of one partition see when its leader is killed: `replication`'s
failover.

Both are librdkafka's, with its defaults: the producer is idempotent, acks=all, and sends a record
every 5 ms; the consumer is assigned the partition. A gap is the longest time between two
acknowledgements, or between two receipts of records, of which the second came after the kill. Until
a client asks for the leader again up to a second may pass (librdkafka looks once a second which
leaders are down), whichever server it is.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from benchmarks.replica_nodes import REPLICAS, ReplicaCluster
from benchmarks.side_by_side import Figures, delete_topic
from kbroker.client.cluster import Client
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.testing.cluster_state import UNAVAILABLE, create_topics

PAUSE_S: Final = 0.005
FIRST_RECORDS: Final = 400
"""Acknowledged and received before the kill."""
AFTER_S: Final = 2.0
"""How long the clients go on after the first record that was sent after the kill."""
GAP_TIMEOUT_S: Final = 120.0
ELECTION_POLL_S: Final = 0.05
SETTLE_S: Final = 5.0
"""After a node returned."""


class Gaps(NamedTuple):
    """One kill, in seconds. elected_s: until the other brokers know another leader."""

    elected_s: float
    producer_s: float
    consumer_s: float


def longest_gap(times: Sequence[float], since: float) -> float:
    """Between two neighbours of which the second is later than `since`. Raises ValueError without
    any.
    """
    return max(after - before for before, after in pairwise(times) if after > since)


def gap_figures(kills: Sequence[Gaps]) -> Figures:
    """Of the kills of one run: the medians, and the longest gaps."""
    found = {
        f"{name}_median": statistics.median(getattr(each, name) for each in kills)
        for name in Gaps._fields
    }
    return found | {
        f"{name}_longest": max(getattr(each, name) for each in kills)
        for name in ("producer_s", "consumer_s")
    }


class Arrivals:
    """When records came, and until when all that came were sent (time.monotonic, seconds)."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.sent_until = 0.0

    def add(self, value: bytes) -> None:
        """A record, whose value says when it was sent."""
        self.times.append(time.monotonic())
        self.sent_until = float(value)


class Clients:
    """The producer and the consumer of a partition, each in a thread, while entered."""

    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        self.acknowledged, self.received = Arrivals(), Arrivals()
        self._bootstrap, self._topic, self._partition = bootstrap, topic, partition
        self._stopping = threading.Event()
        self._failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(work,), daemon=True)
            for work in (self._produce, self._consume)
        ]

    def wait_for(self, is_it: Callable[[Arrivals], bool]) -> None:
        """Until it is so of what was acknowledged and of what was received. Raises TimeoutError,
        and RuntimeError if a client failed.
        """
        deadline = time.monotonic() + GAP_TIMEOUT_S
        while not (is_it(self.acknowledged) and is_it(self.received)):
            if self._failures:
                raise RuntimeError(self._failures[0])
            if time.monotonic() > deadline:
                raise TimeoutError(f"no records came through within {GAP_TIMEOUT_S:.0f} s")
            time.sleep(PAUSE_S)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # of this thread, raised by `wait_for`
            self._failures.append(repr(error))

    def _produce(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "log_level": 0,
            }
        )
        while not self._stopping.is_set():
            producer.produce(
                self._topic,
                repr(time.monotonic()),
                partition=self._partition,
                on_delivery=self._delivered,
            )
            producer.poll(0)
            time.sleep(PAUSE_S)
        producer.flush(GAP_TIMEOUT_S)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failures.append(f"a record was given up: {error}")
        else:
            self.acknowledged.add(message.value())

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "gaps",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(self._topic, self._partition, OFFSET_BEGINNING)])
        while not self._stopping.is_set():
            message = consumer.poll(PAUSE_S)
            if message is not None and message.error() is None:
                self.received.add(message.value())
        consumer.close()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(GAP_TIMEOUT_S)


def kill_leader(cluster: ReplicaCluster, topic: str, *, is_active: bool) -> Gaps:
    """Kill the leader of a partition of a new topic, and start it again. is_active: the one that
    is the active controller too, otherwise one that is not.
    """
    bootstrap = cluster.bootstrap_servers
    # their leaders are on three brokers
    asyncio.run(create_topics(bootstrap, {topic: REPLICAS}, REPLICAS))
    cluster.wait_until_healed()
    active = cluster.active_controller()
    leaders = asyncio.run(leaders_of(bootstrap, topic))
    victim, partition = next(
        (leader, index) for index, leader in leaders.items() if (leader == active) is is_active
    )
    with Clients(bootstrap, topic, partition) as clients:
        clients.wait_for(lambda arrivals: len(arrivals.times) >= FIRST_RECORDS)
        killed = time.monotonic()
        cluster.nodes[victim].kill()
        others = cluster.bootstrap_without(victim)
        elected = asyncio.run(other_leader(others, topic, partition, victim))
        clients.wait_for(lambda arrivals: arrivals.sent_until > killed)
        time.sleep(AFTER_S)
    cluster.nodes[victim].launch()
    cluster.wait_for(lambda metadata: len(metadata.brokers) == len(cluster.nodes))
    cluster.wait_until_healed()
    asyncio.run(delete_topic(bootstrap, topic))
    time.sleep(SETTLE_S)
    return Gaps(
        elected - killed,
        longest_gap(clients.acknowledged.times, killed),
        longest_gap(clients.received.times, killed),
    )


async def leaders_of(bootstrap: str, topic: str) -> dict[int, int]:
    """By partition; -1 none."""
    async with Client(bootstrap) as client:
        return leaders_in(await client.metadata([topic]))


def leaders_in(metadata: MetadataResponse) -> dict[int, int]:
    """The leader of each partition of the one topic that was asked for."""
    (topic,) = metadata.topics
    return {each.partition_index: each.leader_id for each in topic.partitions}


async def other_leader(bootstrap: str, topic: str, partition: int, former: int) -> float:
    """When (time.monotonic) a broker knew that another one leads. Raises TimeoutError."""
    client = Client(bootstrap, timeout_s=5.0)
    try:
        async with asyncio.timeout(GAP_TIMEOUT_S):
            while True:
                try:
                    leader = leaders_in(await client.metadata([topic])).get(partition, -1)
                    if leader not in (former, -1):
                        return time.monotonic()
                except UNAVAILABLE:
                    pass  # its connection may be to the one that was killed
                await asyncio.sleep(ELECTION_POLL_S)
    finally:
        await client.close()
