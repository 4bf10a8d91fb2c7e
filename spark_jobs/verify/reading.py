"""Reads a partition of a topic batch by batch, so that markers, aborted transactions and compaction
are seen, which a consumer hides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from kbroker.client.cluster import READ_COMMITTED, TopicPartition
from kbroker.client.consumer import decode_fetched
from kbroker.protocol.batches.any_magic import iter_any_records
from kbroker.protocol.batches.batch_header import MAGIC
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchResponse

from ..wire.client import BlockingClient
from ..wire.fetch import batches_of, fetch
from .facts import FactsBuilder, Field, PartitionFacts


def read_partition(
    client: BlockingClient,
    topic_partition: TopicPartition,
    start: int,
    end: int,
    *,
    is_compacted: bool,
    ignored: frozenset[Field] = frozenset(),
    newest_only: bool = False,
    older: int = 0,
    on_compacted: Callable[[int, int], None] | None = None,
) -> PartitionFacts:
    """The facts of [start, end). end: at most the last stable offset. is_compacted: whether the
    topic's cleanup.policy allows missing offsets. newest_only, older, on_compacted: as of
    `FactsBuilder`. Raises KafkaError.
    """
    builder = FactsBuilder(
        *topic_partition,
        start,
        ignored,
        newest_only=newest_only,
        older=older,
        on_compacted=on_compacted,
    )
    position = start
    while position < end:
        data = client.retry(partial(_fetch, client, topic_partition, position))
        records, following = decode_fetched(topic_partition, data, position, READ_COMMITTED)
        visible = [record for record in records if record.offset < end]
        for record in visible:
            builder.add_record(
                record.offset, record.timestamp, record.key, record.value, record.headers
            )
        present = _add_batches(builder, data, position, end, is_compacted=is_compacted)
        builder.add_aborted(present - len(visible))
        position = following
    builder.advance(end, end, is_compacted=is_compacted)  # the last batch may begin behind it
    return builder.facts(end)


def _fetch(
    client: BlockingClient, topic_partition: TopicPartition, position: int
) -> FetchResponse.PartitionData:
    """A response with at least one batch. Raises KafkaError(OFFSET_NOT_AVAILABLE) without."""
    data = fetch(client, topic_partition, position, READ_COMMITTED)
    if not any(header.next_offset > position for header, _ in batches_of(data)):
        raise KafkaError(
            ErrorCode.OFFSET_NOT_AVAILABLE, f"{topic_partition} returns nothing at {position}"
        )
    return data


def _add_batches(
    builder: FactsBuilder,
    data: FetchResponse.PartitionData,
    position: int,
    end: int,
    *,
    is_compacted: bool,
) -> int:
    """Account for the offsets of a response. Returns its records, those of aborted transactions
    too.
    """
    present = 0
    for header, batch in batches_of(data):
        # A compressed message set of an old format does not say where it begins.
        first = header.base_offset if header.magic >= MAGIC else position
        if header.last_offset < position or first >= end:
            continue
        first, following = max(first, position), min(header.next_offset, end)
        builder.advance(first, following, is_compacted=is_compacted)
        position = following
        if header.is_control:
            builder.add_marker()
            continue
        count = header.record_count
        is_whole = (first, following) == (header.base_offset, header.next_offset)
        if not is_whole or header.magic < MAGIC or count < following - first:
            offsets = (record.offset for record in iter_any_records(batch, header))
            count = _add_offsets(builder, offsets, first, following)
        present += count
    return present


def _add_offsets(builder: FactsBuilder, offsets: Iterable[int], first: int, end: int) -> int:
    """Account for the offsets of a batch that are in [first, end) and not there: only compaction
    removes records from a batch. Gives the number of those that are.
    """
    count, position = 0, first
    for offset in offsets:
        if not first <= offset < end:
            continue
        if offset > position:
            builder.skip(position, offset, is_compacted=True)
        count, position = count + 1, offset + 1
    if position < end:
        builder.skip(position, end, is_compacted=True)
    return count
