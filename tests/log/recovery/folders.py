"""Logs in a folder that tests of recovery fill, damage and open again."""

from __future__ import annotations

from pathlib import Path

from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage import names
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader

NOW_MS = 1_795_246_900_000
"""A minute after the fixtures were made."""
TOPIC_PARTITION = TopicPartition("topic", 0)


def files_of(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and names.CLUSTER_METADATA not in str(path)
    }


def open_log(directory: Path, config: LogConfig | None = None, **options: object) -> PartitionLog:
    return PartitionLog.open(
        directory / "topic-0",
        TOPIC_PARTITION,
        config or LogConfig(segment_bytes=2000, segment_index_bytes=4096, index_interval_bytes=100),
        now_ms=NOW_MS,
        **options,  # type: ignore[arg-type]  # the keywords of open
    )


def fill(log: PartitionLog, count: int) -> None:
    for number in range(count):
        batch = build_batch([(NOW_MS + number, b"key", b"value %d" % number, [])] * 2)
        append_as_leader(log, batch, leader_epoch=number // 10, now_ms=NOW_MS)
