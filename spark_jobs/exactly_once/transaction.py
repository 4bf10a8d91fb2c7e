"""Requests of one transactional id to its coordinator: a transaction per batch.

Versions stay below those of KIP-890's second part (AddPartitionsToTxn 4, EndTxn 5, TxnOffsetCommit
5), which add partitions implicitly and raise the epoch by themselves: every broker since 0.11
serves these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kbroker.client.cluster import (
    GROUP_COORDINATOR,
    TRANSACTION_COORDINATOR,
    TopicPartition,
    group_by_topic,
)
from kbroker.protocol.apis import ApiKey
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

from ..wire.client import BlockingClient
from .tokens import EndOffsets

LAST_INIT_VERSION: Final = 5
LAST_ADD_PARTITIONS_VERSION: Final = 3
LAST_ADD_OFFSETS_VERSION: Final = 3
LAST_OFFSET_COMMIT_VERSION: Final = 3
LAST_END_VERSION: Final = 4
FIRST_VERSION_WITH_PRODUCER: Final = 3
"""Of InitProducerId: it names the producer that the caller had (KIP-360)."""

REFUSED_EPOCH_CODES: Final = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}
)


class Producer(NamedTuple):
    """The producer id of a transactional id, and its epoch."""

    producer_id: int
    producer_epoch: int


class TransactionalProducer:
    """Speaks for one transactional id. Every method raises KafkaError once its retries end."""

    def __init__(self, client: BlockingClient, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self._client = client

    def init(self, previous: Producer | None) -> Producer:
        """A new epoch. What an earlier epoch left open is aborted, what it had decided to commit is
        completed first; its tasks and drivers are fenced.

        previous: the producer that this driver had, if its transaction has ended; the broker then
        refuses (PRODUCER_FENCED, INVALID_PRODUCER_EPOCH) if another driver has had one since. None
        while a transaction may be open.

        A refusal of a repeated request may mean this driver: an earlier try was given the epoch,
        and the coordinator died with its answer. Its successor does not know who asked, for the
        log has no previous epochs (KAFKA-20357). Then this driver takes another epoch as if it
        began now, and if there is another driver, that one is fenced and stops. An earlier try that
        was refused for a transaction that is being ended (CONCURRENT_TRANSACTIONS) was given none.
        """
        is_in_doubt = False

        def attempt() -> Producer:
            nonlocal is_in_doubt
            try:
                return self._init(previous)
            except KafkaError as error:
                is_given_none = error.code is ErrorCode.CONCURRENT_TRANSACTIONS
                is_in_doubt |= error.code.retriable and not is_given_none
                raise

        try:
            return self._client.retry(attempt)
        except KafkaError as error:
            # The coordinator has forgotten the id since (transactional.id.expiration.ms).
            is_forgotten = error.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            may_be_own = is_in_doubt and error.code in REFUSED_EPOCH_CODES
            if previous is None or not (is_forgotten or may_be_own):
                raise
        return self._client.retry(lambda: self._init(None))

    def _init(self, previous: Producer | None) -> Producer:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms
        )
        if previous is not None and self._names_producers():
            request.producer_id, request.producer_epoch = previous
        response = self._client.to_coordinator(
            TRANSACTION_COORDINATOR,
            self.transactional_id,
            request,
            InitProducerIdResponse,
            max_version=LAST_INIT_VERSION,
        )
        self._check(response.error_code, "InitProducerId")
        return Producer(response.producer_id, response.producer_epoch)

    def _names_producers(self) -> bool:
        connection = self._client.coordinator_connection(
            TRANSACTION_COORDINATOR, self.transactional_id
        )
        version = connection.version_of(ApiKey.INIT_PRODUCER_ID, LAST_INIT_VERSION)
        return version >= FIRST_VERSION_WITH_PRODUCER

    def add_partitions(self, producer: Producer, partitions: Sequence[TopicPartition]) -> None:
        """Begin the transaction with these partitions, before anything is written to them."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in group_by_topic(partitions).items()
            ],
        )

        def add() -> None:
            response = self._client.to_coordinator(
                TRANSACTION_COORDINATOR,
                self.transactional_id,
                request,
                AddPartitionsToTxnResponse,
                max_version=LAST_ADD_PARTITIONS_VERSION,
            )
            errors = {
                TopicPartition(topic.name, result.partition_index): result.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for result in topic.results_by_partition
                if result.partition_error_code
            }
            # Partitions without a fault of their own have OPERATION_NOT_ATTEMPTED.
            for partition, code in sorted(
                errors.items(), key=lambda item: item[1] == ErrorCode.OPERATION_NOT_ATTEMPTED
            ):
                self._check(code, str(partition))

        self._client.retry(add)

    def commit_offsets(self, producer: Producer, group: str, offsets: EndOffsets) -> None:
        """Commit offsets of a consumer group in the transaction. The group has no live members."""

        def add() -> None:
            response = self._client.to_coordinator(
                TRANSACTION_COORDINATOR,
                self.transactional_id,
                AddOffsetsToTxnRequest(
                    transactional_id=self.transactional_id,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    group_id=group,
                ),
                AddOffsetsToTxnResponse,
                max_version=LAST_ADD_OFFSETS_VERSION,
            )
            self._check(response.error_code, f"group {group}")

        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset, committed_metadata=""
                        )
                        for index, offset in sorted(ends.items())
                    ],
                )
                for topic, ends in offsets.items()
            ],
        )

        def commit() -> None:
            response = self._client.to_coordinator(
                GROUP_COORDINATOR,
                group,
                request,
                TxnOffsetCommitResponse,
                max_version=LAST_OFFSET_COMMIT_VERSION,
            )
            for topic in response.topics:
                for result in topic.partitions:
                    if result.error_code:
                        self._client.forget_coordinator(GROUP_COORDINATOR, group)
                        partition = TopicPartition(topic.name, result.partition_index)
                        raise KafkaError(
                            ErrorCode(result.error_code), f"offset of {partition}, group {group}"
                        )

        self._client.retry(add)
        self._client.retry(commit)

    def commit(self, producer: Producer) -> None:
        """EndTxn, sent until it is answered: a repeated request has the same answer."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=True,
        )

        def end() -> None:
            response = self._client.to_coordinator(
                TRANSACTION_COORDINATOR,
                self.transactional_id,
                request,
                EndTxnResponse,
                max_version=LAST_END_VERSION,
            )
            self._check(response.error_code, "EndTxn")

        self._client.retry(end)

    def _check(self, code: int, what: str) -> None:
        if code:
            # It may be the answer of a broker that is the coordinator no longer.
            self._client.forget_coordinator(TRANSACTION_COORDINATOR, self.transactional_id)
            raise KafkaError(ErrorCode(code), what)
