"""Records of every kind for the tests of copies, and what a topic has of them."""

from __future__ import annotations

from kbroker.client.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED
from kbroker.client.consumer import decode_fetched
from kbroker.model import TopicPartition
from kbroker.protocol.batches.records import Record
from spark_jobs.exactly_once.driver import QuerySettings
from spark_jobs.exactly_once.map_log import OffsetMap, read_offset_map
from spark_jobs.exactly_once.token_log import tokens_partition
from spark_jobs.exactly_once.topics import MAP_TOPIC
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from spark_jobs.wire.fetch import fetch
from spark_jobs.wire.offsets import list_offset
from tests.clients.adapters import ConfluentAdapter, Sent, wait_until

BASE_MS = 1_700_000_000_000
STEP_MS = 600_000
"""Between two records, so that an archive has several days."""


def sent(number: int, partitions: int) -> Sent:
    """Null and empty keys, values and headers, tombstones, names that are there twice."""
    key = (None, b"", b"key-%d" % (number % 11))[number % 3]
    value = (b"value-%d" % number, None, b"")[0 if number % 7 else number % 2 + 1]
    headers = ((), (("h", b"%d" % number), ("h", b"")), (("null", None),))[number % 4 % 3]
    return Sent(key, value, headers, BASE_MS + number * STEP_MS, number % partitions)  # type: ignore[arg-type]


def fill(bootstrap: str, topic: str, numbers: range, partitions: int) -> None:
    rows = [sent(number, partitions) for number in numbers]
    ConfluentAdapter(bootstrap).produce(topic, rows, codec="lz4", idempotent=True)


def begin_transaction(
    bootstrap: str, topic: str, numbers: range, partitions: int, *, commit: bool
) -> None:
    """Produce in a transaction and end it."""
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"tests-{topic}", "linger.ms": 5}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in numbers:
        one = sent(number, partitions)
        producer.produce(
            topic,
            key=one.key,
            value=one.value,
            headers=list(one.headers),
            partition=one.partition,
            timestamp=one.timestamp_ms or 0,
        )
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def records_of(bootstrap: str, topic: str, partitions: int) -> list[list[Record]]:
    """Committed records by partition, with their offsets, once no transaction is open."""
    client = BlockingClient(ClusterAddress(bootstrap))
    try:
        return [_records(client, TopicPartition(topic, index)) for index in range(partitions)]
    finally:
        client.close()


def _records(client: BlockingClient, place: TopicPartition) -> list[Record]:
    def is_decided() -> bool:
        stable = list_offset(client, place, LATEST_TIMESTAMP, READ_COMMITTED)
        return stable == list_offset(client, place, LATEST_TIMESTAMP)

    wait_until(is_decided, 60, "no transaction is open")
    end = list_offset(client, place, LATEST_TIMESTAMP)
    position = list_offset(client, place, EARLIEST_TIMESTAMP)
    found: list[Record] = []
    while position < end:
        data = fetch(client, place, position, READ_COMMITTED)
        records, position = decode_fetched(place, data, position, READ_COMMITTED)
        found += [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]
    return found


def content(records: list[Record]) -> list[tuple[object, ...]]:
    """Records without their offsets."""
    return [(r.timestamp, r.key, r.value, tuple(r.headers)) for r in records]


def offset_map(bootstrap: str, query_name: str) -> OffsetMap:
    """The map that a query has written."""
    client = BlockingClient(ClusterAddress(bootstrap))
    transactional_id = QuerySettings(query_name, ()).transactional_id
    try:
        count = client.partition_count(MAP_TOPIC)
        place = TopicPartition(MAP_TOPIC, tokens_partition(transactional_id, count))
        return read_offset_map(client, place, transactional_id)
    finally:
        client.close()


def check_map(
    found: OffsetMap, target: str, sources: list[list[Record]], targets: list[list[Record]]
) -> None:
    """The map says for each record where it is, and for nothing else."""
    for partition, (source, copy) in enumerate(zip(sources, targets, strict=True)):
        pairs = [
            (run.source + index, run.target + index)
            for run in found.get(TopicPartition(target, partition), [])
            for index in range(run.length)
        ]
        assert pairs == [(a.offset, b.offset) for a, b in zip(source, copy, strict=True)]
