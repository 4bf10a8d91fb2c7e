"""Decides whether the event loop may check a produced batch, or a worker thread has to.

The decision goes by the size that the records decompress to, not by the size on the wire: 700 bytes
of zstd can hold 20 MiB of records. Sizes declared in the data are not trusted: where the compressed
size alone does not decide, the records are decompressed, up to a limit that is cheap for the loop.
`validator` does the checking, `replication.appends.preparation` keeps the queue of the worker.
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
"""The loop compresses or decodes batches of at most so many uncompressed bytes; a worker takes
larger ones.
"""

LOOP_TURN_BYTES: Final = 4 * LOOP_BYTES
"""Cost that the batches of all requests may have in one turn of the loop. Batches beyond it are
checked by a worker, even small ones.
"""

LOOP_PACKED_BYTES: Final = 1024
"""A compressed batch of this size or more goes to a worker without finding out its uncompressed
size.
"""

MESSAGE_SET_BYTES: Final = 1024
"""Uncompressed bytes of a message set of magic 0 or 1 from which a worker converts it."""

RECORD_COST_BYTES: Final = 32
"""Decoding one record costs about as much as decompressing and checksumming so many bytes."""

CONVERSION_COST: Final = 8
"""Converting a message set costs so many times more than decoding as many bytes of records."""

A_WORKERS: Final = 1 << 62
"""The cost of batches that go to a worker by their size or header alone."""


class LoopBudget:
    """The cost budget that remains for checks of batches in this turn of the loop."""

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
        """Whether the loop may check these batches now. If so, their cost is taken from the
        budget.
        """
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
    """The cost, in bytes, of `validate_batches` for one partition's batches; 0 if their headers
    decide. A result above limit means that the check is too expensive for the loop; finding that
    out decompressed at most limit bytes, or none (A_WORKERS). limit: LOOP_BYTES or less.
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
