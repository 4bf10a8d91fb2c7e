"""The topics of a subscription, as a cluster has them now."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from kbroker.client.cluster import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ZERO_UUID,
    TopicPartition,
)
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse

from ..cluster import TopicFacts, Topics
from ..errors import JobError
from ..exactly_once.errors import described
from ..wire.client import BlockingClient, ClusterAddress
from ..wire.offsets import is_missing, list_offsets
from .options import SourceOptions

RETRY_S: Final = 30.0


def open_client(options: SourceOptions) -> BlockingClient:
    """Raises JobError for bootstrap servers that are no addresses."""
    return BlockingClient(ClusterAddress(options.bootstrap_servers, retry_timeout_s=RETRY_S))


def topics_of(client: BlockingClient, options: SourceOptions) -> Topics:
    """The topics that exist, up to the end that the isolation level allows to be read. Raises
    JobError.
    """
    level = READ_COMMITTED if options.is_read_committed else READ_UNCOMMITTED
    try:
        found: Topics = {}
        for name in _names(client, options):
            facts = _facts(client, name, level)
            if facts is not None:
                found[name] = facts
    except KafkaError as error:
        raise JobError(described(error, "reading the topics")) from error
    return found if options.partitions is None else _assigned(found, options.partitions)


def _names(client: BlockingClient, options: SourceOptions) -> list[str]:
    if options.pattern is None:
        return list(options.topics)
    try:
        pattern = re.compile(options.pattern)
    except re.error as error:
        raise JobError(f"subscribePattern {options.pattern}: {error}") from error
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    response = client.retry(partial(client.any, request, MetadataResponse, max_version=12))
    names = (topic.name for topic in response.topics if topic.name and not topic.is_internal)
    return sorted(name for name in names if pattern.fullmatch(name))


def _facts(client: BlockingClient, name: str, isolation_level: int) -> TopicFacts | None:
    """None if the topic does not exist."""
    try:
        count = client.retry(partial(client.partition_count, name), is_final=is_missing)
    except KafkaError as error:
        if not is_missing(error):
            raise
        return None
    places = [TopicPartition(name, index) for index in range(count)]
    earliest, latest = (
        client.retry(
            partial(list_offsets, client, dict.fromkeys(places, timestamp), isolation_level)
        )
        for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
    )
    topic_id = client.topic_id(name)
    return TopicFacts(
        "" if topic_id == ZERO_UUID else topic_id.hex(),
        {place.partition: earliest[place] for place in places},
        {place.partition: latest[place] for place in places},
    )


def _assigned(topics: Topics, partitions: Mapping[str, tuple[int, ...]]) -> Topics:
    found: Topics = {}
    for name, facts in topics.items():
        absent = [index for index in partitions[name] if index not in facts.latest]
        if absent:
            raise JobError(
                f"assign names {name}-{absent[0]}, and the topic has {len(facts.latest)} partitions"
            )
        found[name] = replace(
            facts,
            earliest={index: facts.earliest[index] for index in partitions[name]},
            latest={index: facts.latest[index] for index in partitions[name]},
        )
    return found
