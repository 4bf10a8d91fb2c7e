"""Writes records of a snapshot or of another topic into a topic: each once, in the order of their
partition, with their keys, values, headers and timestamps.

Offsets are kept where the partition is empty and the records have the offsets 0, 1, 2, ...: a
broker gives offsets itself, one after the other. Where they are not, the rows say so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from kbroker.cli.console.output import Cell, ProgressDisplay, counted
from kbroker.cli.records.deliveries import Deliveries
from kbroker.cli.records.produce import Codec, producer_config
from kbroker.client.consumer import ConsumedRecord
from kbroker.client.producer import ACKS_ALL, Producer
from kbroker.protocol.batches.records import Record

if TYPE_CHECKING:
    import asyncio

    from kbroker.cli.snapshots.target import Target
    from kbroker.client.cluster import Client
    from kbroker.client.producer import RecordMetadata

Batches = AsyncIterator[tuple[int, Sequence[Record] | Sequence[ConsumedRecord]]]
"""(partition, records), in the order of offsets."""


@dataclass(slots=True)
class Filled:
    """What was written to one partition. source_end_offset: behind its last record in the source,
    or the last marker of a transaction. first_offset, last_offset: in the source. moved: how many
    of the records have another offset now.
    """

    topic: str
    partition: int
    source_end_offset: int
    target_end_offset: int = 0
    records: int = 0
    first_offset: int = -1
    last_offset: int = -1
    target_first_offset: int = -1
    moved: int = 0

    def add(self, offset: int, future: asyncio.Future[RecordMetadata]) -> None:
        """One more record was acknowledged. offset: in the source. They come in order."""
        written = future.result().offset
        if not self.records:
            self.first_offset, self.target_first_offset = offset, written
        self.records += 1
        self.last_offset = offset
        self.moved += written != offset
        self.target_end_offset = written + 1

    @property
    def are_offsets_kept(self) -> bool:
        """Whether committed offsets mean the same as in the source, that of the end too."""
        return not self.moved and self.target_end_offset == self.source_end_offset

    def row(self) -> Mapping[str, Cell]:
        """For a user."""
        has_any = self.records > 0
        return {
            "topic": self.topic,
            "partition": self.partition,
            "records": self.records,
            "first_offset": self.first_offset if has_any else None,
            "last_offset": self.last_offset if has_any else None,
            "end_offset": self.source_end_offset,
            "target_first_offset": self.target_first_offset if has_any else None,
            "target_end_offset": self.target_end_offset,
            "offsets_kept": self.are_offsets_kept,
        }


def row_text(row: Mapping[str, Cell]) -> str:
    """A note about one partition."""
    records = row["records"]
    many = counted(records if isinstance(records, int) else 0, "record")
    text = f"{row['topic']}-{row['partition']}: {many}, offsets"
    if row["offsets_kept"]:
        return f"{text} kept"
    first = row["first_offset"]
    if first == row["target_first_offset"]:
        return f"{text} not kept: the end {row['end_offset']} is {row['target_end_offset']}"
    return f"{text} not kept: {first} is {row['target_first_offset']}"


async def fill(
    client: Client,
    target: Target,
    batches: Batches,
    filled: Mapping[int, Filled],
    done: ProgressDisplay,
    *,
    compression: Codec | None,
) -> None:
    """Write all records. filled: by partition, counts what was acknowledged, also if an error ends
    this. Raises KafkaError, and what `batches` raises.
    """
    config = producer_config(compression, None, idempotent=True)
    batch_bytes = min(config.batch_bytes, max(target.max_message_bytes // 2, 1))
    config = replace(config, acks=ACKS_ALL, batch_bytes=batch_bytes)
    for row in filled.values():
        row.target_end_offset = target.ends[row.partition]
    async with Producer(client, config) as producer:
        deliveries = Deliveries(done)
        async for partition, records in batches:
            row = filled[partition]
            for record in records:
                future = await producer.send(
                    target.name,
                    record.value,
                    record.key,
                    headers=record.headers,
                    timestamp_ms=record.timestamp,
                    partition=partition,
                )
                deliveries.watch(future, _counting(row, record.offset, future))
            if deliveries.has_failed:
                break
        await producer.flush()
        deliveries.check()


def _counting(
    row: Filled, offset: int, future: asyncio.Future[RecordMetadata]
) -> Callable[[], None]:
    return partial(row.add, offset, future)
