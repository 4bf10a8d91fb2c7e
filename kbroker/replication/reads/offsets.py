"""ListOffsets for one partition: by time, and the special timestamps (KIP-79, KIP-734, KIP-405,
KIP-1005, KIP-1023).

`latest` is the high watermark or last stable offset: it never goes back for a consumer. After an
election the new leader's high watermark may still be behind the old one's; until it has reached the
start of its own epoch the response is OFFSET_NOT_AVAILABLE, and the client asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

from kbroker.log.time_search import LOOKED_AT_BYTES, Candidate
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.leaders.replica_log import FoundOffset
from kbroker.replication.partition import Partition
from kbroker.replication.reads.batch_search import BatchSearcher
from kbroker.replication.time_slices import Steps

SMALL_BYTES: Final = 16 * 1024
"""A batch of at most this size, packed and unpacked, is searched on the loop: 2 ms of records."""

LOOKS_PER_STEP: Final = 2

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

SINCE_VERSION: Final[Mapping[int, int]] = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The special timestamps, and the first version of ListOffsets that has them."""


class ListedOffset:
    """A response; -1 for what is not known, as on the wire."""

    __slots__ = ("error", "leader_epoch", "offset", "timestamp")

    def __init__(
        self,
        error: ErrorCode = ErrorCode.NONE,
        *,
        timestamp: int = -1,
        offset: int = -1,
        leader_epoch: int = -1,
    ) -> None:
        self.error = error
        self.timestamp = timestamp
        self.offset = offset
        self.leader_epoch = leader_epoch

    def __repr__(self) -> str:
        return (
            f"ListedOffset({self.error.name}, timestamp={self.timestamp}, offset={self.offset}, "
            f"leader_epoch={self.leader_epoch})"
        )


def list_offset(
    partition: Partition,
    timestamp: int,
    searcher: BatchSearcher,
    *,
    read_committed: bool = False,
    current_leader_epoch: int = -1,
    replica_id: int = -1,
    max_unpacked_bytes: int = LOOKED_AT_BYTES,
) -> Steps[ListedOffset]:
    """Answer one partition of a request; the ends in a single step.

    replica_id: -1 a consumer, otherwise a follower or a debugger, which see up to the log's end.
    max_unpacked_bytes: of the batches that a search by time unpacks; beyond that it uses the header
    of the next batch, which may give an offset that is too early but never one that is too late.
    Raises OSError if the log cannot be read.
    """
    error = partition.check_leader(current_leader_epoch)
    if error:
        return ListedOffset(error)
    log = partition.log
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.earliest()
        return ListedOffset(offset=start.offset, leader_epoch=start.leader_epoch)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return ListedOffset()  # nothing is tiered
    found: FoundOffset | None = None
    if timestamp != LATEST:
        search = (
            log.search_max_timestamp() if timestamp == MAX_TIMESTAMP else log.search_time(timestamp)
        )

        def is_here() -> bool:
            return not partition.check_leader(current_leader_epoch) and partition.log is log

        try:
            found = yield from _carry_out(search, searcher, is_here, max_unpacked_bytes)
        except KafkaError as failure:
            return ListedOffset(failure.code)
        if not is_here():
            error = partition.check_leader(current_leader_epoch)
            return ListedOffset(error or ErrorCode.OFFSET_NOT_AVAILABLE)
    if replica_id != -1:
        readable_end = log.log_end_offset
    elif read_committed:
        readable_end = partition.last_stable_offset
    else:
        readable_end = partition.high_watermark
    behind = replica_id == -1 and partition.leader_epoch_start_offset > partition.high_watermark
    if timestamp == LATEST:
        if behind:
            return ListedOffset(ErrorCode.OFFSET_NOT_AVAILABLE)
        return ListedOffset(offset=readable_end, leader_epoch=partition.leader_epoch)
    if found is not None and found.offset < readable_end:
        return ListedOffset(
            timestamp=found.timestamp, offset=found.offset, leader_epoch=found.leader_epoch
        )
    return ListedOffset(ErrorCode.OFFSET_NOT_AVAILABLE if behind else ErrorCode.NONE)


def _carry_out(
    search: Generator[Any, Any, FoundOffset | None],
    searcher: BatchSearcher,
    is_here: Callable[[], bool],
    max_unpacked_bytes: int,
) -> Generator[Deferred[Any] | None, None, FoundOffset | None]:
    """Run the search. Returns the offset that it finds; None also if the log was removed. Small
    batches are unpacked on the loop, others by the searcher.
    """
    left = max_unpacked_bytes
    looked = 0
    found: FoundOffset | None = None
    while is_here():
        try:
            candidate: Candidate | None = search.send(found)
        except StopIteration as end:
            result: FoundOffset | None = end.value
            return result
        found = None
        if candidate is None:
            yield None
            continue
        if left <= 0:
            found = candidate.believe()
            continue
        looked += 1
        if looked % LOOKS_PER_STEP == 0:
            yield None
        if candidate.size <= SMALL_BYTES:
            try:
                found = candidate.look(min(SMALL_BYTES, left))
                left -= candidate.unpacked_bytes
                continue
            except KafkaError as error:
                if error.code != ErrorCode.MESSAGE_TOO_LARGE:
                    raise
        look = searcher.look(candidate, min(LOOKED_AT_BYTES, left))
        try:
            if not look.done:
                yield look
        finally:
            look.cancel()
        found = look.result
        left -= candidate.unpacked_bytes
    return None


def segment_offsets(
    partition: Partition, timestamp: int, *, max_count: int, now_ms: int, replica_id: int = -1
) -> list[int]:
    """The offsets of a ListOffsets v0 response: at most max_count at which a reader may begin, the
    largest first.

    They are the starts of segments, and the log's end if the last segment holds anything. LATEST:
    from the end on down; EARLIEST: the start alone; else those of segments last written at or
    before timestamp. A consumer gets the high watermark for what lies above it. Raises OSError.
    """
    log = partition.log
    known = log.segment_times()
    if log.log_end_offset > known[-1][0]:
        known.append((log.log_end_offset, now_ms))
    if timestamp == EARLIEST:
        known = known[:1]
    elif timestamp != LATEST:
        while known and known[-1][1] > timestamp:
            known.pop()
    offsets = [offset for offset, _ in reversed(known)][: max(max_count, 0)]
    high_watermark = partition.high_watermark
    if replica_id == -1 and offsets and offsets[0] > high_watermark:
        below = [offset for offset in offsets if offset <= high_watermark]
        return [high_watermark, *below]
    return offsets
