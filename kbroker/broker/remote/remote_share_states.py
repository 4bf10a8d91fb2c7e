"""The states of share partitions whose share coordinator is another broker: the five requests of
KIP-932, one queue per broker, API and group (Kafka's PersisterStateManager).

The coordinator is found by the metadata: the leader of the partition of `__share_group_state`.
Errors are retried by `coordinator/share_state/persister`, which looks for the coordinator anew each
time. The receiving side is `server/handlers/groups/share_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar, cast

from kbroker.broker.remote.batch_queues import ENTRY_BYTES, BatchQueues
from kbroker.broker.remote.peer_brokers import PeerBrokers
from kbroker.coordinator.share_state.service import ShareCoordinator
from kbroker.coordinator.share_state.topic import SHARE_TOPIC
from kbroker.metadata.image import MetadataImage
from kbroker.model import TopicIdPartition, Uuid
from kbroker.ports import Deferred, Memory
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError, error_of
from kbroker.protocol.messages.coordinators.share_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from kbroker.protocol.share_partition_state import (
    SharePlace,
    StateBatch,
    StateFound,
    StateSummary,
    StateWrite,
)

PURPOSE: Final = "share coordinator"

NO_LEADER_EPOCH: Final = 0
"""Of a summary, which is not fenced; as Kafka sends it."""

STATE_BATCH_BYTES: Final = 160
"""A batch of offsets in a call (measured)."""

A = TypeVar("A")
T = TypeVar("T")
R = TypeVar("R", bound=Response)
P = TypeVar("P")


class _Start(NamedTuple):
    """What a state is initialized with."""

    state_epoch: int
    start_offset: int


class _Call(Generic[A, T]):
    """A request about one share partition. argument: what the API says of it."""

    __slots__ = ("argument", "key", "result")

    def __init__(self, key: SharePlace, argument: A) -> None:
        self.key = key
        self.argument = argument
        self.result: Deferred[T] = Deferred()


class _Calls(Generic[A, T, R]):
    """The calls of one API. request: of a group and its calls. results: the result of each share
    partition in a response. failed: the result with an error. is_known: whether this broker's
    metadata have a topic. batch_count: of an argument. memory: for calls under way; one that finds
    no room is tried again like one that failed.
    """

    __slots__ = (
        "_batch_count",
        "_failed",
        "_is_known",
        "_peers",
        "_queues",
        "_request",
        "_response",
        "_results",
    )

    def __init__(
        self,
        peers: PeerBrokers,
        is_known: Callable[[Uuid], bool],
        memory: Memory,
        *,
        request: Callable[[str, Sequence[_Call[A, T]]], Request],
        response: type[R],
        results: Callable[[R], Iterable[tuple[TopicIdPartition, ErrorCode, T]]],
        failed: Callable[[ErrorCode], T],
        batch_count: Callable[[A], int] = lambda _: 0,
    ) -> None:
        self._peers = peers
        self._is_known = is_known
        self._request = request
        self._response = response
        self._results = results
        self._failed = failed
        self._batch_count = batch_count
        self._queues: BatchQueues[tuple[int, str], _Call[A, T], R] = BatchQueues(
            self._send, self._settle, self._fail, size=self._size_of, memory=memory
        )

    def ask(self, broker_id: int, key: SharePlace, argument: A) -> Deferred[T]:
        """Send a call to the coordinator of a share partition. Never fails."""
        call: _Call[A, T] = _Call(key, argument)
        if not self._queues.add((broker_id, key.group_id), call):
            call.result.resolve(self._failed(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return call.result

    def _size_of(self, call: _Call[A, T]) -> int:
        named = 2 * len(call.key.group_id)
        return ENTRY_BYTES + named + STATE_BATCH_BYTES * self._batch_count(call.argument)

    def _send(self, key: tuple[int, str], calls: Sequence[_Call[A, T]]) -> Deferred[R]:
        broker_id, group_id = key
        return self._peers.send(broker_id, PURPOSE, self._request(group_id, calls), self._response)

    def _settle(self, calls: Sequence[_Call[A, T]], response: R) -> None:
        found = {place: (error, result) for place, error, result in self._results(response)}
        for call in calls:
            place = call.key.place
            error, result = found.get(place, (ErrorCode.COORDINATOR_NOT_AVAILABLE, None))
            if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._is_known(place[0]):
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE  # its metadata are behind
            if result is None or error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                result = self._failed(error)
            call.result.resolve(result)

    def _fail(self, calls: Sequence[_Call[A, T]], error: KafkaError) -> None:
        """There is no response: another broker may be the coordinator soon."""
        del error
        for call in calls:
            call.result.resolve(self._failed(ErrorCode.COORDINATOR_NOT_AVAILABLE))


class RoutedShareStates:
    """`ShareStates`: of this broker's coordinator, or of another one. image: the metadata as
    clients see them. memory: see `_Calls`.
    """

    __slots__ = (
        "_coordinator",
        "_delete",
        "_image",
        "_initialize",
        "_node_id",
        "_read",
        "_summarize",
        "_write",
    )

    def __init__(
        self,
        node_id: int,
        coordinator: ShareCoordinator,
        peers: PeerBrokers,
        image: Callable[[], MetadataImage],
        memory: Memory,
    ) -> None:
        self._node_id = node_id
        self._coordinator = coordinator
        self._image = image

        def is_known(topic_id: Uuid) -> bool:
            return topic_id in image().topics_by_id

        self._read: _Calls[int, StateFound, ReadShareGroupStateResponse] = _Calls(
            peers,
            is_known,
            memory,
            request=_read_request,
            response=ReadShareGroupStateResponse,
            results=_states,
            failed=StateFound,
        )
        self._write: _Calls[StateWrite, ErrorCode, WriteShareGroupStateResponse] = _Calls(
            peers,
            is_known,
            memory,
            request=_write_request,
            response=WriteShareGroupStateResponse,
            results=_errors,
            failed=_same,
            batch_count=lambda write: len(write.batches),
        )
        self._initialize: _Calls[_Start, ErrorCode, InitializeShareGroupStateResponse] = _Calls(
            peers,
            is_known,
            memory,
            request=_initialize_request,
            response=InitializeShareGroupStateResponse,
            results=_errors,
            failed=_same,
        )
        self._delete: _Calls[None, ErrorCode, DeleteShareGroupStateResponse] = _Calls(
            peers,
            is_known,
            memory,
            request=_delete_request,
            response=DeleteShareGroupStateResponse,
            results=_errors,
            failed=_same,
        )
        self._summarize: _Calls[None, StateSummary, ReadShareGroupStateSummaryResponse] = _Calls(
            peers,
            is_known,
            memory,
            request=_summary_request,
            response=ReadShareGroupStateSummaryResponse,
            results=_summaries,
            failed=StateSummary,
        )

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        """See `ShareStates`."""
        broker_id = self._other_coordinator(key)
        if broker_id is None:
            return self._coordinator.read(key, leader_epoch)
        return self._read.ask(broker_id, key, leader_epoch)

    def write(self, key: SharePlace, write: StateWrite) -> Deferred[ErrorCode]:
        """See `ShareStates`."""
        broker_id = self._other_coordinator(key)
        if broker_id is None:
            return self._coordinator.write(key, write)
        return self._write.ask(broker_id, key, write)

    def initialize(
        self, key: SharePlace, state_epoch: int, start_offset: int
    ) -> Deferred[ErrorCode]:
        """See `ShareStates`."""
        broker_id = self._other_coordinator(key)
        if broker_id is None:
            return self._coordinator.initialize(key, state_epoch, start_offset)
        return self._initialize.ask(broker_id, key, _Start(state_epoch, start_offset))

    def delete(self, key: SharePlace) -> Deferred[ErrorCode]:
        """See `ShareStates`."""
        broker_id = self._other_coordinator(key)
        if broker_id is None:
            return self._coordinator.delete(key)
        return self._delete.ask(broker_id, key, None)

    def summarize(self, key: SharePlace) -> Deferred[StateSummary]:
        """See `ShareStates`."""
        broker_id = self._other_coordinator(key)
        if broker_id is None:
            return self._coordinator.summarize(key)
        return self._summarize.ask(broker_id, key, None)

    def _other_coordinator(self, key: SharePlace) -> int | None:
        """The id of the broker that coordinates a share partition. None: this broker, or there is
        none at present, which this broker's coordinator answers with NOT_COORDINATOR.
        """
        index = self._coordinator.partition_of(key)
        partition = self._image().partition(SHARE_TOPIC, index)
        if partition is None or not partition.has_leader or partition.leader == self._node_id:
            return None
        return partition.leader


def _same(error: ErrorCode) -> ErrorCode:
    return error


# -- requests --------------------------------------------------------------------------------------


def _by_topic(calls: Sequence[_Call[A, T]], part: Callable[[int, A], P]) -> dict[Uuid, list[P]]:
    """What a request says of each partition, by topic id."""
    found: dict[Uuid, list[P]] = {}
    for call in calls:
        topic_id, partition = call.key.place
        found.setdefault(topic_id, []).append(part(partition, call.argument))
    return found


def _read_request(group_id: str, calls: Sequence[_Call[int, StateFound]]) -> Request:
    kind = ReadShareGroupStateRequest
    topics = _by_topic(
        calls, lambda partition, epoch: kind.PartitionData(partition=partition, leader_epoch=epoch)
    )
    return kind(
        group_id=group_id,
        topics=[
            kind.ReadStateData(topic_id=topic_id, partitions=parts)
            for topic_id, parts in topics.items()
        ],
    )


def _write_request(group_id: str, calls: Sequence[_Call[StateWrite, ErrorCode]]) -> Request:
    kind = WriteShareGroupStateRequest

    def part(partition: int, write: StateWrite) -> WriteShareGroupStateRequest.PartitionData:
        return kind.PartitionData(
            partition=partition,
            state_epoch=write.state_epoch,
            leader_epoch=write.leader_epoch,
            start_offset=write.start_offset,
            delivery_complete_count=write.delivery_complete_count,
            # as they are: the encoder asks for the fields' names only
            state_batches=cast(list[WriteShareGroupStateRequest.StateBatch], write.batches),
        )

    return kind(
        group_id=group_id,
        topics=[
            kind.WriteStateData(topic_id=topic_id, partitions=parts)
            for topic_id, parts in _by_topic(calls, part).items()
        ],
    )


def _initialize_request(group_id: str, calls: Sequence[_Call[_Start, ErrorCode]]) -> Request:
    kind = InitializeShareGroupStateRequest

    def part(partition: int, start: _Start) -> InitializeShareGroupStateRequest.PartitionData:
        return kind.PartitionData(
            partition=partition, state_epoch=start.state_epoch, start_offset=start.start_offset
        )

    return kind(
        group_id=group_id,
        topics=[
            kind.InitializeStateData(topic_id=topic_id, partitions=parts)
            for topic_id, parts in _by_topic(calls, part).items()
        ],
    )


def _delete_request(group_id: str, calls: Sequence[_Call[None, ErrorCode]]) -> Request:
    kind = DeleteShareGroupStateRequest
    topics = _by_topic(calls, lambda partition, _: kind.PartitionData(partition=partition))
    return kind(
        group_id=group_id,
        topics=[
            kind.DeleteStateData(topic_id=topic_id, partitions=parts)
            for topic_id, parts in topics.items()
        ],
    )


def _summary_request(group_id: str, calls: Sequence[_Call[None, StateSummary]]) -> Request:
    kind = ReadShareGroupStateSummaryRequest
    topics = _by_topic(
        calls,
        lambda partition, _: kind.PartitionData(partition=partition, leader_epoch=NO_LEADER_EPOCH),
    )
    return kind(
        group_id=group_id,
        topics=[
            kind.ReadStateSummaryData(topic_id=topic_id, partitions=parts)
            for topic_id, parts in topics.items()
        ],
    )


# -- responses -------------------------------------------------------------------------------------


def _errors(
    response: InitializeShareGroupStateResponse
    | WriteShareGroupStateResponse
    | DeleteShareGroupStateResponse,
) -> Iterator[tuple[TopicIdPartition, ErrorCode, ErrorCode]]:
    for topic in response.results:
        for found in topic.partitions:
            error = error_of(found.error_code)
            yield (bytes(topic.topic_id), found.partition), error, error


def _states(
    response: ReadShareGroupStateResponse,
) -> Iterator[tuple[TopicIdPartition, ErrorCode, StateFound]]:
    for topic in response.results:
        for found in topic.partitions:
            error = error_of(found.error_code)
            batches = [
                StateBatch(
                    batch.first_offset,
                    batch.last_offset,
                    batch.delivery_state,
                    batch.delivery_count,
                )
                for batch in found.state_batches
            ]
            state = StateFound(error, found.state_epoch, found.start_offset, batches)
            yield (bytes(topic.topic_id), found.partition), error, state


def _summaries(
    response: ReadShareGroupStateSummaryResponse,
) -> Iterator[tuple[TopicIdPartition, ErrorCode, StateSummary]]:
    for topic in response.results:
        for found in topic.partitions:
            error = error_of(found.error_code)
            summary = StateSummary(
                error,
                found.start_offset,
                found.leader_epoch,
                found.delivery_complete_count,
                found.state_epoch,
            )
            yield (bytes(topic.topic_id), found.partition), error, summary
