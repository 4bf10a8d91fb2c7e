"""Appending validated batches to a log: the write, and the state that follows from it.

Neighbours: `validator` checked the batches, `next_batch` appends the batch that nearly every batch
is in one step.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.log.producer.markers import Marker
from kbroker.log.producer.replay import end_transaction, replay_producer
from kbroker.log.state.log_state import LogState
from kbroker.log.state.roll import RollDue
from kbroker.log.state.rolling import begin_roll, roll_now
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.validator import ValidatedBatches
from kbroker.protocol.errors import ErrorCode, KafkaError


def append_validated(
    log: LogState,
    validated: ValidatedBatches,
    markers: Sequence[Marker | None],
    now_ms: int,
    defer_roll: bool = False,
) -> None:
    """Write validated batches at the log's end, then update epochs, producers and the end, which
    can't fail any more. markers: of each batch.

    Raises KafkaError(RECORD_LIST_TOO_LARGE), LogDirectoryError; RollDue with defer_roll, if the
    batches need a new segment.
    """
    batches, headers = validated.batches, validated.headers
    max_timestamp = validated.max_timestamp
    last_offset = validated.last_offset
    segment = log.segments.active
    size = len(batches)
    if size > log.config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"{size} bytes are more than a segment of {log.topic_partition} holds "
            f"({log.config.segment_bytes})",
        )
    try:
        if segment.should_roll(size, last_offset, max_timestamp, log.config, now_ms):
            base_offset = headers[0].base_offset
            if defer_roll and segment.size:
                raise RollDue(begin_roll(log, now_ms, base_offset), validated)
            segment = roll_now(log, now_ms, base_offset)
        epochs = log.leader_epochs
        for header in headers:
            epoch = header.partition_leader_epoch
            if epoch >= 0 and epoch != epochs.latest_epoch:
                epochs.assign(epoch, header.base_offset)
        segment.append(batches, headers)
        if segment.index_room <= 0:
            segment.learn_limits(log.config)
        for number, header in enumerate(headers):
            if header.producer_id >= 0:
                completed = replay_producer(log.producers, header, markers[number])
                if completed is not None:
                    end_transaction(log.producers, segment, completed)
    except LogDirectoryError as error:
        if not error.is_shortage:  # a file could not be opened, so nothing was written
            log.failure = error
        raise
    log.log_end_offset = log.producers.map_end_offset = last_offset + 1
    if log.first_unflushed_ms is None:
        log.first_unflushed_ms = now_ms
