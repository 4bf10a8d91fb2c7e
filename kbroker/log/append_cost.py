"""Whether the event loop may check a produced batch, or a worker has to.

What decides is the size the records unpack to, not the size they arrive in: 700 bytes of zstd can
stand for 20 MiB. Sizes that the data declares are not believed; where the packed size alone does
not decide, the records are unpacked, up to a bound that costs the loop little. `validator` does the
checking, `replication.preparation` keeps the queue for the worker.
"""

from __future__ import annotations

from typing import Final

from kbroker.log.validator import BATCHES_SINCE_PRODUCE_VERSION, CODEC_NAMES, LOG_APPEND_TIME
from kbroker.ports import Timers
from kbroker.protocol.batches.batch_header import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    FLAGS_POSITION,
    MAX_TIMESTAMP_FIELD,
    RECORD_COUNT_FIELD,
)
from kbroker.protocol.batches.compression import Compression, unpacked_size
from kbroker.protocol.batches.legacy_records import is_legacy, unpacked_set_size
from kbroker.settings.views.log_config import NO_LOWER_BOUND_MS, LogConfig

LOOP_BYTES: Final = 32 * 1024
"""Unpacked bytes of one batch that the loop may compress or decode; a worker does the others."""

LOOP_TURN_BYTES: Final = 4 * LOOP_BYTES
"""What the batches of all requests may cost the loop in one of its turns; a worker checks those
beyond it, however small they are.
"""

LOOP_PACKED_BYTES: Final = 1024
"""A compressed batch from this size on is a worker's without a look at what it unpacks to."""

MESSAGE_SET_BYTES: Final = 1024
"""Unpacked bytes of a message set of magic 0 or 1 from which on a worker converts it."""

RECORD_COST_BYTES: Final = 32
"""To decode a record costs about as much as to unpack and checksum so many bytes."""

CONVERSION_COST: Final = 8
"""To convert a message set costs so many times more than to decode as many bytes of records."""

A_WORKERS: Final = 1 << 62
"""The cost of batches that are a worker's by their size or header alone."""


class LoopBudget:
    """The cost that checks of batches may still have in this turn of the loop."""

    __slots__ = ("_left_bytes", "_timers")

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._left_bytes = LOOP_TURN_BYTES

    def admits(
        self,
        batches: bytearray | memoryview,
        config: LogConfig,
        produce_version: int | None,
        now_ms: int,
    ) -> bool:
        """Whether the loop may check these batches now; what that costs is spent then."""
        limit = min(LOOP_BYTES, self._left_bytes)
        cost = loop_cost(batches, config, produce_version, now_ms, limit=limit)
        if not cost:
            return True
        if cost == A_WORKERS:
            return False
        if self._left_bytes == LOOP_TURN_BYTES:
            self._timers.call_later(0, self._next_turn)
        self._left_bytes -= min(cost, limit)
        return cost <= limit

    def _next_turn(self) -> None:
        self._left_bytes = LOOP_TURN_BYTES


def loop_cost(
    batches: bytearray | memoryview,
    config: LogConfig,
    produce_version: int | None,
    now_ms: int,
    *,
    limit: int = LOOP_BYTES,
) -> int:
    """The work, in bytes, of `validate_batches` with the records of one partition's batches: 0 if
    their headers decide. More than limit: it is too much for the loop; finding that out unpacked
    limit bytes at most, or nothing (A_WORKERS). limit: LOOP_BYTES or less.
    """
    size = len(batches)
    if (
        produce_version is not None
        and produce_version < BATCHES_SINCE_PRODUCE_VERSION
        and is_legacy(batches)
    ):
        return _conversion_cost(batches, limit)
    if size < BATCH_OVERHEAD:
        return 0
    is_decoded = (
        config.compact
        or config.validate_records
        or config.message_timestamp_before_max_ms < NO_LOWER_BOUND_MS
        or (
            config.message_timestamp_type != LOG_APPEND_TIME
            and MAX_TIMESTAMP_FIELD.unpack_from(batches)[0]
            > now_ms + config.message_timestamp_after_max_ms
        )
    )
    codec = batches[FLAGS_POSITION] & CODEC_MASK
    if not is_decoded and config.compression_type in ("producer", CODEC_NAMES.get(codec)):
        return 0
    least = RECORD_COUNT_FIELD.unpack_from(batches)[0] * RECORD_COST_BYTES if is_decoded else 0
    if codec == Compression.NONE or codec > Compression.ZSTD:
        least = max(least, size)
        return A_WORKERS if least > limit else least
    if least > limit or size >= LOOP_PACKED_BYTES or limit <= 0:
        return A_WORKERS
    body = memoryview(batches)[BATCH_OVERHEAD:]
    return max(least, unpacked_size(Compression(codec), body, limit=limit))


def _conversion_cost(message_set: bytearray | memoryview, limit: int) -> int:
    most = min(MESSAGE_SET_BYTES - 1, limit // CONVERSION_COST)
    if len(message_set) > most:
        return A_WORKERS
    size = unpacked_set_size(message_set, limit=most)
    return limit + 1 if size > most else size * CONVERSION_COST
