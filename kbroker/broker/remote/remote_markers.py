"""The markers of transactions in partitions that other brokers lead: WriteTxnMarkers, one queue per
broker (Kafka's TransactionMarkerChannelManager and TransactionMarkerRequestCompletionHandler).

What fails is written again by the transaction's shard (`coordinator/transaction/completion`), to
the leader that is known by then. The receiving side is
`server/handlers/transactions/transaction_tools`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kbroker.broker.remote.batch_queues import ENTRY_BYTES, PARTITION_BYTES, BatchQueues
from kbroker.broker.remote.peer_brokers import PeerBrokers
from kbroker.coordinator.transaction.markers import MarkerResults, WriteMarkers
from kbroker.coordinator.transaction.records import by_topic
from kbroker.metadata.image import MetadataImage
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, Memory
from kbroker.protocol.errors import ErrorCode, KafkaError, error_of
from kbroker.protocol.messages.coordinators.transactions import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

PURPOSE: Final = "transaction markers"

_Topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic
_Marker = WriteTxnMarkersRequest.WritableTxnMarker


class _Entry:
    """A marker for partitions of one leader."""

    __slots__ = ("coordinator_epoch", "partitions", "request", "result")

    def __init__(
        self, request: WriteMarkers, partitions: Sequence[TopicPartition], coordinator_epoch: int
    ) -> None:
        self.request = request
        self.partitions = partitions
        self.coordinator_epoch = coordinator_epoch
        self.result: Deferred[MarkerResults] = Deferred()

    def fail_all(self, error: ErrorCode) -> None:
        """Give every partition the same outcome."""
        self.result.resolve(dict.fromkeys(self.partitions, error))


class RemoteMarkers:
    """`MarkerLeaders`. image: gives the newest metadata. memory: for markers under way; one that
    finds no room is tried again like one that failed.
    """

    __slots__ = ("_image", "_peers", "_queues", "node_id")

    def __init__(
        self,
        node_id: int,
        peers: PeerBrokers,
        image: Callable[[], MetadataImage],
        memory: Memory,
    ) -> None:
        self.node_id = node_id
        self._peers = peers
        self._image = image
        self._queues: BatchQueues[int, _Entry, WriteTxnMarkersResponse] = BatchQueues(
            self._send, _settle, _fail, size=_size_of, memory=memory
        )

    def leader_of(self, partition: TopicPartition) -> int | None:
        """See `MarkerLeaders`."""
        found = self._image().partition(*partition)
        return None if found is None else found.leader

    def write_markers(
        self,
        leader_id: int,
        request: WriteMarkers,
        partitions: Sequence[TopicPartition],
        *,
        coordinator_epoch: int,
    ) -> Deferred[MarkerResults]:
        """See `MarkerLeaders`."""
        entry = _Entry(request, partitions, coordinator_epoch)
        if not self._queues.add(leader_id, entry):
            entry.fail_all(ErrorCode.NETWORK_EXCEPTION)
        return entry.result

    def drop(self, is_dropped: Callable[[str], bool]) -> None:
        """See `MarkerWriter`."""
        removed = self._queues.remove_all(lambda entry: is_dropped(entry.request.transactional_id))
        for entry in removed:
            entry.fail_all(ErrorCode.NOT_COORDINATOR)

    def _send(self, leader_id: int, entries: Sequence[_Entry]) -> Deferred[WriteTxnMarkersResponse]:
        request = WriteTxnMarkersRequest(markers=[_marker_of(entry) for entry in entries])
        return self._peers.send(leader_id, PURPOSE, request, WriteTxnMarkersResponse)


def _size_of(entry: _Entry) -> int:
    return ENTRY_BYTES + PARTITION_BYTES * len(entry.partitions)


def _marker_of(entry: _Entry) -> WriteTxnMarkersRequest.WritableTxnMarker:
    asked = entry.request
    return _Marker(
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        transaction_result=asked.commit,
        topics=[
            _Topic(name=name, partition_indexes=indexes)
            for name, indexes in by_topic(entry.partitions).items()
        ],
        coordinator_epoch=entry.coordinator_epoch,
        transaction_version=asked.transaction_version,
    )


def _settle(entries: Sequence[_Entry], response: WriteTxnMarkersResponse) -> None:
    """Give each partition of each marker its outcome. By producer id, not by position: Apache Kafka
    answers all markers of a producer in one result.
    """
    found: dict[int, dict[TopicPartition, ErrorCode]] = {}
    for marker in response.markers:
        errors = found.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            for partition in topic.partitions:
                named = TopicPartition(topic.name, partition.partition_index)
                errors[named] = _outcome_of(error_of(partition.error_code))
    nothing: dict[TopicPartition, ErrorCode] = {}
    for entry in entries:
        errors = found.get(entry.request.producer_id, nothing)
        entry.result.resolve(
            {
                partition: errors.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
                for partition in entry.partitions
            }
        )


def _outcome_of(error: ErrorCode) -> ErrorCode:
    """A leader whose metadata are behind does not know the partition yet. Whether it was deleted,
    the metadata of the coordinator say when the marker is written again.
    """
    if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return error


def _fail(entries: Sequence[_Entry], error: KafkaError) -> None:
    """There is no response. A broker that does not serve the API yet is asked again too."""
    del error
    for entry in entries:
        entry.fail_all(ErrorCode.NETWORK_EXCEPTION)
