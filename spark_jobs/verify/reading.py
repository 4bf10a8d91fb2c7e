"""Reads a partition of a topic batch by batch, so that markers, aborted transactions and compaction
are seen, which a consumer hides.
"""

from __future__ import annotations

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
) -> PartitionFacts:
    """The facts of [start, end). end: at most the last stable offset. is_compacted: whether the
    topic's cleanup.policy allows missing offsets. Raises KafkaError.
    """
    builder = FactsBuilder(*topic_partition, start, ignored)
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
        if header.magic < MAGIC or (first, following) != (header.base_offset, header.next_offset):
            offsets = (record.offset for record in iter_any_records(batch, header))
            count = sum(first <= offset < following for offset in offsets)
        if count < following - first:  # only compaction removes records from a batch
            builder.skip(first, following - count, is_compacted=True)
        present += count
    return present
