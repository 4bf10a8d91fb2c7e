"""What librdkafka reads of a topic with read_committed."""

from __future__ import annotations

from typing import Any, NamedTuple

from kbroker.client.cluster import LATEST_TIMESTAMP, READ_COMMITTED
from kbroker.model import TopicPartition
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from spark_jobs.wire.offsets import list_offset
from tests.clients.adapters import wait_until


class Row(NamedTuple):
    """A record, without its place."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def read_committed(bootstrap: str, topic: str, partitions: int) -> list[list[Row]]:
    """The records by partition, in order, once no transaction is open: a coordinator answers
    EndTxn before the markers are written.
    """
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Place

    _wait_for_markers(bootstrap, topic, partitions)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "readers",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([Place(topic, index, 0) for index in range(partitions)])
    found: list[list[Row]] = [[] for _ in range(partitions)]
    ended: set[int] = set()

    def is_read() -> bool:
        for message in consumer.consume(1000, 0.1):
            if message.error() is not None:
                ended.add(message.partition())
                continue
            headers: Any = tuple(message.headers() or ())
            row = Row(message.key(), message.value(), headers, message.timestamp()[1])
            found[message.partition()].append(row)
        return len(ended) == partitions

    try:
        wait_until(is_read, 60, "the end of each partition")
    finally:
        consumer.close()
    return found


def _wait_for_markers(bootstrap: str, topic: str, partitions: int) -> None:
    client = BlockingClient(ClusterAddress(bootstrap))
    places = [TopicPartition(topic, index) for index in range(partitions)]
    try:
        wait_until(
            lambda: all(
                list_offset(client, place, LATEST_TIMESTAMP, READ_COMMITTED)
                == list_offset(client, place, LATEST_TIMESTAMP)
                for place in places
            ),
            60,
            "no transaction is open",
        )
    finally:
        client.close()
