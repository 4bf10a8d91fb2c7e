"""Lists the segments in a log's folder, and checks that their files are consistent."""

from __future__ import annotations

import logging
import os

from kbroker.log.recovery import sanity
from kbroker.log.state.log_state import LogState
from kbroker.log.storage import names
from kbroker.log.storage.files import (
    read_file,
    unlink,
)
from kbroker.log.storage.index import OFFSET_ENTRY_BYTES, CorruptIndexError
from kbroker.log.storage.segment import Segment
from kbroker.log.storage.segments import Segments
from kbroker.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)


def find_segments(
    state: LogState,
    directory: str,
    found: dict[tuple[int, str], int],
    now_ms: int,
    *,
    clean_shutdown: bool,
) -> list[Segment]:
    """List the segments; delete indexes without a log file. Returns the segments whose indexes must
    be rebuilt.

    Raises KafkaError if a log file is missing after a clean stop. (Kafka continues without its
    records.)
    """
    unsound: list[Segment] = []
    bases = sorted(offset for offset, kind in found if kind == names.LOG)
    for offset, kind in found:
        if kind not in (names.LOG, names.SNAPSHOT) and (offset, names.LOG) not in found:
            missing = os.path.join(directory, names.offset_name(offset, names.LOG))
            index = names.offset_name(offset, kind)
            if clean_shutdown:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE, f"{missing} is missing, its {index} is there"
                )
            following = next((base for base in bases if base > offset), None)
            logger.warning(
                "%s is missing: records from offset %d %s are lost; deleting its %s",
                missing,
                offset,
                "on" if following is None else f"to {following - 1}",
                index,
            )
            unlink(os.path.join(directory, index))
    for base_offset in bases:
        segment = Segment(
            directory,
            base_offset,
            size=found[base_offset, names.LOG],
            config=state.config,
            open_files=state.segments.open_files,
            created_ms=now_ms,
            has_transaction_index=(base_offset, names.TRANSACTION_INDEX) in found,
        )
        is_empty = clean_shutdown and not segment.size
        # an entry, not the zero padding of a preallocated index
        if is_empty and any(read_file(segment.offset_index.path, OFFSET_ENTRY_BYTES) or b""):
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"{segment.path}: it is empty, its index is not"
            )
        state.segments.add(segment)
        problem = _index_problem(state.segments, segment, found)
        if problem:
            logger.warning("%s: %s; rebuilding its indexes", state.topic_partition, problem)
            unsound.append(segment)
    if clean_shutdown:
        _check_closed_segments(state, found, unsound)
    return unsound


def _check_closed_segments(
    state: LogState, found: dict[tuple[int, str], int], unsound: list[Segment]
) -> None:
    """Raises KafkaError for a segment that lost its tail. Segments with invalid indexes are not
    checked against them.
    """
    for number, following in enumerate(state.segments.base_offsets[1:]):
        segment = state.segments[number]
        if segment in unsound:
            continue
        problem = sanity.lost_tail(
            segment,
            following,
            index_bytes=found.get((segment.base_offset, names.INDEX), 0),
            time_index_bytes=found.get((segment.base_offset, names.TIME_INDEX), 0),
            compacted=state.config.compact,
        )
        if problem:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{segment.path}: {problem}")


def _index_problem(
    segments: Segments, segment: Segment, found: dict[tuple[int, str], int]
) -> str | None:
    base_offset = segment.base_offset
    if (base_offset, names.INDEX) not in found:
        return f"{segment.offset_index.path} is missing"
    try:
        segment.offset_index.check(found[base_offset, names.INDEX])
        if (base_offset, names.TIME_INDEX) not in found:
            return f"{segment.time_index.path} is missing"
        segment.time_index.check(found[base_offset, names.TIME_INDEX])
        if segment.transaction_index.exists:
            segment.transaction_index.check(found[base_offset, names.TRANSACTION_INDEX])
            problem = sanity.wrong_transaction(segments, segment)
            if problem:
                return f"{segment.transaction_index.path}: {problem}"
    except CorruptIndexError as error:
        return str(error)
    return None
