"""A snapshot of a topic of a running cluster: its batches are fetched as they are stored, up to the
high watermarks at the beginning. Works with any Kafka cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kbroker.cli.configs.resources import ResourceKind, described_configs
from kbroker.cli.console.output import ProgressDisplay, counted
from kbroker.cli.session import connect
from kbroker.client.cluster import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    check,
)
from kbroker.log.tools.snapshot_manifest import PartitionSnapshot, SnapshotManifest
from kbroker.log.tools.snapshot_writer import PartitionWriter, SnapshotWriter
from kbroker.model import StartupError, TopicPartition, Uuid, uuid_to_string
from kbroker.protocol.batches.any_magic import check_any_crc, iter_any_batches
from kbroker.protocol.batches.compression import Buffer
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.settings.tables.keys import ConfigSource

if TYPE_CHECKING:
    from kbroker.client.cluster import Client

FETCH_BYTES: Final = 8 * 1024 * 1024
MAX_WAIT_MS: Final = 500
MAX_EMPTY_ANSWERS: Final = 3
"""Without a batch, though the high watermark is further on: then compaction left none."""
CHANNEL: Final = "snapshot"


async def own_configs(client: Client, topic: str) -> dict[str, str]:
    """The configurations that were set for a topic itself. Raises KafkaError."""
    (described,) = await described_configs(client, ResourceKind.TOPIC, [topic])
    return {
        entry.name: entry.value
        for entry in described.configs
        if entry.config_source == ConfigSource.TOPIC_CONFIG
        and entry.value is not None
        and not entry.is_sensitive
    }


class _Fetched:
    """One topic that is read. topic_id: it must stay what it was."""

    def __init__(self, client: Client, topic: str, topic_id: Uuid, done: ProgressDisplay) -> None:
        self._client = client
        self._topic = topic
        self._topic_id = topic_id
        self._done = done

    async def copy(self, partition: int, start: int, end: int, writer: PartitionWriter) -> int:
        """Append the batches of [start, end) to the writer. Returns the offset behind the last,
        or start. Raises KafkaError, StartupError.
        """
        position = start
        empty_answers = 0
        while position < end and empty_answers < MAX_EMPTY_ANSWERS:
            at = position
            data, throttle_ms = await self._client.retry(partial(self._fetch, partition, at))
            position = self._take(partition, data, position, end, writer)
            self._done.advance(position - at)
            if position == at:
                empty_answers += not throttle_ms
                await asyncio.sleep(throttle_ms / 1000)
            else:
                empty_answers = 0
        return position

    async def _fetch(self, partition: int, offset: int) -> tuple[FetchResponse.PartitionData, int]:
        """One answer, and for how long the client is throttled."""
        place = TopicPartition(self._topic, partition)
        leader_id = await self._client.leader(place)
        if self._client.topics[self._topic].topic_id != self._topic_id:
            raise StartupError(f"{self._topic} was deleted and created again meanwhile")
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=READ_UNCOMMITTED,
            topics=[
                FetchRequest.FetchTopic(
                    topic=self._topic,
                    topic_id=self._topic_id,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=partition,
                            fetch_offset=offset,
                            partition_max_bytes=FETCH_BYTES,
                        )
                    ],
                )
            ],
        )
        response = await self._client.to_node(leader_id, request, FetchResponse, channel=CHANNEL)
        check(response.error_code, "Fetch")
        for topic in response.responses:
            for data in topic.partitions:
                if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise StartupError(
                        f"{place} lost its records from offset {offset} on while they were read: "
                        "retention, or delete-records; take the snapshot again"
                    )
                check(data.error_code, f"Fetch of {place}")
                return data, response.throttle_time_ms
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{place}: no answer for it")

    def _take(
        self,
        partition: int,
        data: FetchResponse.PartitionData,
        position: int,
        end: int,
        writer: PartitionWriter,
    ) -> int:
        buffer = memoryview(data.records if isinstance(data.records, Buffer) else b"")
        for at, header in iter_any_batches(buffer, partial_ok=True):
            if header.last_offset < position:
                continue
            if header.base_offset >= end:
                return end
            if not check_any_crc(buffer, at, header):
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"{self._topic}-{partition} at {header.base_offset}: wrong CRC",
                )
            writer.append(buffer[at : at + header.size_bytes], header.base_offset)
            position = header.next_offset
        return position


async def _offsets(
    client: Client,
    places: Sequence[TopicPartition],
    timestamp: int,
    isolation_level: int = READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    wanted = dict.fromkeys(places, timestamp)
    found = await client.retry(lambda: client.list_offsets(wanted, isolation_level=isolation_level))
    return {place: answer.offset for place, answer in found.items()}


async def snapshot_running(
    bootstrap: str,
    topic: str,
    output: Path,
    *,
    created_ms: int,
    say: Callable[[str], None],
    bar: Callable[[int], ProgressDisplay],
) -> SnapshotManifest:
    """Write a snapshot of a topic. say: gets notes for the user. bar: makes a progress bar of so
    many offsets. Raises KafkaError, StartupError, LogDirectoryError.
    """
    async with connect(bootstrap) as client:
        view = await client.topic(topic)
        configs = await own_configs(client, topic)
        places = [TopicPartition(topic, index) for index in sorted(view.partitions)]
        starts = await _offsets(client, places, EARLIEST_TIMESTAMP)
        ends = await _offsets(client, places, LATEST_TIMESTAMP)
        stable = await _offsets(client, places, LATEST_TIMESTAMP, READ_COMMITTED)
        partitions: list[PartitionSnapshot] = []
        with SnapshotWriter(output) as writer:
            total = sum(ends[place] - starts[place] for place in places)
            reading = _Fetched(client, topic, view.topic_id, bar(total))
            for place in places:
                start, end = starts[place], ends[place]
                folder = writer.partition(str(place))
                reached = await reading.copy(place.partition, start, end, folder)
                if reached < end:
                    say(f"{place}: no batch has the last {counted(end - reached, 'offset')}")
                if stable[place] < end:
                    say(
                        f"{place}: a transaction was open from offset {stable[place]} on; "
                        "restore leaves out what has no end in the snapshot"
                    )
                partitions.append(
                    PartitionSnapshot(
                        partition=place.partition,
                        log_start_offset=start,
                        log_end_offset=end,
                        high_watermark=end,
                        files=folder.close(end),
                    )
                )
            manifest = SnapshotManifest(
                cluster_id=client.cluster_id or "",
                topic=topic,
                topic_id=uuid_to_string(view.topic_id),
                taken="online",
                created_ms=created_ms,
                configs=configs,
                partitions=tuple(partitions),
            )
            writer.finish(manifest)
    return manifest
