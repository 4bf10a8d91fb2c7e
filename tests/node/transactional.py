"""A transactional producer that only sends requests, for either transaction.version."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kbroker.client.cluster import Client
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse

TRANSACTION_COORDINATOR = 1
AGAIN = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}

T = TypeVar("T")
R = TypeVar("R", bound=Response)


class TransactionalProducer:
    """version: 2 adds partitions with the batches (KIP-890), 0 before them."""

    def __init__(self, client: Client, transactional_id: str, version: int) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.version = version
        self.producer_id = self.epoch = -1
        self.sequences: Counter[TopicPartition] = Counter()
        self.errors: Counter[ErrorCode] = Counter()
        """Of requests that were sent again."""

    async def init(self) -> None:
        async def init() -> InitProducerIdResponse:
            request = InitProducerIdRequest(
                transactional_id=self.transactional_id, transaction_timeout_ms=60_000
            )
            return await self._ask(request, InitProducerIdResponse, max_version=5)

        found = await self._until_accepted(init, lambda answer: answer.error_code)
        self._begin_epoch(found.producer_id, found.producer_epoch)

    async def send(self, partition: TopicPartition, value: bytes) -> None:
        if self.version < 2:
            await self._add(partition)
        batch = build_batch(
            [(0, None, value, ())],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences[partition],
            is_transactional=True,
        )

        async def produce() -> ProduceResponse:
            kind = ProduceRequest
            data = kind.PartitionProduceData(index=partition.partition, records=memoryview(batch))
            topic = kind.TopicProduceData(name=partition.topic, partition_data=[data])
            request = kind(
                transactional_id=self.transactional_id,
                acks=-1,
                timeout_ms=10_000,
                topic_data=[topic],
            )
            version = 12 if self.version == 2 else 11
            return await self.client.to_leader(
                partition, request, ProduceResponse, max_version=version
            )

        await self._until_accepted(
            produce, lambda answer: answer.responses[0].partition_responses[0].error_code
        )
        self.sequences[partition] += 1

    async def _add(self, partition: TopicPartition) -> None:
        async def add() -> AddPartitionsToTxnResponse:
            topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                name=partition.topic, partitions=[partition.partition]
            )
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[topic],
            )
            return await self._ask(request, AddPartitionsToTxnResponse, max_version=3)

        def error(answer: AddPartitionsToTxnResponse) -> int:
            topic = answer.results_by_topic_v3_and_below[0]
            return topic.results_by_partition[0].partition_error_code

        await self._until_accepted(add, error)

    async def commit_offset(self, group_id: str, partition: TopicPartition, offset: int) -> None:
        """Commit an offset of a group in the transaction."""
        if self.version < 2:
            await self._add_group(group_id)

        async def commit_offset() -> TxnOffsetCommitResponse:
            kind = TxnOffsetCommitRequest
            index = kind.TxnOffsetCommitRequestPartition(
                partition_index=partition.partition, committed_offset=offset, committed_metadata=""
            )
            topic = kind.TxnOffsetCommitRequestTopic(name=partition.topic, partitions=[index])
            request = kind(
                transactional_id=self.transactional_id,
                group_id=group_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                topics=[topic],
            )
            self.client.forget_coordinator(group_id)
            version = 5 if self.version == 2 else 3
            return await self.client.to_coordinator(
                group_id, request, TxnOffsetCommitResponse, max_version=version
            )

        await self._until_accepted(
            commit_offset, lambda answer: answer.topics[0].partitions[0].error_code
        )

    async def _add_group(self, group_id: str) -> None:
        async def add() -> AddOffsetsToTxnResponse:
            request = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group_id,
            )
            return await self._ask(request, AddOffsetsToTxnResponse, max_version=3)

        await self._until_accepted(add, lambda answer: answer.error_code)

    async def end(self, *, commit: bool) -> None:
        async def end() -> EndTxnResponse:
            request = EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                committed=commit,
            )
            version = 5 if self.version == 2 else 4
            return await self._ask(request, EndTxnResponse, max_version=version)

        found = await self._until_accepted(end, lambda answer: answer.error_code)
        if self.version == 2:
            self._begin_epoch(found.producer_id, found.producer_epoch)

    def _begin_epoch(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch
        self.sequences.clear()

    async def _ask(self, request: Request, response_type: type[R], *, max_version: int) -> R:
        return await self.client.to_coordinator(
            self.transactional_id,
            request,
            response_type,
            key_type=TRANSACTION_COORDINATOR,
            max_version=max_version,
        )

    async def _until_accepted(
        self, ask: Callable[[], Awaitable[T]], error_code: Callable[[T], int]
    ) -> T:
        async with asyncio.timeout(30):
            while True:
                try:
                    answer = await ask()
                    error = ErrorCode(error_code(answer))
                    if error is ErrorCode.NONE:
                        return answer
                except KafkaError as raised:
                    error = raised.code
                assert error in AGAIN, error
                self.errors[error] += 1
                self.client.topics.clear()
                self.client.forget_coordinator(self.transactional_id, TRANSACTION_COORDINATOR)
                await asyncio.sleep(0.02)
