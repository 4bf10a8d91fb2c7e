"""Produce requests, acknowledged by all in-sync replicas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.client.cluster import TopicPartition
from kbroker.client.producer import ACKS_ALL
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse

from ..wire.client import BlockingClient

LAST_VERSION: Final = 11
"""Version 12 would add partitions to the transaction by itself (KIP-890), which only a client that
also ends it with EndTxn version 5 may ask for; 13 names topics by id.
"""


def produce_request(
    batches: Mapping[TopicPartition, bytearray], *, timeout_ms: int, transactional_id: str | None
) -> ProduceRequest:
    """A request of one batch per partition. timeout_ms: for the replicas' acknowledgement."""
    topics: dict[str, list[ProduceRequest.PartitionProduceData]] = {}
    for (topic, partition), batch in batches.items():
        data = ProduceRequest.PartitionProduceData(index=partition, records=memoryview(batch))
        topics.setdefault(topic, []).append(data)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=ACKS_ALL,
        timeout_ms=timeout_ms,
        topic_data=[
            ProduceRequest.TopicProduceData(name=topic, partition_data=partition_data)
            for topic, partition_data in topics.items()
        ],
    )


def answers(
    response: ProduceResponse,
) -> dict[TopicPartition, ProduceResponse.PartitionProduceResponse]:
    """The outcome by partition."""
    return {
        TopicPartition(topic.name, answer.index): answer
        for topic in response.responses
        for answer in topic.partition_responses
    }


def answer_error(
    topic_partition: TopicPartition, answer: ProduceResponse.PartitionProduceResponse | None
) -> KafkaError | None:
    """None if the batch was appended. answer: None if the response does not name the partition."""
    if answer is None:
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no outcome for {topic_partition}")
    if not answer.error_code:
        return None
    messages = [answer.error_message, *(e.batch_index_error_message for e in answer.record_errors)]
    detail = next((f" ({message})" for message in messages if message), "")
    return KafkaError(ErrorCode(answer.error_code), f"{topic_partition}{detail}")


def produce(
    client: BlockingClient,
    topic_partition: TopicPartition,
    batch: bytearray,
    *,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> int:
    """Send one batch until it is acknowledged; returns its base offset. Raises KafkaError.

    Without a producer id in the batch it may be appended more than once.
    """
    request = produce_request(
        {topic_partition: batch}, timeout_ms=timeout_ms, transactional_id=transactional_id
    )

    def send() -> int:
        response = client.to_leader(
            topic_partition, request, ProduceResponse, max_version=LAST_VERSION
        )
        answer = answers(response).get(topic_partition)
        error = answer_error(topic_partition, answer)
        if error is not None or answer is None:
            raise error or KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        return answer.base_offset

    return client.retry(send)
