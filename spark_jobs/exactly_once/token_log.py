"""Reading the topic of tokens: the newest committed token of a query, and raw records for `claims`.
`map_log` reads offset maps with the same functions.

A token counts once its transaction is committed. The log is read up to its end, not only to its
last stable offset: that may be held back by a transaction of another query in the same partition,
and a token beyond it, if it were not seen, would be a batch written twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kbroker.client.cluster import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TopicPartition,
)
from kbroker.client.consumer import ConsumedRecord, decode_fetched
from kbroker.client.producer import murmur2
from kbroker.protocol.batches.any_magic import iter_any_records
from kbroker.protocol.batches.batch_header import BatchHeader
from kbroker.protocol.batches.control_records import ControlType, control_type
from kbroker.protocol.batches.records import Record
from kbroker.protocol.errors import ErrorCode, KafkaError

from ..wire.client import BlockingClient
from ..wire.fetch import batches_of, fetch
from ..wire.offsets import list_offset
from .errors import sink_error
from .tokens import Token


def tokens_partition(transactional_id: str, partition_count: int) -> int:
    """The partition of the topic of tokens that belongs to a transactional id."""
    return (murmur2(transactional_id.encode()) & 0x7FFFFFFF) % partition_count


def read_uncommitted(
    client: BlockingClient, topic_partition: TopicPartition, start: int, end: int
) -> Iterator[tuple[BatchHeader, Record]]:
    """The records in [start, end) with their batches, those of control batches and of open and
    aborted transactions too. Raises KafkaError.
    """
    position = start
    while position < end:
        data = client.retry(partial(fetch, client, topic_partition, position, READ_UNCOMMITTED))
        before = position
        for header, batch in batches_of(data):
            if header.last_offset < position or header.base_offset >= end:
                continue
            for record in iter_any_records(batch, header):
                if before <= record.offset < end:
                    yield header, record
            position = header.next_offset
        if position == before:
            raise _not_there_yet(topic_partition, position)


def read_stable(
    client: BlockingClient, topic_partition: TopicPartition, start: int, end: int
) -> Iterator[tuple[list[ConsumedRecord], int]]:
    """The committed records from start up to the last stable offset or end, by Fetch, with the
    offset to go on at. Raises KafkaError.
    """
    position = start
    while position < end:
        before = position
        records, position = client.retry(
            partial(_read_stable_once, client, topic_partition, before)
        )
        if position == before:
            return
        yield records, position


def _read_stable_once(
    client: BlockingClient, topic_partition: TopicPartition, position: int
) -> tuple[list[ConsumedRecord], int]:
    data = fetch(client, topic_partition, position, READ_COMMITTED)
    records, following = decode_fetched(topic_partition, data, position, READ_COMMITTED)
    if following == position and data.last_stable_offset > position:
        raise _not_there_yet(topic_partition, position)
    return list(records), following


def read_unstable(
    client: BlockingClient, topic_partition: TopicPartition, key: bytes, start: int, end: int
) -> list[Record]:
    """The committed records of a key in [start, end), above the last stable offset. The cleaner
    removes nothing there, so that each transaction's marker stands behind its records.

    Raises KafkaError: CONCURRENT_TRANSACTIONS, which may be retried with the end as it is then,
    while a transaction with records of the key is open.
    """
    found: list[Record] = []
    undecided: dict[int, list[Record]] = {}
    for header, record in read_uncommitted(client, topic_partition, start, end):
        if header.is_control:
            decided = undecided.pop(header.producer_id, [])
            if control_type(record) is ControlType.COMMIT:
                found += decided
        elif record.key == key and record.value is not None:
            undecided.setdefault(header.producer_id, []).append(record)
    if undecided:
        raise KafkaError(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            "a transaction of the query is not decided yet; try again, or start the query, which "
            "ends it",
        )
    return found


def _not_there_yet(topic_partition: TopicPartition, offset: int) -> KafkaError:
    """A Fetch below the end of the partition gave nothing; it may be retried."""
    return KafkaError(
        ErrorCode.OFFSET_NOT_AVAILABLE, f"{topic_partition} returns no records at offset {offset}"
    )


class TokenLog:
    """The tokens of one transactional id, for its driver."""

    def __init__(
        self, client: BlockingClient, topic_partition: TopicPartition, transactional_id: str
    ) -> None:
        self.topic_partition = topic_partition
        self._client = client
        self._key = transactional_id.encode()
        self._position: int | None = None
        self._token: Token | None = None

    def read(self) -> tuple[Token | None, int]:
        """The newest committed token, and the end of the log: claims of a transaction that begins
        now come after it.

        To be called after InitProducerId has been answered: every transaction of the id has its
        markers in the log then. Later calls read from where the last one ended. Raises SinkError.
        """
        try:
            return self._client.retry(self._read)
        except KafkaError as error:
            raise sink_error(error, f"reading tokens from {self.topic_partition}") from error

    def _read(self) -> tuple[Token | None, int]:
        end = list_offset(self._client, self.topic_partition, LATEST_TIMESTAMP)
        position = self._read_stable(end)
        return self._read_unstable(position, end), end

    def _read_stable(self, end: int) -> int:
        """Read committed records up to the last stable offset or end. Returns the position."""
        position = self._position
        if position is None:
            position = list_offset(self._client, self.topic_partition, EARLIEST_TIMESTAMP)
        for records, following in read_stable(self._client, self.topic_partition, position, end):
            for record in records:
                if record.key == self._key and record.value is not None:
                    self._token = Token.decode(record.value)
            position = following
        self._position = position
        return position

    def _read_unstable(self, start: int, end: int) -> Token | None:
        """The newest token, with those above the last stable offset."""
        newest = self._token
        for record in read_unstable(self._client, self.topic_partition, self._key, start, end):
            if record.value is not None:
                newest = Token.decode(record.value)
        return newest
