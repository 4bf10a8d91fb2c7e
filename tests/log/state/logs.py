"""A log for tests of its state: filled as a follower's is, with any epoch and producer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kbroker.log.partition_log import PartitionLog
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.settings.views.log_config import LogConfig

NOW_MS = 1_700_000_000_000
KEY = TopicPartition("t", 0)


def open_log(folder: Path, **config: Any) -> PartitionLog:
    settings = {"segment_index_bytes": 4096, "index_interval_bytes": 100} | config
    return PartitionLog.open(folder / "t-0", KEY, LogConfig(**settings), now_ms=NOW_MS)


def append(log: PartitionLog, count: int = 1, *, epoch: int = 0, **options: Any) -> None:
    """Batches of one record each."""
    for _ in range(count):
        batch = build_batch(
            [(NOW_MS, b"key", b"value", [])],
            base_offset=log.log_end_offset,
            partition_leader_epoch=epoch,
            **options,
        )
        log.append_as_follower(batch, now_ms=NOW_MS)


def produce(log: PartitionLog, producer_id: int, sequence: int, **options: Any) -> None:
    append(log, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, **options)
