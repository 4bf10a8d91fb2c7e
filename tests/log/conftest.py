"""Data directories that Apache Kafka 4.3.1 wrote, unpacked where a test may write; and a log."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.model import TopicPartition
from kbroker.settings.views.log_config import LogConfig
from tests.log.open_log import NOW_MS, SMALL, OpenLog

KAFKA_DATA = Path(__file__).parent.parent / "data" / "kafka-4.3.1"
LARGE_BYTES = 1 << 20


@pytest.fixture
def unpack(tmp_path: Path) -> Callable[..., Path]:
    """unpack("data-clean"): a fresh copy of that archive, files of megabytes only if large.

    unpack("dump-clean") and the like: the output of Kafka's own tool for it, one archive for all.
    """

    def unpack_archive(name: str, large: bool = False) -> Path:
        target = tmp_path / name
        is_dump = name.startswith("dump-")
        with tarfile.open(
            KAFKA_DATA / ("dumps.tar.xz" if is_dump else f"{name}.tar.gz")
        ) as archive:
            for member in archive.getmembers():
                if is_dump and member.name.split("/")[0] != name:
                    continue
                if large or member.size < LARGE_BYTES:
                    member.mode = 0o755 if member.isdir() else 0o644
                    archive.extract(member, target)
        (folder,) = target.iterdir()
        return folder

    return unpack_archive


@pytest.fixture
def open_log(tmp_path: Path) -> OpenLog:
    """open_log(config, **options): the log of `topic-0`, at a fixed time."""

    def open_(config: LogConfig = SMALL, **options: object) -> PartitionLog:
        options.setdefault("now_ms", NOW_MS)
        return PartitionLog.open(
            tmp_path / "topic-0",
            TopicPartition("topic", 0),
            config,
            **options,  # type: ignore[arg-type]  # the keywords of open
        )

    return open_
