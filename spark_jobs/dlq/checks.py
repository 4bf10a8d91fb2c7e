"""Whether a record can be used, by its size, its key, its encoding and its schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kbroker.protocol.batches.records import Header

from ..decoding.decoder import Decoder
from ..decoding.errors import Undecodable
from ..exactly_once.records import estimate

_BATCH_BYTES: Final = 61
"""A record travels in a batch, whose header has this size."""

DATA_EXCEPTION: Final = "org.apache.kafka.connect.errors.DataException"
_TOO_LARGE: Final = "org.apache.kafka.common.errors.RecordTooLargeException"


class Problem(NamedTuple):
    """Why a record cannot be used. stage, exception: as Kafka Connect names the same fault."""

    stage: str
    exception: str
    message: str


@dataclass(frozen=True, slots=True)
class Checks:
    """What a record must be. max_bytes: as a batch of its own, not compressed. decoder: of values,
    None for any value. A null value (a tombstone) is not decoded. Picklable.
    """

    max_bytes: int
    requires_key: bool = False
    decoder: Decoder | None = None

    def problem(
        self, key: bytes | None, value: bytes | None, headers: Sequence[Header]
    ) -> Problem | None:
        """The first thing that is wrong; None for a record that can be used."""
        size_bytes = _BATCH_BYTES + estimate((0, key, value, headers))
        if size_bytes > self.max_bytes:
            return Problem(
                "TASK_PUT",
                _TOO_LARGE,
                f"the record has about {size_bytes} bytes, {self.max_bytes} are allowed",
            )
        if key is None and self.requires_key:
            return Problem("KEY_CONVERTER", DATA_EXCEPTION, "the record has no key")
        if value is None or self.decoder is None:
            return None
        try:
            self.decoder.value(value)
        except Undecodable as error:
            return Problem("VALUE_CONVERTER", DATA_EXCEPTION, str(error))
        return None
