"""What a dead letter says of itself: the headers of Kafka Connect's dead letter queues (KIP-298),
behind the record's own. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kbroker.protocol.batches.records import Header

from .checks import Problem

PREFIX: Final = b"__connect.errors."
RETRIES: Final = b"kbroker.dlq.retries"
"""How often `dlq retry` has sent the record round; not there before the first time."""

MAX_RETRIES_DIGITS: Final = 9
"""Of the retries; a longer number was not written by `dlq retry`."""

MESSAGE_LENGTH: Final = 1_000
"""Of a message; names of fields in it may be of any length."""

EXTRA_BYTES: Final = 64 * 1024
"""More than the headers of a dead letter take."""
MAX_BYTES: Final = (1 << 31) - 1
"""The largest max.message.bytes: it is an int32."""

_ORIGIN: Final = (b"topic", b"partition", b"offset")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record was read, and by which query and task."""

    topic: str
    partition: int
    offset: int
    query_name: str
    task: int


def is_of_dlq(name: bytes) -> bool:
    """Whether a header is one of a dead letter, not of its record."""
    return name.startswith(PREFIX) or name == RETRIES


def dead_letter_bytes(source_bytes: int) -> int:
    """The max.message.bytes that a topic of dead letters needs, by that of their source."""
    return min(source_bytes + EXTRA_BYTES, MAX_BYTES)


def own_headers(headers: Sequence[Header]) -> list[Header]:
    """The headers that the record had before it was a dead letter."""
    return [header for header in headers if not is_of_dlq(header[0])]


def dead_letter_headers(
    headers: Sequence[Header], place: Place, problem: Problem, class_name: str
) -> list[Header]:
    """The headers of a dead letter. A record that was one before keeps the place where it was read
    first, and counts its retries. class_name: of the check.
    """
    before = dict(headers)
    origin = (place.topic, str(place.partition), str(place.offset))
    values = [
        (PREFIX + name, before.get(PREFIX + name) or text.encode())
        for name, text in zip(_ORIGIN, origin, strict=True)
    ]
    found: list[Header] = [
        *own_headers(headers),
        *values,
        (PREFIX + b"connector.name", place.query_name.encode()),
        (PREFIX + b"task.id", str(place.task).encode()),
        (PREFIX + b"stage", problem.stage.encode()),
        (PREFIX + b"class.name", class_name.encode()),
        (PREFIX + b"exception.class.name", problem.exception.encode()),
        (PREFIX + b"exception.message", problem.message[:MESSAGE_LENGTH].encode(errors="replace")),
    ]
    if PREFIX + b"topic" in before:
        found.append((RETRIES, str(_retries(before.get(RETRIES)) + 1).encode()))
    return found


def _retries(value: bytes | None) -> int:
    """0 for a header that is not there or not ours: records may have any under this name."""
    if value is None or not value.isdigit() or len(value) > MAX_RETRIES_DIGITS:
        return 0
    return int(value)
