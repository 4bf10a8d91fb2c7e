"""The log as replication sees it: `ReplicaLog` and the values that it returns, as ports.

`log.partition_log.PartitionLog` satisfies them; tests use simpler logs.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol

from kbroker.protocol.codecs.schema import RecordsPayload


class EpochHistory(Protocol):
    """Which leader epoch began where, as a log remembers it."""

    @property
    def latest_epoch(self) -> int | None: ...

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]: ...


class ReadResult(Protocol):
    """Whole batches, none with an offset at or beyond end_offset."""

    @property
    def records(self) -> bytes | RecordsPayload: ...
    @property
    def end_offset(self) -> int: ...


class AbortedRange(Protocol):
    """An aborted transaction as a log knows it."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...


class FoundOffset(Protocol):
    """A record found by its time. leader_epoch: -1 unknown."""

    @property
    def timestamp(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...


class ReplicaLog(Protocol):
    """What replication needs of a log; `log.partition_log.PartitionLog` is one."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def first_unstable_offset(self) -> int | None: ...
    @property
    def frozen(self) -> bool: ...
    @property
    def leader_epochs(self) -> EpochHistory: ...

    def on_high_watermark(self, high_watermark: int) -> int | None: ...
    def read(
        self, fetch_offset: int, *, max_bytes: int, upper_offset: int, min_one_batch: bool = True
    ) -> ReadResult: ...
    def aborted_transactions(
        self, fetch_offset: int, upper_offset: int
    ) -> Sequence[AbortedRange]: ...
    def search_time(self, timestamp_ms: int) -> Generator[Any, Any, FoundOffset | None]: ...
    def search_max_timestamp(self) -> Generator[Any, Any, FoundOffset | None]: ...
    def earliest(self) -> FoundOffset: ...
    def segment_times(self) -> list[tuple[int, int]]: ...
