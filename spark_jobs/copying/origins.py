"""Where a topic comes from, so that no record is copied round in a circle.

Each mirror writes a record into the compacted `__spark_batches` of its target's cluster: the topic
that it writes, the topic that it reads, and those that that one was mirrored from. Records are left
as they are; MirrorMaker 2 has no such register, and relies on prefixes of topic names.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from kbroker.client.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse

from ..errors import JobError, StartRefused
from ..exactly_once.grant import DEFAULT_LIMITS
from ..exactly_once.produce import produce
from ..exactly_once.token_log import read_uncommitted, tokens_partition
from ..exactly_once.topics import TOKENS_TOPIC, prepare_tokens_topic
from ..wire.client import BlockingClient
from ..wire.offsets import is_missing, list_offset

KEY_MARK: Final = "/mirror/"
VERSION: Final = 1


class Origin(NamedTuple):
    """A topic of a cluster, which is named by its id."""

    cluster_id: str
    topic: str


@dataclass(frozen=True, slots=True)
class Registration:
    """A mirror. target: the topic that it writes in the cluster that has the registration. origins:
    the topic that it reads first, then those that that one comes from. query_name: of its tokens.
    """

    query_name: str
    target: str
    origins: tuple[Origin, ...]

    @property
    def source(self) -> Origin:
        """The topic that the mirror reads."""
        return self.origins[0]

    def encode(self) -> bytes:
        """The record's value."""
        fields = {
            "version": VERSION,
            "query": self.query_name,
            "target": self.target,
            "origins": self.origins,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> Registration | None:
        """None for a value that is no registration."""
        try:
            fields = json.loads(value)
            origins = tuple(
                Origin(str(cluster), str(topic)) for cluster, topic in fields["origins"]
            )
            return cls(str(fields["query"]), str(fields["target"]), origins) if origins else None
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def origins_of(source: Origin, registrations: Iterable[Registration]) -> tuple[Origin, ...]:
    """A topic, and what it is mirrored from. registrations: of its cluster."""
    found = [source]
    for registration in registrations:
        if registration.target == source.topic:
            found += registration.origins
    return tuple(dict.fromkeys(found))


def refuse_circle(target: Origin, origins: tuple[Origin, ...]) -> None:
    """Raises StartRefused if records that are written to `target` came from it. origins: of the
    topic that is read, itself first.
    """
    source = origins[0]
    if target == source:
        raise StartRefused(
            f"topic {source.topic} would be mirrored into itself: source and target are one "
            "cluster; give --prefix, or another --toBootstrapServers"
        )
    if target in origins:
        raise StartRefused(
            f"topic {source.topic} is itself a mirror of {target.topic} in the target's cluster: "
            "its records would go round for ever. Leave the topic out, or give --prefix"
        )


def cluster_id(client: BlockingClient) -> str:
    """The id of a cluster. Raises JobError if its brokers have none."""
    response = client.retry(
        lambda: client.any(
            MetadataRequest(topics=[], allow_auto_topic_creation=False),
            MetadataResponse,
            max_version=12,
        )
    )
    if not response.cluster_id:
        raise JobError("the brokers tell no cluster id, which mirror needs (Kafka 0.10.1 has one)")
    return response.cluster_id


def registrations(client: BlockingClient) -> list[Registration]:
    """The mirrors into a cluster; none if it never had one. Raises KafkaError."""
    try:
        count = client.retry(lambda: client.partition_count(TOKENS_TOPIC), is_final=is_missing)
    except KafkaError as error:
        if not is_missing(error):
            raise
        return []
    newest: dict[bytes, Registration | None] = {}
    for partition in range(count):
        place = TopicPartition(TOKENS_TOPIC, partition)
        start, end = (
            client.retry(partial(list_offset, client, place, timestamp))
            for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        )
        for _, record in read_uncommitted(client, place, start, end):
            if record.key is not None and KEY_MARK.encode() in record.key:
                value = record.value
                newest[record.key] = None if value is None else Registration.decode(value)
    return [registration for registration in newest.values() if registration is not None]


def register(client: BlockingClient, registration: Registration, transactional_id: str) -> None:
    """Say in the target's cluster that a mirror writes to a topic. Raises KafkaError, SinkError."""
    _append(client, registration.target, registration.encode(), transactional_id)


def unregister(client: BlockingClient, target: str, transactional_id: str) -> None:
    """Take a registration back. Raises KafkaError, SinkError."""
    _append(client, target, None, transactional_id)


def _append(
    client: BlockingClient, target: str, value: bytes | None, transactional_id: str
) -> None:
    count = prepare_tokens_topic(client, TOKENS_TOPIC)
    place = TopicPartition(TOKENS_TOPIC, tokens_partition(transactional_id, count))
    key = f"{transactional_id}{KEY_MARK}{target}".encode()
    batch = build_batch([(time.time_ns() // 1_000_000, key, value, ())])
    produce(client, place, batch, timeout_ms=DEFAULT_LIMITS.produce_timeout_ms)
