"""Transactional batches in a Produce request: recognised by their headers, and verified with the
transaction coordinator before they are appended.

A request has one producer, and all its partitions are verified together. From v12 on the broker
adds the partitions to the transaction (KIP-890); before, the producer has added them and the broker
makes sure. The neighbour is `transaction_gate`, which asks the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from kbroker.broker.transaction_gate import (
    ADDS_ITSELF_SINCE,
    PartitionGate,
    Verdicts,
    produce_error_of,
)
from kbroker.coordinator.transaction.producer import Producer
from kbroker.log.append_request import is_transactional
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_header import BATCH_OVERHEAD, PRODUCER_FIELDS
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.replication.manager import ReplicaManager

TOPIC_IDS_SINCE: Final = 13


def verify_partitions(
    replicas: ReplicaManager, gate: PartitionGate, version: int, request: ProduceRequest
) -> Deferred[Verdicts]:
    """The coordinator's response for every partition led here that gets a transactional batch."""
    producers: dict[TopicPartition, Producer] = {}
    for asked in request.topic_data:
        by_id = version >= TOPIC_IDS_SINCE
        topic = replicas.topic_by_id(asked.topic_id) if by_id else replicas.topic(asked.name)
        if topic is None:
            continue
        for data in asked.partition_data:
            partition = topic.partitions.get(data.index)
            records = cast(memoryview, data.records)
            if partition is None or not partition.is_leader or not records:
                continue
            if len(records) >= BATCH_OVERHEAD and is_transactional(records):
                found = PRODUCER_FIELDS.unpack_from(records)
                producers[partition.topic_partition] = Producer(*found)
    if not producers:
        return Deferred.of({})
    if len(set(producers.values())) > 1:
        return Deferred.of(dict.fromkeys(producers, ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    return gate.ask(
        request.transactional_id or "",
        next(iter(producers.values())),
        producers,
        adds=version >= ADDS_ITSELF_SINCE,
    )


def reverify(
    gate: PartitionGate,
    version: int,
    partition: TopicPartition,
    records: memoryview | bytearray,
) -> Callable[[], ErrorCode] | None:
    """A check, for a transactional batch that is appended later, whether its transaction is still
    open then. None for other batches. It does not hold the records.
    """
    if len(records) < BATCH_OVERHEAD or not is_transactional(records):
        return None
    producer = Producer(*PRODUCER_FIELDS.unpack_from(records))
    check = gate.recheck(producer, partition, adds=version >= ADDS_ITSELF_SINCE)
    return None if check is None else lambda: produce_error_of(check(), version)


def keep_records(request: ProduceRequest) -> int:
    """Copy the batches out of the receive buffer, since they are appended after this call. Returns
    their size in bytes.
    """
    kept_bytes = 0
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records:
                data.records = bytearray(cast(memoryview, data.records))
                kept_bytes += len(data.records)
    return kept_bytes
