"""One record that is to be written: its fields, about its size, and what is said of one that is too
large.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kbroker.client.cluster import TopicPartition
from kbroker.protocol.batches.records import Header

from .errors import Failure, TaskFailure

RECORD_OVERHEAD_BYTES: Final = 24
"""Estimate of a record's size besides key, value and headers: length, deltas, counts."""
HEADER_OVERHEAD_BYTES: Final = 4
MAX_SEQUENCE: Final = 0x7FFFFFFF

RecordFields = tuple[int, bytes | None, bytes | None, Sequence[Header]]
"""Timestamp in ms, key, value, headers."""


def estimate(record: RecordFields) -> int:
    """About the bytes that a record takes in a batch."""
    _, key, value, headers = record
    size_bytes = RECORD_OVERHEAD_BYTES
    if key is not None:
        size_bytes += len(key)
    if value is not None:
        size_bytes += len(value)
    for name, content in headers:
        size_bytes += HEADER_OVERHEAD_BYTES + len(name)
        if content is not None:
            size_bytes += len(content)
    return size_bytes


def record_too_large(
    topic_partition: TopicPartition,
    record: RecordFields,
    size_bytes: int,
    limit: int | None,
) -> TaskFailure:
    """The failure of a task with a record that makes a batch of size_bytes. limit: of the topic,
    None if only the broker knows it.
    """
    timestamp, key, value, _ = record
    largest = f"max.message.bytes={limit}" if limit is not None else "the topic's max.message.bytes"
    shown = "without a key" if key is None else f"with key {bytes(key[:40])!r}"
    return TaskFailure(
        Failure.FATAL,
        f"a record {shown}, timestamp {timestamp}, value of {len(value or b'')} bytes is a batch "
        f"of {size_bytes} bytes, too large for {topic_partition}: raise {largest} (and "
        "replica.fetch.max.bytes, socket.request.max.bytes above it), or filter such records",
    )
