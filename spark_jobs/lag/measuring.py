"""How far queries are behind: the ends of their topics, and the first record that waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kbroker.client.cluster import READ_UNCOMMITTED, TopicPartition
from kbroker.protocol.batches.any_magic import iter_any_records
from kbroker.protocol.errors import KafkaError

from ..cluster import TopicFacts
from ..topic_checks import check_topics
from ..wire.client import BlockingClient
from ..wire.fetch import batches_of, fetch
from ..wire.offsets import topic_facts
from .queries import Position
from .report import PartitionLag, QueryLag

ONE_BATCH: Final = 1
"""Bytes of a Fetch that returns the batch at its offset, whatever its size, and no other."""


@dataclass(frozen=True, slots=True)
class Unread:
    """What of a partition is not read: from offset (inclusive) to end. next_offset: as committed,
    None for a partition that is not read yet.
    """

    place: TopicPartition
    next_offset: int | None
    offset: int
    end: int


def unread(topic: str, position: dict[int, int], facts: TopicFacts) -> list[Unread]:
    """The partitions of a topic. One that the query has not read yet begins at its first offset, as
    in Spark.
    """
    found = []
    for partition, end in sorted(facts.latest.items()):
        next_offset = position.get(partition)
        first = facts.earliest[partition]
        offset = first if next_offset is None else next_offset
        found.append(
            Unread(TopicPartition(topic, partition), next_offset, offset, max(offset, end))
        )
    return found


def measure(client: BlockingClient, positions: Sequence[Position], now_ms: int) -> list[QueryLag]:
    """The lag of each query. Raises KafkaError or JobError."""
    names = sorted({topic for position in positions for topic in position.offsets})
    topics = topic_facts(client, names)
    ages: dict[tuple[TopicPartition, int], float | None] = {}

    def seconds_behind(part: Unread) -> float | None:
        if part.offset == part.end:
            return 0.0
        first = max(part.offset, topics[part.place.topic].earliest[part.place.partition])
        key = (part.place, first)
        if key not in ages:  # a query and its group are often at one offset
            since_ms = waiting_since_ms(client, part.place, first)
            ages[key] = None if since_ms is None else max(0, now_ms - since_ms) / 1000
        return ages[key]

    found = []
    for position in positions:
        partitions: list[PartitionLag] = []
        for topic, offsets in sorted(position.offsets.items()):
            if topic not in topics:
                continue
            for part in unread(topic, offsets, topics[topic]):
                partitions.append(
                    PartitionLag(
                        topic,
                        part.place.partition,
                        part.next_offset,
                        topics[topic].latest[part.place.partition],
                        part.end - part.offset,
                        seconds_behind(part),
                    )
                )
        found.append(
            QueryLag(
                position.kind,
                position.name,
                position.query_id,
                position.batch_id,
                tuple(partitions),
                _notes(position, topics),
            )
        )
    return found


def _notes(position: Position, topics: dict[str, TopicFacts]) -> tuple[str, ...]:
    notes = [
        f"topic {topic} does not exist any more"
        for topic in sorted(position.offsets)
        if topic not in topics
    ]
    read = {topic: each for topic, each in position.offsets.items() if topic in topics}
    known = {topic: each for topic, each in position.known.items() if topic in topics}
    notes += [finding.text for finding in check_topics(known, read, topics)]
    if not position.offsets:
        notes.append(_why_without_offsets(position))
    return tuple(notes)


def _why_without_offsets(position: Position) -> str:
    if position.kind == "group":
        return "the group has committed no offsets"
    if position.batch_id is None or position.batch_id < 0:
        return "no batch is committed yet"
    return "its newest batch has no offsets of Kafka: its sources are others, or read no topic yet"


def waiting_since_ms(client: BlockingClient, place: TopicPartition, offset: int) -> int | None:
    """The time of the first record at or behind an offset; None if it cannot be read, or has none.

    In a topic with LogAppendTime it is the time at which the broker appended it.
    """
    try:
        data = fetch(client, place, offset, READ_UNCOMMITTED, ONE_BATCH)
        for header, batch in batches_of(data):
            if header.last_offset < offset:
                continue
            for record in iter_any_records(batch, header):
                if record.offset >= offset and record.timestamp >= 0:
                    return record.timestamp
    except KafkaError:  # deleted meanwhile, or compressed with a codec that is not installed
        return None
    return None
