"""Batches against the producer state: checked before an append, replayed after it and at start."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.log.producer.markers import Marker
from kbroker.log.producer.producer_state import (
    CompletedTransaction,
    DuplicateBatch,
    ProducerStateManager,
)
from kbroker.log.storage.index_entries import AbortedTransaction
from kbroker.log.storage.segment import Segment
from kbroker.log.validator import AppendOrigin
from kbroker.protocol.batches.batch_header import BatchHeader


def check_producers(
    producers: ProducerStateManager,
    headers: Sequence[BatchHeader],
    markers: Sequence[Marker | None],
    *,
    origin: AppendOrigin,
    transaction_version: int,
) -> DuplicateBatch | None:
    """`ProducerStateManager.check` for each batch, and a check of the coordinator epoch of each
    marker. Returns the original if a batch is a duplicate. Raises KafkaError.
    """
    for number, header in enumerate(headers):
        if header.producer_id >= 0:
            duplicate = producers.check(
                header, origin=origin, transaction_version=transaction_version
            )
            if duplicate is not None:
                return duplicate
            marker = markers[number]
            if marker is not None:
                producers.check_coordinator_epoch(header.producer_id, marker[1])
    return None


def replay_producer(
    producers: ProducerStateManager, header: BatchHeader, marker: Marker | None
) -> CompletedTransaction | None:
    """Apply a batch of the log, and the marker it may be, to the producer state.

    Returns the transaction that it completes; the caller calls `end_transaction`.
    """
    if marker is None:
        producers.update(header)
        return None
    return producers.update_marker(header, *marker)


def end_transaction(
    producers: ProducerStateManager, segment: Segment, completed: CompletedTransaction
) -> None:
    """Add an aborted transaction to the index of the segment with its marker, then complete it."""
    if completed.is_aborted:
        stable = producers.last_stable_offset(completed)
        segment.transaction_index.append(
            AbortedTransaction(
                completed.producer_id, completed.first_offset, completed.last_offset, stable
            )
        )
    producers.complete_transaction(completed)
