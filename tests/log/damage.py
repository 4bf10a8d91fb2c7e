"""Damage to a segment of a log that is open, as a disk leaves it that returns other bytes."""

from __future__ import annotations

import os

from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage.segment import Segment


def zero_from(log: PartitionLog, offset: int) -> Segment:
    """Replace the batch at offset and all that follow it in its segment by zeros. The indexes are
    emptied, so that a search reads the batches. Returns the segment.
    """
    segment = log.segments[log.segments.floor_index(offset)]
    position = segment.position_of(offset)
    with open(segment.path, "r+b") as file:
        file.seek(position)
        file.write(bytes(os.path.getsize(segment.path) - position))
    for index in (segment.offset_index, segment.time_index):
        index.reset()
    return segment
