"""End-of-transaction markers in the batches of a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kbroker.protocol.batches.batch_header import CONTROL_FLAG, LENGTH_OVERHEAD, BatchHeader
from kbroker.protocol.batches.control_records import (
    ControlType,
    control_type,
    marker_coordinator_epoch,
)
from kbroker.protocol.batches.records import iter_records

Marker = tuple[ControlType, int]
"""An end-of-transaction marker: abort or commit, coordinator epoch."""

NO_MARKER: Final = (None,)
"""`markers_of` one batch of data."""


def marker_of(header: BatchHeader, batch: bytes | bytearray | memoryview) -> Marker | None:
    """(abort or commit, coordinator epoch) of an end-of-transaction marker, else None."""
    if not header.is_control or header.producer_id < 0 or header.record_count <= 0:
        return None
    for record in iter_records(batch, header):
        kind = control_type(record)
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            return kind, marker_coordinator_epoch(record)
        break
    return None


def markers_of(batches: memoryview, headers: Sequence[BatchHeader]) -> Sequence[Marker | None]:
    """`marker_of` for each of the batches that lie one after the other in `batches`."""
    if len(headers) == 1 and not headers[0].attributes & CONTROL_FLAG:
        return NO_MARKER
    markers: list[Marker | None] = []
    position = 0
    for header in headers:
        following = position + header.batch_length + LENGTH_OVERHEAD
        markers.append(marker_of(header, batches[position:following]))
        position = following
    return markers
