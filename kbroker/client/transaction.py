"""The transaction of a producer, as its coordinator knows it (KIP-98).

    begun --add--> open --end--> begun

The requests are those of a client before transaction.version 2 (KIP-890), which every broker
serves: a partition is added before its first batch is sent, and the epoch stays the same.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from kbroker.client.cluster import TRANSACTION_COORDINATOR, Client, check
from kbroker.model import TopicPartition
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

LAST_PRODUCE_VERSION: Final = 11
_LAST_INIT_VERSION: Final = 5
_LAST_ADD_VERSION: Final = 3
_LAST_END_VERSION: Final = 4
"""Later versions mean transaction.version 2, or are requests of brokers."""

_OTHER_COORDINATOR: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)

R = TypeVar("R", bound=Response)


class ProducerIdentity(NamedTuple):
    """What the coordinator gave a transactional id."""

    producer_id: int
    producer_epoch: int


class Transaction:
    """The transactions of one transactional id, one after the other."""

    def __init__(self, client: Client, transactional_id: str, timeout_ms: int) -> None:
        self._client = client
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._identity = ProducerIdentity(-1, -1)
        self._partitions: set[TopicPartition] = set()
        self._is_open = False

    async def begin(self) -> ProducerIdentity:
        """Get a producer id and epoch; a transaction that another producer of this id has open is
        aborted, and that producer fenced. Raises KafkaError.
        """
        request = InitProducerIdRequest(
            transactional_id=self._id, transaction_timeout_ms=self._timeout_ms
        )

        async def attempt() -> ProducerIdentity:
            response = await self._ask(request, InitProducerIdResponse, _LAST_INIT_VERSION)
            self._check(response.error_code, "InitProducerId")
            return ProducerIdentity(response.producer_id, response.producer_epoch)

        self._identity = await self._client.retry(attempt)
        return self._identity

    async def add(self, topic_partition: TopicPartition) -> None:
        """Make a partition part of the transaction, if it is not yet. Raises KafkaError."""
        if topic_partition in self._partitions:
            return
        self._is_open = True  # perhaps also where no response arrives
        topic, partition = topic_partition
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._identity.producer_id,
            v3_and_below_producer_epoch=self._identity.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                    name=topic, partitions=[partition]
                )
            ],
        )

        async def attempt() -> None:
            response = await self._ask(request, AddPartitionsToTxnResponse, _LAST_ADD_VERSION)
            for each in response.results_by_topic_v3_and_below:
                for result in each.results_by_partition:
                    self._check(result.partition_error_code, f"AddPartitionsToTxn {each.name}")

        await self._client.retry(attempt)
        self._partitions.add(topic_partition)

    async def end(self, *, committed: bool) -> None:
        """Commit or abort the transaction, if one is open. Raises KafkaError; then it may have
        ended or not.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._partitions.clear()
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            committed=committed,
        )

        async def attempt() -> None:
            response = await self._ask(request, EndTxnResponse, _LAST_END_VERSION)
            self._check(response.error_code, "EndTxn")

        await self._client.retry(attempt)

    async def _ask(self, request: Request, response_type: type[R], max_version: int) -> R:
        return await self._client.to_coordinator(
            self._id,
            request,
            response_type,
            key_type=TRANSACTION_COORDINATOR,
            max_version=max_version,
        )

    def _check(self, code: int, action: str) -> None:
        if code in _OTHER_COORDINATOR:
            self._client.forget_coordinator(self._id, TRANSACTION_COORDINATOR)
        check(code, f"{action} of transactional id {self._id}")
