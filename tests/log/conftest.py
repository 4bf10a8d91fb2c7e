"""Data directories that Apache Kafka 4.3.1 wrote, unpacked where a test may write."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

KAFKA_DATA = Path(__file__).parent.parent / "data" / "kafka-4.3.1"
LARGE_BYTES = 1 << 20


@pytest.fixture
def unpack(tmp_path: Path) -> Callable[[str], Path]:
    """unpack("data-clean"): a fresh copy of that archive, without files of megabytes."""

    def unpack_archive(name: str) -> Path:
        target = tmp_path / name
        with tarfile.open(KAFKA_DATA / f"{name}.tar.gz") as archive:
            for member in archive.getmembers():
                if member.size < LARGE_BYTES:
                    member.mode = 0o755 if member.isdir() else 0o644
                    archive.extract(member, target)
        (folder,) = target.iterdir()
        return folder

    return unpack_archive
