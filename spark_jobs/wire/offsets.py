"""The first and last offsets of partitions, and the topics that have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from kbroker.client.cluster import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_UNCOMMITTED,
    ZERO_UUID,
    TopicPartition,
    group_by_topic,
)
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

from ..cluster import TopicFacts, Topics
from .client import BlockingClient


def list_offsets(
    client: BlockingClient,
    timestamps: Mapping[TopicPartition, int],
    isolation_level: int = READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """One of the ends of each partition, with a request per leader. Raises KafkaError.

    timestamps: EARLIEST_TIMESTAMP or LATEST_TIMESTAMP by partition.
    """
    by_leader: dict[int, list[TopicPartition]] = {}
    for topic_partition in timestamps:
        by_leader.setdefault(client.leader(topic_partition), []).append(topic_partition)
    found: dict[TopicPartition, int] = {}
    for leader_id, topic_partitions in by_leader.items():
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsPartition(
                            partition_index=partition,
                            timestamp=timestamps[TopicPartition(topic, partition)],
                        )
                        for partition in partitions
                    ],
                )
                for topic, partitions in group_by_topic(topic_partitions).items()
            ],
        )
        response = client.exchange(client.node(leader_id), request, ListOffsetsResponse, 7)
        for topic_response in response.topics:
            for answer in topic_response.partitions:
                topic_partition = TopicPartition(topic_response.name, answer.partition_index)
                if answer.error_code:
                    raise KafkaError(ErrorCode(answer.error_code), f"offsets of {topic_partition}")
                found[topic_partition] = answer.offset
    return found


def list_offset(
    client: BlockingClient,
    topic_partition: TopicPartition,
    timestamp: int,
    isolation_level: int = READ_UNCOMMITTED,
) -> int:
    """One of the ends of a partition. Raises KafkaError."""
    return list_offsets(client, {topic_partition: timestamp}, isolation_level)[topic_partition]


def topic_facts(client: BlockingClient, names: Iterable[str]) -> Topics:
    """The topics that exist, with their ids and offsets up to the high watermark. Raises KafkaError
    or JobError once its retries end.
    """
    facts: Topics = {}
    for name in names:
        try:
            count = client.retry(partial(client.partition_count, name), is_final=is_missing)
        except KafkaError as error:
            if not is_missing(error):
                raise
            continue
        places = [TopicPartition(name, partition) for partition in range(count)]
        earliest, latest = (
            client.retry(partial(list_offsets, client, dict.fromkeys(places, timestamp)))
            for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        )
        topic_id = client.topic_id(name)
        facts[name] = TopicFacts(
            "" if topic_id == ZERO_UUID else topic_id.hex(),
            {place.partition: earliest[place] for place in places},
            {place.partition: latest[place] for place in places},
        )
    return facts


def is_missing(error: KafkaError) -> bool:
    """Whether a topic does not exist, or may not be described."""
    return error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
