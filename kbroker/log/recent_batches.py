"""What a producer wrote before the last batch that a snapshot remembers of it.

A producer has up to five requests under way, and Kafka's snapshot format has room for one batch of
each. If a segment is rolled while several are written and not answered, and the broker is killed,
Kafka starts from the roll's snapshot and refuses what the producer then sends again with
OUT_OF_ORDER_SEQUENCE_NUMBER, which is its end. Those batches are in the log, shortly before the
snapshot: after a crash they are looked up there.
"""

from __future__ import annotations

from typing import Final

from kbroker.log.producer_state import REMEMBERED_BATCHES, ProducerStateManager
from kbroker.log.segments import Segments
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.records import iter_batches

RECALL_BYTES: Final = 1 << 20
"""How far back, at least; a batch more, and what lies between two index entries."""


def recall_batches(producers: ProducerStateManager, segments: Segments) -> None:
    """Complete the batches of producers that were loaded from a snapshot by those of the segment
    that ends there. What can't be read is left out.

    Reads RECALL_BYTES or a little more if there is any producer. Raises LogDirectoryError.
    """
    offset = producers.map_end_offset
    known = [state for state in producers.active_producers.values() if state.batches]
    index = segments.floor_index(offset - 1)
    if not known or offset <= segments.first.base_offset:
        return
    segment = segments[index]
    seen = ProducerStateManager(producers.topic_partition, expiration_ms=producers.expiration_ms)
    try:
        end = segment.position_of(offset)
        _, start = segment.offset_index.floor_of_position(max(end - RECALL_BYTES, 0))
        for _, header in iter_batches(segment.log_file().read_at(start, end - start)):
            seen.update(header)
    except KafkaError:
        return
    for state in known:
        before = seen.active_producers.get(state.producer_id)
        if before is not None and before.producer_epoch == state.producer_epoch:
            first = state.batches[0].last_offset
            earlier = [batch for batch in before.batches if batch.last_offset < first]
            state.batches = (earlier + state.batches)[-REMEMBERED_BATCHES:]
