"""Where a batch ends in its source, as Spark's checkpoint says before the batch runs."""

from __future__ import annotations

from dataclasses import dataclass

from ..checkpoint import batch_ends
from ..storage import Folder, absolute
from .errors import SinkError
from .tokens import EndOffsets


@dataclass(frozen=True, slots=True)
class CheckpointOffsets:
    """For `end_offsets` of `kafka_sink`: the offsets of the query's Kafka sources.

    location: what the query has as checkpointLocation.
    """

    location: str

    def __call__(self, batch_id: int) -> EndOffsets:
        """Raises SinkError if the checkpoint has no such batch, JobError if it is damaged."""
        found = batch_ends(Folder(absolute(self.location)), batch_id)
        if found is None:
            raise SinkError(
                f"{self.location} has no offsets of batch {batch_id}: name the checkpointLocation "
                "of the query that the sink belongs to"
            )
        return found
