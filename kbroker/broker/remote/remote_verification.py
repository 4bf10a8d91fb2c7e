"""Asking transaction coordinators on other brokers whether partitions belong to a transaction, or
telling them to add partitions (AddPartitionsToTxn v4 and later, KIP-890; Kafka's
AddPartitionsToTxnManager).

One request is in flight per broker. At most one question of a transactional id waits behind it.
`transaction_gate` asks, and makes sure that no marker was written meanwhile. The receiving side is
`server/handlers/transactions/transactions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kbroker.broker.remote.batch_queues import ENTRY_BYTES, PARTITION_BYTES, BatchQueues
from kbroker.broker.remote.peer_brokers import PeerBrokers
from kbroker.broker.transaction_gate import Verdicts
from kbroker.coordinator.transaction.producer import Producer
from kbroker.coordinator.transaction.records import by_topic
from kbroker.coordinator.transaction.service import TRANSACTION_TOPIC
from kbroker.metadata.image import MetadataImage
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, Memory
from kbroker.protocol.errors import ErrorCode, KafkaError, error_of
from kbroker.protocol.messages.coordinators.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)

PURPOSE: Final = "transaction verification"

_Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
_Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction


class _Question:
    """Of one transactional id. adds: whether the partitions are to be added."""

    __slots__ = ("adds", "partitions", "producer", "result", "transactional_id")

    def __init__(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer = producer
        self.partitions = partitions
        self.adds = adds
        self.result: Deferred[Verdicts] = Deferred()

    def answer(self, error: ErrorCode) -> None:
        """The same for every partition."""
        self.result.resolve(dict.fromkeys(self.partitions, error))


class RemoteCoordinators:
    """`OtherCoordinators`. image: the metadata as clients see them. partition_for: the partition of
    `__transaction_state` of a transactional id. memory: for questions under way; one that finds no
    room is answered as if its request had failed, and the producer sends its batches again.
    """

    __slots__ = ("_image", "_node_id", "_partition_for", "_peers", "_queues", "_waiting")

    def __init__(
        self,
        node_id: int,
        peers: PeerBrokers,
        image: Callable[[], MetadataImage],
        partition_for: Callable[[str], int],
        memory: Memory,
    ) -> None:
        self._node_id = node_id
        self._peers = peers
        self._image = image
        self._partition_for = partition_for
        self._waiting: dict[tuple[int, str], _Question] = {}
        """By coordinator and transactional id."""
        self._queues: BatchQueues[int, _Question, AddPartitionsToTxnResponse] = BatchQueues(
            self._send, _settle, _fail, size=_size_of, memory=memory
        )

    def ask(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Deferred[Verdicts] | None:
        """See `OtherCoordinators`.

        A question of the same transactional id that still waits is answered at once: its epoch is
        stale, or the producer has sent the batches again. A stale one is not asked.
        """
        index = self._partition_for(transactional_id)
        partition = self._image().partition(TRANSACTION_TOPIC, index)
        if partition is None or not partition.has_leader:
            return Deferred.of(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        coordinator_id = partition.leader
        if coordinator_id == self._node_id:
            return None
        question = _Question(transactional_id, producer, partitions, adds=adds)
        key = coordinator_id, transactional_id
        replaced = self._waiting.get(key)
        epoch = -1 if replaced is None else replaced.producer.producer_epoch
        if epoch > producer.producer_epoch:
            question.answer(ErrorCode.INVALID_PRODUCER_EPOCH)
            return question.result
        self._waiting[key] = question
        if not self._queues.add(coordinator_id, question):
            if replaced is None:
                del self._waiting[key]
            else:
                self._waiting[key] = replaced
            question.answer(ErrorCode.NETWORK_EXCEPTION)
        elif replaced is not None:
            self._queues.remove(coordinator_id, replaced)
            is_stale = epoch < producer.producer_epoch
            replaced.answer(
                ErrorCode.INVALID_PRODUCER_EPOCH if is_stale else ErrorCode.NETWORK_EXCEPTION
            )
        return question.result

    def _send(
        self, coordinator_id: int, questions: Sequence[_Question]
    ) -> Deferred[AddPartitionsToTxnResponse]:
        for question in questions:
            del self._waiting[coordinator_id, question.transactional_id]
        request = AddPartitionsToTxnRequest(transactions=[_asked(each) for each in questions])
        return self._peers.send(coordinator_id, PURPOSE, request, AddPartitionsToTxnResponse)


def _size_of(question: _Question) -> int:
    return (
        ENTRY_BYTES
        + 2 * len(question.transactional_id)
        + PARTITION_BYTES * len(question.partitions)
    )


def _asked(question: _Question) -> AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction:
    return _Transaction(
        transactional_id=question.transactional_id,
        producer_id=question.producer.producer_id,
        producer_epoch=question.producer.producer_epoch,
        verify_only=not question.adds,
        topics=[
            _Topic(name=name, partitions=indexes)
            for name, indexes in by_topic(question.partitions).items()
        ],
    )


def _settle(questions: Sequence[_Question], response: AddPartitionsToTxnResponse) -> None:
    if response.error_code:
        error = error_of(response.error_code)
        if error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            # A producer can do nothing about that; nothing is verified.
            error = ErrorCode.INVALID_TXN_STATE
        for question in questions:
            question.answer(error)
        return
    found: dict[str, Verdicts] = {}
    for result in response.results_by_transaction:
        verdicts = found.setdefault(result.transactional_id, {})
        for topic in result.topic_results:
            for each in topic.results_by_partition:
                partition = TopicPartition(topic.name, each.partition_index)
                verdicts[partition] = _verdict_of(error_of(each.partition_error_code))
    nothing: Verdicts = {}
    for question in questions:
        verdicts = found.get(question.transactional_id, nothing)
        question.result.resolve(
            {
                partition: verdicts.get(partition, ErrorCode.NETWORK_EXCEPTION)
                for partition in question.partitions
            }
        )


def _verdict_of(error: ErrorCode) -> ErrorCode:
    """A coordinator whose metadata are behind answers UNKNOWN_TOPIC_OR_PARTITION for a new
    partition, after which producers send again, and OPERATION_NOT_ATTEMPTED for all others, after
    which they abort the transaction: those are asked for again.
    """
    return ErrorCode.NETWORK_EXCEPTION if error is ErrorCode.OPERATION_NOT_ATTEMPTED else error


def _fail(questions: Sequence[_Question], error: KafkaError) -> None:
    """There is no response. A broker before Kafka 3.8 cannot be asked: then nothing is verified, as
    in Kafka.
    """
    for question in questions:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            question.answer(ErrorCode.NONE)
        elif error.code is ErrorCode.BROKER_NOT_AVAILABLE:
            question.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            question.answer(ErrorCode.NETWORK_EXCEPTION)
