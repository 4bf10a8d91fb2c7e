"""Batches of a partition: one Fetch, and what is in its response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kbroker.client.cluster import TopicPartition
from kbroker.protocol.batches.any_magic import iter_any_batches
from kbroker.protocol.batches.batch_header import BatchHeader
from kbroker.protocol.batches.compression import Buffer
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse

from .client import BlockingClient

FETCH_BYTES: Final = 4 * 1024 * 1024


def fetch(
    client: BlockingClient,
    topic_partition: TopicPartition,
    offset: int,
    isolation_level: int,
    max_bytes: int = FETCH_BYTES,
) -> FetchResponse.PartitionData:
    """One Fetch of a partition, which does not wait for records. Raises KafkaError.

    max_bytes: of the response; the batch at the offset is returned also if it is larger.
    """
    topic, partition = topic_partition
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        topics=[
            FetchRequest.FetchTopic(
                topic=topic,
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
                    )
                ],
            )
        ],
    )
    response = client.to_leader(topic_partition, request, FetchResponse, max_version=12)
    if response.error_code:
        raise KafkaError(ErrorCode(response.error_code), f"Fetch of {topic_partition}")
    ((data,),) = (topic_response.partitions for topic_response in response.responses)
    if data.error_code:
        raise KafkaError(ErrorCode(data.error_code), f"Fetch of {topic_partition} at {offset}")
    return data


def batches_of(data: FetchResponse.PartitionData) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The whole batches of a fetched partition with their headers, control batches too."""
    buffer = memoryview(data.records if isinstance(data.records, Buffer) else b"")
    for position, header in iter_any_batches(buffer, partial_ok=True):
        yield header, buffer[position : position + header.size_bytes]
