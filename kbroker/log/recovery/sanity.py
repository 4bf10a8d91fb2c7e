"""Checks at each start that the files of a segment are consistent, without reading them completely.

Kafka does not check this. Neighbours: `index` checks a file by itself, `found_segments` acts on the
result, `tools.verify` reads everything.
"""

from __future__ import annotations

from typing import Final

from kbroker.log.storage.files import LogFile
from kbroker.log.storage.index import OFFSET_ENTRY_BYTES
from kbroker.log.storage.index_entries import AbortedTransaction
from kbroker.log.storage.segment import Segment
from kbroker.log.storage.segments import Segments
from kbroker.protocol.batches.any_magic import read_any_header
from kbroker.protocol.batches.batch_header import BATCH_OVERHEAD, BatchHeader
from kbroker.protocol.errors import KafkaError

MAX_CHECKED: Final = 1_000
"""Aborted transactions per segment that are looked up in the log: two short reads each."""


def lost_tail(
    segment: Segment, following: int, *, index_bytes: int, time_index_bytes: int, compacted: bool
) -> str | None:
    """Damage of a closed segment's log file that its indexes reveal, None if there is none: the
    file is empty, or the batch of the last index entry is missing. following: base offset of the
    next segment.
    """
    if not segment.size:
        return "it is empty, its indexes are not" if index_bytes or time_index_bytes else None
    if index_bytes < OFFSET_ENTRY_BYTES:
        return None
    file = LogFile(segment.offset_index.path)
    entry = file.read_at(index_bytes - OFFSET_ENTRY_BYTES, OFFSET_ENTRY_BYTES)
    position = int.from_bytes(entry[4:], "big")
    if position < segment.size:
        return None
    try:
        if compacted or segment.next_offset() == following:
            return None  # the index entry is wrong
    except KafkaError:
        pass
    return f"it has {segment.size} bytes, its index knows of a batch at {position}"


def wrong_transaction(segments: Segments, segment: Segment) -> str | None:
    """The entry of the transaction index that the log contradicts, as text; None if there is none.
    Batches that compaction or DeleteRecords removed contradict no entry.
    """
    for entry in segment.transaction_index.entries()[-MAX_CHECKED:]:
        try:
            marker = _batch_with(segment, entry.last_offset)
            if marker is not None and not (
                marker.is_control and marker.producer_id == entry.producer_id
            ):
                return f"{entry}: no marker of that producer is at {entry.last_offset}"
            problem = _wrong_first(segments, entry)
            if problem:
                return problem
        except KafkaError:
            return None  # the log is damaged there; a reader of the log reports that
    return None


def _wrong_first(segments: Segments, entry: AbortedTransaction) -> str | None:
    if entry.first_offset < segments.first.base_offset:
        return None
    first = _batch_with(segments[segments.floor_index(entry.first_offset)], entry.first_offset)
    if first is None or (
        first.is_transactional
        and first.producer_id == entry.producer_id
        and first.base_offset == entry.first_offset
    ):
        return None
    return f"{entry}: no transaction of that producer begins at {entry.first_offset}"


def _batch_with(segment: Segment, offset: int) -> BatchHeader | None:
    position = segment.position_of(offset)
    if position >= segment.size:
        return None
    header = read_any_header(segment.log_file().read_at(position, BATCH_OVERHEAD))
    return header if header.base_offset <= offset <= header.last_offset else None
