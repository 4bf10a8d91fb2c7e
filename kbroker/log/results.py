"""Results of a partition log: of an append, of a read, and the files to sync."""

from __future__ import annotations

from kbroker.log.storage.files import FileSlice


class AppendInfo:
    """Where batches went. last_offset is inclusive; log_append_time_ms is -1 unless the topic
    stamps records.

    duplicate: the producer sent this batch before; the offsets are those it has.
    """

    __slots__ = (
        "base_offset",
        "duplicate",
        "last_offset",
        "log_append_time_ms",
        "log_start_offset",
    )

    def __init__(
        self,
        base_offset: int,
        last_offset: int,
        *,
        log_start_offset: int,
        log_append_time_ms: int = -1,
        duplicate: bool = False,
    ) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.duplicate = duplicate

    def __repr__(self) -> str:
        return f"AppendInfo({self.base_offset}..{self.last_offset}, duplicate={self.duplicate})"


class ReadInfo:
    """Whole batches by reference, b"" for none. end_offset: they hold nothing at or beyond it."""

    __slots__ = ("end_offset", "records")

    def __init__(self, records: FileSlice | bytes, end_offset: int) -> None:
        self.records = records
        self.end_offset = end_offset
