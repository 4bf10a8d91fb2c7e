"""Restores the batches of a producer before its last one; a snapshot has only the last.

A producer has up to five requests in flight, and Kafka's snapshot format stores one batch per
producer. If a segment is rolled while several batches are written but not acknowledged, and the
broker is killed, Kafka starts from the snapshot of the roll and rejects the producer's retries with
OUT_OF_ORDER_SEQUENCE_NUMBER, which is fatal for the producer. Those batches are in the log, shortly
before the snapshot: after a crash they are read from there.
"""

from __future__ import annotations

from typing import Final

from kbroker.log.producer.producer_state import REMEMBERED_BATCHES, ProducerStateManager
from kbroker.log.storage.files import LogFile
from kbroker.log.storage.segments import Segments
from kbroker.protocol.batches.batch_header import BATCH_OVERHEAD, BatchHeader, read_batch_header
from kbroker.protocol.errors import ErrorCode, KafkaError

RECALL_BYTES: Final = 1 << 20
"""The least number of bytes to read before the snapshot; up to one batch and one index interval
more.
"""
FEW_BATCHES: Final = 64
LARGE_RECALL_BYTES: Final = 8 << 20
"""Bytes to read if RECALL_BYTES hold few batches: five large ones of a producer may take more. Only
their headers are read.
"""

_CHUNK_BYTES: Final = 64 << 10
_LARGE_BYTES: Final = _CHUNK_BYTES // 8


def recall_batches(producers: ProducerStateManager, segments: Segments) -> None:
    """Complete the batches of producers that were loaded from a snapshot with those before it in
    the log. Unreadable batches are skipped.

    Reads little more than RECALL_BYTES, and nothing without producers. Raises LogDirectoryError.
    """
    offset = producers.map_end_offset
    known = [state for state in producers.active_producers.values() if state.remembered]
    if not known or offset <= segments.first.base_offset:
        return
    seen = ProducerStateManager(producers.topic_partition, expiration_ms=producers.expiration_ms)
    try:
        headers = _headers_before(segments, offset, RECALL_BYTES)
        if len(headers) < FEW_BATCHES:
            headers = _headers_before(segments, offset, LARGE_RECALL_BYTES)
        for header in headers:
            seen.update(header)
    except KafkaError:
        return
    for state in known:
        before = seen.active_producers.get(state.producer_id)
        if before is not None and before.producer_epoch == state.producer_epoch:
            first = state.batches[0].last_offset
            earlier = [batch for batch in before.batches if batch.last_offset < first]
            state.remembered = [*earlier, *state.remembered][-REMEMBERED_BATCHES:]


def _headers_before(segments: Segments, offset: int, wanted_bytes: int) -> list[BatchHeader]:
    """The headers of the batches in the wanted_bytes before offset, across segments if necessary.
    Raises KafkaError for bytes that are no batch.
    """
    stretches: list[list[BatchHeader]] = []
    last = segments.floor_index(offset - 1)
    for index in range(last, -1, -1):
        segment = segments[index]
        end = segment.position_of(offset) if index == last else segment.size
        _, start = segment.offset_index.floor_of_position(max(end - wanted_bytes, 0))
        stretches.append(_headers(segment.log_file(), start, end))
        wanted_bytes -= end - start
        if wanted_bytes <= 0:
            break
    return [header for stretch in reversed(stretches) for header in stretch]


def _headers(file: LogFile, position: int, end: int) -> list[BatchHeader]:
    """The batch headers from position to end; the records of large batches are not read."""
    found: list[BatchHeader] = []
    chunk_bytes = _CHUNK_BYTES
    while position < end:
        chunk = file.read_at(position, min(chunk_bytes, end - position))
        at = 0
        while at == 0 or at + BATCH_OVERHEAD <= len(chunk):
            header = read_batch_header(chunk, at)
            at += header.size_bytes
            if position + at > end:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch of {header.size_bytes} bytes")
            found.append(header)
        position += at
        chunk_bytes = BATCH_OVERHEAD if header.size_bytes > _LARGE_BYTES else _CHUNK_BYTES
    return found
