"""The log of a coordinator as Kafka's cleaner leaves it."""

from __future__ import annotations

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import NO_PRODUCER_ID, BatchHeader, iter_batches
from kbroker.protocol.batches.control_records import ControlType, control_type
from kbroker.protocol.batches.records import Record, iter_records


def compacted(batches: list[bytes], *, keep_tombstones: bool) -> list[bytes]:
    """The last record of each key, at its offset, in a separate batch. Records of aborted
    transactions are removed; records from the first open transaction on are kept unchanged. Markers
    are kept.
    """
    stored = [
        (batch, header, list(iter_records(batch[position:], header)))
        for batch in batches
        for position, header in iter_batches(batch)
    ]
    end = _first_unstable_offset(stored)
    aborted = _aborted_offsets(stored)
    last: dict[bytes | None, int] = {}
    for _, header, records in stored:
        if not header.is_control:
            last.update(
                {
                    record.key: record.offset
                    for record in records
                    if record.offset < end and record.offset not in aborted
                }
            )
    kept: list[bytes] = []
    for batch, header, records in stored:
        if header.is_control or header.base_offset >= end:
            kept.append(batch)
            continue
        kept += [
            _alone(record, header)
            for record in records
            if last.get(record.key) == record.offset
            and record.offset not in aborted
            and (keep_tombstones or record.value is not None)
        ]
    return kept


_Stored = list[tuple[bytes, BatchHeader, list[Record]]]


def _first_unstable_offset(stored: _Stored) -> int:
    first: dict[int, int] = {}
    end = 0
    for _, header, _ in stored:
        end = header.next_offset
        if header.is_control:
            first.pop(header.producer_id, None)
        elif header.is_transactional:
            first.setdefault(header.producer_id, header.base_offset)
    return min(first.values(), default=end)


def _aborted_offsets(stored: _Stored) -> set[int]:
    pending: dict[int, set[int]] = {}
    aborted: set[int] = set()
    for _, header, records in stored:
        if header.is_control:
            offsets = pending.pop(header.producer_id, set())
            if control_type(records[0]) is ControlType.ABORT:
                aborted |= offsets
        elif header.is_transactional:
            offsets = pending.setdefault(header.producer_id, set())
            offsets.update(record.offset for record in records)
    return aborted


def _alone(record: Record, header: BatchHeader) -> bytes:
    is_transactional = header.producer_id != NO_PRODUCER_ID
    return bytes(
        build_batch(
            [(record.timestamp, record.key, record.value, ())],
            base_offset=record.offset,
            partition_leader_epoch=0,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=0,
            is_transactional=is_transactional,
        )
    )
