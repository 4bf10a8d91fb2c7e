"""A manager of two log directories, without a broker."""

from __future__ import annotations

from pathlib import Path
from random import Random

from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig
from tests.own_threads import own_threads

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=1000, segment_index_bytes=4096)


def start(folder: Path, **properties: str) -> LogManager:
    """A loaded manager, with the directories d1 and d2 in folder."""
    directories = f"{folder / 'd1'},{folder / 'd2'}"
    config = BrokerConfig.from_properties(
        {"log.dirs": directories, "node.id": "1"}
        | {name.replace("_", "."): value for name, value in properties.items()}
    )
    manager = LogManager(config, now_ms=lambda: NOW_MS, random=Random(1), threads=own_threads)
    manager.lock()
    manager.load(lambda topic: CONFIG)
    return manager


def fill(manager: LogManager, key: TopicPartition, count: int = 3) -> PartitionLog:
    """A log with that many records, created if missing."""
    log = manager.get_or_create(key, None, CONFIG)
    for _ in range(count):
        batch = build_batch([(NOW_MS, b"key", bytes(20), [])], base_offset=log.log_end_offset)
        log.append_as_follower(batch, now_ms=NOW_MS)
    return log
