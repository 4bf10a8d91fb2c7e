"""Writes the rows of one task attempt: claims, batches, Produce requests.

While one request per broker is under way the next batches are encoded. A request that failed is
sent again batch by batch; batches keep their sequences, so that none is appended twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from kbroker.client.cluster import STALE_METADATA, TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.produce import ProduceResponse

from ..wire.client import BlockingClient
from ..wire.connection import Connection
from .batches import BatchBuffer, SealedBatch
from .claims import Claims
from .errors import task_failure
from .grant import Grant
from .produce import (
    LAST_VERSION,
    answer_error,
    answers,
    produce,
    produce_request,
)
from .runs import Span, add_span

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_BYTES: Final = 1024 * 1024
"""Small batches of one leader share a request up to this size."""

_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class _InFlight(NamedTuple):
    """A request that is under way. connection: None if it could not be sent."""

    connection: Connection | None
    correlation_id: int
    batches: Sequence[SealedBatch]


class TaskWriter:
    """One attempt of one task. After an exception it must not be used again."""

    def __init__(self, grant: Grant, client: BlockingClient, claims: Claims) -> None:
        self._grant = grant
        self._client = client
        self._claims = claims
        self._buffer = BatchBuffer(grant)
        self._in_flight: dict[int, _InFlight] = {}
        self._acknowledged: dict[TopicPartition, list[Span]] = {}

    def write(self, topic_partition: TopicPartition, block: pa.RecordBatch) -> None:
        """Take the records of a block (`blocks`); batches that are full are sent. Raises
        TaskFailure and AttemptRefused.
        """
        sealed = self._buffer.add(topic_partition, block)
        if sealed:
            self._send(sealed)

    def finish(self) -> dict[TopicPartition, int]:
        """Send what is left and wait until everything is acknowledged. Returns the number of
        records by partition. Raises as `write` does.
        """
        self._send(self._buffer.seal_all())
        for node_id in list(self._in_flight):
            self._settle(node_id)
        return self._buffer.record_counts()

    def target_offsets(self) -> dict[TopicPartition, list[Span]]:
        """By partition: the offsets that the records have in the target, after `finish`."""
        found: dict[TopicPartition, list[Span]] = {}
        for partition, spans in self._acknowledged.items():
            merged = found[partition] = list[Span]()
            for span in sorted(spans):
                add_span(merged, *span)
        return found

    def _acknowledge(self, batch: SealedBatch, base_offset: int) -> None:
        spans = self._acknowledged.setdefault(batch.topic_partition, [])
        add_span(spans, batch.base_sequence, base_offset, batch.record_count)

    def _send(self, sealed: Sequence[SealedBatch]) -> None:
        self._claims.ensure(list(dict.fromkeys(batch.topic_partition for batch in sealed)))
        for group in _groups(sealed):
            by_leader: dict[int, list[SealedBatch]] = {}
            for batch in group:
                by_leader.setdefault(self._leader(batch.topic_partition), []).append(batch)
            for node_id, batches in by_leader.items():
                self._send_to(node_id, batches)

    def _leader(self, topic_partition: TopicPartition) -> int:
        try:
            return self._client.retry(lambda: self._client.leader(topic_partition))
        except KafkaError as error:
            raise task_failure(error, f"looking for the leader of {topic_partition}") from error

    def _send_to(self, node_id: int, batches: Sequence[SealedBatch]) -> None:
        """Send a request after the last one of that broker, and after any that has a batch of the
        same partition: its leader may have changed.
        """
        partitions = {batch.topic_partition for batch in batches}
        for other_id, other in list(self._in_flight.items()):
            if other_id == node_id or any(b.topic_partition in partitions for b in other.batches):
                self._settle(other_id)
        request = produce_request(
            {batch.topic_partition: batch.data for batch in batches},
            timeout_ms=self._grant.limits.produce_timeout_ms,
            transactional_id=self._grant.transactional_id,
        )
        connection, correlation_id = None, 0
        try:
            opened = self._client.node(node_id)
            version = opened.version_of(request.API_KEY, LAST_VERSION)
            correlation_id = opened.send(request, version)
            connection = opened
        except KafkaError as error:
            if not error.code.retriable:
                raise task_failure(error, f"writing to broker {node_id}") from error
        self._in_flight[node_id] = _InFlight(connection, correlation_id, batches)

    def _settle(self, node_id: int) -> None:
        """Wait for the response of the request to a broker; send again what it did not append."""
        request = self._in_flight.pop(node_id)
        outcome = None
        if request.connection is not None:
            try:
                response = request.connection.receive(request.correlation_id, ProduceResponse)
                outcome = answers(response)
            except KafkaError as error:
                if not error.code.retriable:
                    raise task_failure(error, f"writing to broker {node_id}") from error
        if outcome is None:
            self._client.forget_leaders()
        for batch in request.batches:
            if outcome is None:
                self._redeliver(batch, None)
                continue
            answer = outcome.get(batch.topic_partition)
            refusal = answer_error(batch.topic_partition, answer)
            if refusal is not None or answer is None:
                self._redeliver(batch, refusal)
            else:
                self._acknowledge(batch, answer.base_offset)

    def _redeliver(self, batch: SealedBatch, refusal: KafkaError | None) -> None:
        """Send a batch until it is acknowledged. refusal: its first response; None if there was no
        response.
        """
        try:
            if refusal is not None:
                if refusal.code in STALE_METADATA:
                    self._client.forget_leaders()
                if not refusal.code.retriable:
                    raise refusal
            base_offset = produce(
                self._client,
                batch.topic_partition,
                batch.data,
                timeout_ms=self._grant.limits.produce_timeout_ms,
                transactional_id=self._grant.transactional_id,
            )
            self._acknowledge(batch, base_offset)
        except KafkaError as failure:
            if failure.code not in _TOO_LARGE:
                raise task_failure(failure, f"writing to {batch.topic_partition}") from failure
            for half in self._buffer.split(batch):
                self._redeliver(half, None)


def _groups(sealed: Iterable[SealedBatch]) -> Iterator[list[SealedBatch]]:
    """Cut a sequence of batches where a request would have two of one partition or be too large."""
    group: list[SealedBatch] = []
    partitions: set[TopicPartition] = set()
    size_bytes = 0
    for batch in sealed:
        is_full = size_bytes + len(batch.data) > GROUP_BYTES
        if group and (is_full or batch.topic_partition in partitions):
            yield group
            group, partitions, size_bytes = [], set(), 0
        group.append(batch)
        partitions.add(batch.topic_partition)
        size_bytes += len(batch.data)
    if group:
        yield group
