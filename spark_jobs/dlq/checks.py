"""Whether a record can be used, by its size, its key, its encoding and its schema. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kbroker.protocol.batches.records import Header

from ..exactly_once.batches import estimate
from .options import Decode
from .schema import Schema, schema_problem

_BATCH_BYTES: Final = 61
"""A record travels in a batch, whose header has this size."""

_DATA: Final = "org.apache.kafka.connect.errors.DataException"
_TOO_LARGE: Final = "org.apache.kafka.common.errors.RecordTooLargeException"


class Problem(NamedTuple):
    """Why a record cannot be used. stage, exception: as Kafka Connect names the same fault."""

    stage: str
    exception: str
    message: str


@dataclass(frozen=True, slots=True)
class Checks:
    """What a record must be. max_bytes: as a batch of its own, not compressed. schema: of a value
    that is decoded as JSON, None for any. A null value (a tombstone) is not decoded. Picklable.
    """

    max_bytes: int
    requires_key: bool = False
    decode: Decode = "none"
    schema: Schema = None

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
            return Problem("KEY_CONVERTER", _DATA, "the record has no key")
        if value is None or self.decode == "none":
            return None
        message = self._value_problem(value)
        return None if message is None else Problem("VALUE_CONVERTER", _DATA, message)

    def _value_problem(self, value: bytes) -> str | None:
        try:
            text = value.decode()
        except UnicodeDecodeError as error:
            return f"the value is no UTF-8: byte {error.start} is 0x{value[error.start]:02x}"
        if self.decode == "string":
            return None
        try:
            decoded = json.loads(text, parse_constant=_refuse_constant)
            return None if self.schema is None else schema_problem(decoded, self.schema)
        except RecursionError:
            return "the value is no JSON that can be read: it is nested too deeply"
        except ValueError as error:
            return f"the value is no JSON: {error}"


def _refuse_constant(name: str) -> object:
    """NaN, Infinity and -Infinity, which Python would take."""
    raise ValueError(f"{name} is no number of JSON")
