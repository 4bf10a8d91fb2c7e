"""A consumer of assigned partitions: positions, fetches from each leader, decoded records.

group.py decides which partitions are assigned. With read_committed, records of aborted transactions
are filtered out as KIP-98 specifies: by the list in each Fetch response.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, NamedTuple

from kbroker.client.cluster import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    STALE_METADATA,
    Client,
    check,
    group_by_topic,
)
from kbroker.model import TopicPartition
from kbroker.protocol.batches.any_magic import check_any_crc, iter_any_batches, iter_any_records
from kbroker.protocol.batches.batch_header import BatchHeader
from kbroker.protocol.batches.compression import Buffer
from kbroker.protocol.batches.control_records import ControlType, control_type
from kbroker.protocol.batches.records import Header, iter_records
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse

Reset = Literal["earliest", "latest", "none"]
Position = int | Literal["earliest", "latest"]
"""An offset, or one of the log's ends."""

ERROR_PAUSE_S: Final = 0.1


class ConsumedRecord(NamedTuple):
    """A record with its topic, partition and offset. timestamp in ms."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Settings with the names and defaults of Kafka's consumer. auto_offset_reset: used for offsets
    out of range.
    """

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    isolation_level: int = READ_UNCOMMITTED
    auto_offset_reset: Reset = "latest"


class Consumer:
    """Reads its assigned partitions. Must not be used by two tasks at once."""

    def __init__(self, client: Client, config: ConsumerConfig | None = None) -> None:
        self.client = client
        self.config = config or ConsumerConfig()
        self.positions: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self._channel = f"fetch {id(self)}"

    @property
    def assignment(self) -> list[TopicPartition]:
        return list(self.positions)

    async def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Replace the assignment by these partitions and positions. Raises KafkaError."""
        self.positions = {}
        self.high_watermarks = {}
        await self.seek(positions)

    async def assign_topics(self, topics: Iterable[str], position: Position = "earliest") -> None:
        """Assign every partition of these topics. Raises KafkaError for a topic that does not
        exist.
        """
        wanted: dict[TopicPartition, Position] = {}
        for name in topics:
            view = await self.client.retry(partial(self.client.topic, name))
            for partition in sorted(view.partitions):
                wanted[TopicPartition(name, partition)] = position
        await self.assign(wanted)

    async def seek(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Set positions; "earliest" and "latest" are looked up now. Raises KafkaError."""
        lookups: dict[TopicPartition, int] = {}
        for topic_partition, position in positions.items():
            if position == "earliest":
                lookups[topic_partition] = EARLIEST_TIMESTAMP
            elif position == "latest":
                lookups[topic_partition] = LATEST_TIMESTAMP
            else:
                self.positions[topic_partition] = position
        for topic_partition, found in (await self._list_offsets(lookups)).items():
            self.positions[topic_partition] = found

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """The end offset of each assigned partition (for read_committed: its last stable
        offset).
        """
        return await self._list_offsets(dict.fromkeys(self.positions, LATEST_TIMESTAMP))

    async def _list_offsets(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        if not timestamps:
            return {}
        found = await self.client.retry(
            lambda: self.client.list_offsets(
                timestamps, isolation_level=self.config.isolation_level
            )
        )
        return {topic_partition: answer.offset for topic_partition, answer in found.items()}

    def close(self) -> None:
        """Close the connections used for fetching."""
        self.client.close_channel(self._channel)

    async def poll(self) -> list[ConsumedRecord]:
        """One round of fetches: the records received, perhaps none, after at most about
        max_wait_ms.

        Positions advance past the records that are returned. Retriable errors (no leader, broker
        not reachable) give an empty list after a short pause; others raise KafkaError. Where only
        some partitions can be read, their records are returned, and the error is met again by the
        next poll.
        """
        try:
            by_leader: dict[int, list[TopicPartition]] = {}
            for topic_partition in self.positions:
                leader_id = await self.client.leader(topic_partition)
                by_leader.setdefault(leader_id, []).append(topic_partition)
            answers = await asyncio.gather(
                *(
                    self._fetch(leader_id, topic_partitions)
                    for leader_id, topic_partitions in by_leader.items()
                ),
                return_exceptions=True,
            )
            records = _records_of(answers)
        except KafkaError as error:
            if not error.code.retriable:
                raise
            self.client.topics.clear()
            await asyncio.sleep(ERROR_PAUSE_S)
            return []
        if not answers:
            await asyncio.sleep(self.config.max_wait_ms / 1000)
        return records

    async def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        """Yield records without end."""
        while True:
            for record in await self.poll():
                yield record

    async def _fetch(
        self, leader_id: int, topic_partitions: list[TopicPartition]
    ) -> list[ConsumedRecord]:
        config = self.config
        request = FetchRequest(
            max_wait_ms=config.max_wait_ms,
            min_bytes=config.min_bytes,
            max_bytes=config.max_bytes,
            isolation_level=config.isolation_level,
            topics=[
                FetchRequest.FetchTopic(
                    topic=topic,
                    topic_id=self.client.topics[topic].topic_id,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=partition,
                            fetch_offset=self.positions[TopicPartition(topic, partition)],
                            partition_max_bytes=config.partition_max_bytes,
                        )
                        for partition in partitions
                    ],
                )
                for topic, partitions in group_by_topic(topic_partitions).items()
            ],
        )
        response = await self.client.to_node(
            leader_id, request, FetchResponse, channel=self._channel
        )
        check(response.error_code, "Fetch")
        records: list[ConsumedRecord] = []
        for topic_response in response.responses:
            name = topic_response.topic or self.client.topic_names.get(topic_response.topic_id)
            for data in topic_response.partitions:
                if name is None:
                    continue
                try:
                    records += await self._take(TopicPartition(name, data.partition_index), data)
                except KafkaError:
                    if records:  # whose positions have advanced
                        return records
                    raise
        return records

    async def _take(
        self, topic_partition: TopicPartition, data: FetchResponse.PartitionData
    ) -> list[ConsumedRecord]:
        """The records of one partition's response; advances its position."""
        position = self.positions.get(topic_partition)
        if position is None:
            return []
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            reset = self.config.auto_offset_reset
            if reset == "none":
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"{topic_partition} has no offset {position}"
                )
            await self.seek({topic_partition: reset})
            return []
        if data.error_code in STALE_METADATA:
            self.client.forget_topic(topic_partition.topic)
            await asyncio.sleep(ERROR_PAUSE_S)
            return []
        check(data.error_code, f"Fetch of {topic_partition}")
        self.high_watermarks[topic_partition] = data.high_watermark
        records, self.positions[topic_partition] = decode_fetched(
            topic_partition, data, position, self.config.isolation_level
        )
        return records


def _records_of(
    answers: Iterable[list[ConsumedRecord] | BaseException],
) -> list[ConsumedRecord]:
    """The records that were fetched. Raises the first error if there are none."""
    records: list[ConsumedRecord] = []
    errors: list[BaseException] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            errors.append(answer)
        else:
            records += answer
    for error in errors:
        if not records or not isinstance(error, KafkaError):
            raise error
    return records


class _AbortedTransactions:
    """Tells which batches of a Fetch response belong to aborted transactions, in offset order."""

    def __init__(self, listed: Iterable[FetchResponse.AbortedTransaction]) -> None:
        self._to_come = sorted(listed, key=lambda transaction: transaction.first_offset)
        self._open: set[int] = set()

    def holds(self, header: BatchHeader) -> bool:
        """Whether this data batch was aborted."""
        self._begin(header)
        return header.is_transactional and header.producer_id in self._open

    def marker(self, header: BatchHeader, kind: ControlType) -> None:
        """An abort marker ends its producer's aborted transaction, of which no batch may be in the
        response.
        """
        self._begin(header)
        if kind is ControlType.ABORT:
            self._open.discard(header.producer_id)

    def _begin(self, header: BatchHeader) -> None:
        while self._to_come and self._to_come[0].first_offset <= header.last_offset:
            self._open.add(self._to_come.pop(0).producer_id)


def decode_fetched(
    topic_partition: TopicPartition,
    data: FetchResponse.PartitionData,
    position: int,
    isolation_level: int = READ_UNCOMMITTED,
) -> tuple[list[ConsumedRecord], int]:
    """The records from position on, and the next position: after the last whole batch.

    The first batch may begin below position, the last may be cut short. Raises
    KafkaError(CORRUPT_MESSAGE) for a wrong CRC.
    """
    records: list[ConsumedRecord] = []
    listed = data.aborted_transactions or () if isolation_level == READ_COMMITTED else ()
    aborted = _AbortedTransactions(listed)
    topic, partition = topic_partition
    buffer = memoryview(data.records if isinstance(data.records, Buffer) else b"")
    for start, header in iter_any_batches(buffer, partial_ok=True):
        if header.last_offset < position:
            continue
        if not check_any_crc(buffer, start, header):
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"{topic_partition} at {header.base_offset}: wrong CRC"
            )
        batch = buffer[start : start + header.size_bytes]
        if header.is_control:
            for record in iter_records(batch, header):
                aborted.marker(header, control_type(record))
        elif not aborted.holds(header):
            for record in iter_any_records(batch, header):
                if record.offset >= position:
                    records.append(
                        ConsumedRecord(
                            topic,
                            partition,
                            record.offset,
                            record.timestamp,
                            record.key,
                            record.value,
                            tuple(record.headers),
                        )
                    )
        position = header.next_offset
    return records, position
