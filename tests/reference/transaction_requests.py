"""Requests about transactions: of a producer itself, of its former self and of strangers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.coordinators.offsets import OffsetFetchRequest
from kbroker.protocol.messages.coordinators.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.produce import ProduceRequest
from tests.reference.step import State

TIME_MS: Final = 1_790_000_000_000
GROUP: Final = "txn-group"
Who = Callable[[State, str], tuple[int, int]]
"""Producer id and epoch that a request names, of the transactional id it names."""
Build = Callable[[State, str, Who], Message]


def itself(state: State, name: str) -> tuple[int, int]:
    return state.producers[name]


def former(state: State, name: str) -> tuple[int, int]:
    producer_id, epoch = state.producers[name]
    return producer_id, epoch - 1


def older(state: State, name: str) -> tuple[int, int]:
    producer_id, epoch = state.producers[name]
    return producer_id, epoch - 2


def future(state: State, name: str) -> tuple[int, int]:
    producer_id, epoch = state.producers[name]
    return producer_id, epoch + 1


def stranger(state: State, name: str) -> tuple[int, int]:
    return state.producers[name][0] + 100_000, state.producers[name][1]


def init(timeout_ms: int = 600_000) -> Build:
    """As a producer that starts: it names no identity."""
    return lambda _state, name, _who: InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=timeout_ms
    )


def raise_epoch(state: State, name: str, who: Who) -> Message:
    producer_id, epoch = who(state, name)
    return InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=600_000,
        producer_id=producer_id,
        producer_epoch=epoch,
    )


def add(*places: tuple[str, int], version: int = 3, verify: bool = False) -> Build:
    kind = AddPartitionsToTxnRequest

    def build(state: State, name: str, who: Who) -> Message:
        producer_id, epoch = who(state, name)
        indexes: dict[str, list[int]] = {}
        for topic, index in places:
            indexes.setdefault(topic, []).append(index)
        topics = [kind.AddPartitionsToTxnTopic(name=t, partitions=i) for t, i in indexes.items()]
        if version < 4:
            return kind(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=topics,
            )
        one = kind.AddPartitionsToTxnTransaction(
            transactional_id=name,
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=verify,
            topics=topics,
        )
        return kind(transactions=[one])

    return build


def add_offsets(state: State, name: str, who: Who) -> Message:
    producer_id, epoch = who(state, name)
    return AddOffsetsToTxnRequest(
        transactional_id=name, producer_id=producer_id, producer_epoch=epoch, group_id=GROUP
    )


def commit_offsets(group: str = GROUP, topic: str = "out", **fields: Any) -> Build:
    kind = TxnOffsetCommitRequest

    def build(state: State, name: str, who: Who) -> Message:
        producer_id, epoch = who(state, name)
        part = kind.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=7, committed_metadata="m"
        )
        return kind(
            transactional_id=name,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[kind.TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
            **fields,
        )

    return build


def end(*, commit: bool) -> Build:
    def build(state: State, name: str, who: Who) -> Message:
        producer_id, epoch = who(state, name)
        return EndTxnRequest(
            transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=commit
        )

    return build


def batch_of(producer_id: int, epoch: int, sequence: int, count: int = 1, **extra: Any) -> bytes:
    records = [(TIME_MS + n, b"k", b"v%d" % n, []) for n in range(count)]
    return bytes(
        build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            **{"is_transactional": True, **extra},
        )
    )


def produce(
    topic: str,
    partition: int,
    sequence: int,
    count: int = 1,
    *,
    said: str | None = "",
    **extra: Any,
) -> Build:
    """said: the transactional id of the request where it is not the producer's own."""

    def build(state: State, name: str, who: Who) -> Message:
        data = batch_of(*who(state, name), sequence, count, **extra)
        part = ProduceRequest.PartitionProduceData(index=partition, records=data)
        return ProduceRequest(
            transactional_id=name if said == "" else said,
            acks=-1,
            timeout_ms=5000,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[part])],
        )

    return build


def markers(
    *places: tuple[str, int],
    commit: bool,
    coordinator_epoch: int,
    transaction_version: int = 0,
) -> Build:
    kind = WriteTxnMarkersRequest

    def build(state: State, name: str, who: Who) -> Message:
        producer_id, epoch = who(state, name)
        topics = [
            kind.WritableTxnMarkerTopic(name=topic, partition_indexes=[i]) for topic, i in places
        ]
        marker = kind.WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_result=commit,
            topics=topics,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
        )
        return kind(markers=[marker])

    return build


def describe(*names: str) -> Callable[[State], Message]:
    return lambda _: DescribeTransactionsRequest(transactional_ids=list(names))


def describe_producers(*places: tuple[str, int]) -> Callable[[State], Message]:
    kind = DescribeProducersRequest
    topics = [kind.TopicRequest(name=topic, partition_indexes=[i]) for topic, i in places]
    return lambda _: kind(topics=topics)


def fetch(topic: str, partition: int, offset: int = 0) -> Callable[[State], Message]:
    part = FetchRequest.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
    )
    return lambda _: FetchRequest(
        max_wait_ms=50,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[part])],
    )


def end_offset(topic: str, partition: int, isolation: int) -> Callable[[State], Message]:
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=-1)
    return lambda _: ListOffsetsRequest(
        isolation_level=isolation,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])],
    )


def offsets_of(group: str, *, stable: bool) -> Callable[[State], Message]:
    topic = OffsetFetchRequest.OffsetFetchRequestTopics(name="out", partition_indexes=[0])
    one = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[topic])
    return lambda _: OffsetFetchRequest(groups=[one], require_stable=stable)
