"""Results of a partition log: the outcome of an append, the result of a read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kbroker.log.storage.files import FileSlice
from kbroker.log.validator import InvalidRecords, RecordError
from kbroker.protocol.errors import ErrorCode, KafkaError

_NO_ERRORS: Final[tuple[RecordError, ...]] = ()
_NONE: Final = ErrorCode.NONE
"""A constant: looking up an enum member costs ten times as much."""


@dataclass(slots=True)
class Appended:
    """The batches were appended. last_offset is inclusive; log_append_time_ms is -1 unless the
    topic stamps records.
    """

    base_offset: int
    last_offset: int
    log_start_offset: int
    log_append_time_ms: int = -1

    @property
    def duplicate(self) -> bool:
        """Whether the batch was in the log before."""
        return isinstance(self, Duplicate)

    @property
    def error(self) -> ErrorCode:
        """NONE."""
        return _NONE

    @property
    def error_message(self) -> str | None:
        """None."""
        return None

    @property
    def record_errors(self) -> Sequence[RecordError]:
        """Empty."""
        return _NO_ERRORS


@dataclass(slots=True)
class Duplicate(Appended):
    """The producer sent this batch before; the offsets are those of the original."""


class Refused:
    """Batches that the producer must not consider written, and the reason.

    Offsets are -1, except those of batches that are in the log but lack in-sync replicas
    (NOT_ENOUGH_REPLICAS_AFTER_APPEND). record_errors: the rejected records (KIP-467).
    """

    __slots__ = (
        "base_offset",
        "error",
        "error_message",
        "last_offset",
        "log_append_time_ms",
        "log_start_offset",
        "record_errors",
    )

    def __init__(
        self,
        error: ErrorCode,
        error_message: str | None = None,
        record_errors: Sequence[RecordError] = _NO_ERRORS,
        appended: Appended | None = None,
    ) -> None:
        self.error = error
        self.error_message = error_message
        self.record_errors = record_errors
        self.base_offset = self.last_offset = -1
        self.log_append_time_ms = self.log_start_offset = -1
        if appended is not None:
            self.base_offset = appended.base_offset
            self.last_offset = appended.last_offset
            self.log_append_time_ms = appended.log_append_time_ms
            self.log_start_offset = appended.log_start_offset

    @classmethod
    def because(cls, error: KafkaError) -> Refused:
        """The error as a value, without its traceback and cause, which hold frames and bytes."""
        errors = error.record_errors if isinstance(error, InvalidRecords) else _NO_ERRORS
        return cls(error.code, error.message or None, errors)

    def __repr__(self) -> str:
        return f"Refused({self.error.name}, {self.error_message!r})"


class CheckDue:
    """Nothing was appended: checking these batches would occupy the loop for too long. A worker
    calls `appending.check_batches`, then `append_checked` continues.
    """

    __slots__ = ()


CHECK_DUE: Final = CheckDue()


class FlushDue:
    """The batches were appended, and flush.messages is reached: the response waits until the log is
    flushed up to their last offset.
    """

    __slots__ = ("appended",)

    def __init__(self, appended: Appended) -> None:
        self.appended = appended


class ReadInfo:
    """Whole batches by reference, b"" for none. end_offset: the exclusive upper bound of their
    offsets.
    """

    __slots__ = ("end_offset", "records")

    def __init__(self, records: FileSlice | bytes, end_offset: int) -> None:
        self.records = records
        self.end_offset = end_offset
