"""The ends of partitions that other brokers lead: ListOffsets, one request in flight per leader
(Kafka's NetworkPartitionMetadataClient). What is asked meanwhile leaves in the next request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kbroker.broker.remote.batch_queues import ENTRY_BYTES, PARTITION_BYTES, BatchQueues
from kbroker.broker.remote.peer_brokers import PeerBrokers
from kbroker.coordinator.group.share.offset_descriptions import EndOffset, EndsFound
from kbroker.coordinator.transaction.records import by_topic
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, Memory
from kbroker.protocol.errors import ErrorCode, KafkaError, error_of
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

PURPOSE: Final = "end offsets"

MAX_ENTRIES: Final = 32
"""Questions of one request: 2,048 partitions, as a question has `pieces.PIECE_ITEMS` of them."""

LATEST_TIMESTAMP: Final = -1
CONSUMER: Final = -1
READ_UNCOMMITTED: Final = 0

_Topic = ListOffsetsRequest.ListOffsetsTopic
_Partition = ListOffsetsRequest.ListOffsetsPartition


class _Question:
    """Partitions of one leader."""

    __slots__ = ("partitions", "result")

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        self.partitions = partitions
        self.result: Deferred[EndsFound] = Deferred()

    def fail(self, error: ErrorCode) -> None:
        """Give every partition the same error."""
        self.result.resolve(dict.fromkeys(self.partitions, EndOffset(error, -1)))


class RemoteEndOffsets:
    """`EndOffsetLeaders`. memory: for questions under way; one that finds no room is answered with
    REQUEST_TIMED_OUT.
    """

    __slots__ = ("_peers", "_queues")

    def __init__(self, peers: PeerBrokers, memory: Memory) -> None:
        self._peers = peers
        self._queues: BatchQueues[int, _Question, ListOffsetsResponse] = BatchQueues(
            self._send,
            _settle,
            _fail,
            size=_size_of,
            memory=memory,
            max_entries=MAX_ENTRIES,
        )

    def ask(self, leader_id: int, partitions: Sequence[TopicPartition]) -> Deferred[EndsFound]:
        """See `EndOffsetLeaders`."""
        question = _Question(partitions)
        if not self._queues.add(leader_id, question):
            question.fail(ErrorCode.REQUEST_TIMED_OUT)
        return question.result

    def _send(
        self, leader_id: int, questions: Sequence[_Question]
    ) -> Deferred[ListOffsetsResponse]:
        # Each partition once: a leader refuses those that are named twice.
        partitions = dict.fromkeys(each for asked in questions for each in asked.partitions)
        request = ListOffsetsRequest(
            replica_id=CONSUMER,
            isolation_level=READ_UNCOMMITTED,
            topics=[
                _Topic(
                    name=name,
                    partitions=[
                        _Partition(partition_index=index, timestamp=LATEST_TIMESTAMP)
                        for index in indexes
                    ],
                )
                for name, indexes in by_topic(list(partitions)).items()
            ],
        )
        return self._peers.send(leader_id, PURPOSE, request, ListOffsetsResponse)


def _size_of(question: _Question) -> int:
    return ENTRY_BYTES + PARTITION_BYTES * len(question.partitions)


def _settle(questions: Sequence[_Question], response: ListOffsetsResponse) -> None:
    found = {
        TopicPartition(topic.name, each.partition_index): EndOffset(
            error_of(each.error_code), each.offset
        )
        for topic in response.topics
        for each in topic.partitions
    }
    missing = EndOffset(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    for question in questions:
        question.result.resolve({each: found.get(each, missing) for each in question.partitions})


def _fail(questions: Sequence[_Question], error: KafkaError) -> None:
    """There is no response. A leader that is fenced is about to be replaced."""
    is_gone = error.code is ErrorCode.BROKER_NOT_AVAILABLE
    for question in questions:
        question.fail(ErrorCode.LEADER_NOT_AVAILABLE if is_gone else error.code)
