"""Data directories that Apache Kafka 4.3.1 wrote, unpacked where a test may write."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

KAFKA_DATA = Path(__file__).parent.parent / "data" / "kafka-4.3.1"
LARGE_BYTES = 1 << 20


@pytest.fixture
def unpack(tmp_path: Path) -> Callable[..., Path]:
    """unpack("data-clean"): a fresh copy of that archive, files of megabytes only
    if large.

    unpack("dump-clean") and such: what Kafka's own tool printed of it, one archive for all.
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
