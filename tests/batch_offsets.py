"""What a leader writes into the batches that it appends, for tests that stand in for one."""

from __future__ import annotations

from kbroker.protocol.batches.batch_header import LEADER_FIELDS, iter_batches


def assign_offsets(batches: bytearray | memoryview, base_offset: int, leader_epoch: int) -> int:
    """Write offsets and leader epoch into whole v2 batches, in place; the CRC covers neither.

    base_offset: the first offset to assign. Returns the next one. Raises
    KafkaError(CORRUPT_MESSAGE) if a length runs past the buffer.
    """
    for position, header in iter_batches(batches):
        LEADER_FIELDS.pack_into(batches, position, base_offset, header.batch_length, leader_epoch)
        base_offset += header.last_offset_delta + 1
    return base_offset
