"""Settings of the log cleaner, and the memory account that it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isnan
from pathlib import Path
from typing import Protocol

import msgspec

from kbroker.log.state.log_state import LogState
from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import TopicPartition
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.network import MAP_SHARE, MEMORY_LIMIT


class Account(Protocol):
    """Grants memory for larger offset maps (`ports.Memory`)."""

    def keep(self, count: int) -> bool: ...
    def drop(self, count: int) -> None: ...


class CleanedLogs(Protocol):
    """The logs of a node that may be compacted: its `LogManager`.

    on_cleaned_cut: called with a log that was truncated below its cleaner_offset.
    """

    on_cleaned_cut: Callable[[LogState], None] | None

    @property
    def logs(self) -> Mapping[TopicPartition, LogState]: ...
    @property
    def directories(self) -> list[Path]: ...
    def directory_of(self, topic_partition: TopicPartition) -> Path | None: ...
    def is_moving(self, topic_partition: TopicPartition) -> bool:
        """Whether the log is being copied to another directory. It is not cleaned then: the copy
        would keep records that cleaning removed behind it, and get the tombstones that cleaning
        has already counted. As in Kafka.
        """
        ...

    def directory_failed(self, error: LogDirectoryError) -> list[TopicPartition]: ...


class CleanerConfig(msgspec.Struct, frozen=True):
    """Kafka's log.cleaner.* settings; map_bytes and buffer_bytes are one worker's share. An offset
    map has at least sure_map_bytes, and more if memory is available.
    """

    is_enabled: bool
    threads: int
    backoff_ms: int
    map_bytes: int
    sure_map_bytes: int
    buffer_bytes: int
    bytes_per_second: float

    @classmethod
    def from_broker(cls, config: BrokerConfig) -> CleanerConfig:
        threads = config.get_int("log.cleaner.threads")
        share = max(threads, 1)
        load_factor = _share(config.get_float("log.cleaner.io.buffer.load.factor"))
        map_bytes = int(config.get_int("log.cleaner.dedupe.buffer.size") / share * load_factor)
        sure_bytes = int(config.get_int(MEMORY_LIMIT) * MAP_SHARE) // share
        return cls(
            is_enabled=config.get_bool("log.cleaner.enable"),
            threads=threads,
            backoff_ms=config.get_int("log.cleaner.backoff.ms"),
            map_bytes=map_bytes,
            sure_map_bytes=min(map_bytes, sure_bytes),
            buffer_bytes=config.get_int("log.cleaner.io.buffer.size") // share // 2,
            bytes_per_second=config.get_float("log.cleaner.io.max.bytes.per.second"),
        )


def _share(factor: float) -> float:
    """A fraction as a value from 0 to 1; NaN counts as 0. (Kafka has no validator for it.)"""
    return 0.0 if isnan(factor) else min(max(factor, 0.0), 1.0)
