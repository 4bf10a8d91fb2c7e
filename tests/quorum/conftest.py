"""A clock that only tests move, and the metadata directories that Apache Kafka 4.3.1 wrote."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.ports import TimerHandle

KAFKA_DATA = Path(__file__).parent.parent / "data" / "kafka-4.3.1"
LARGE_BYTES = 1 << 20
NOW_MS = 1_800_000_000_000


class StillTimers:
    """Time that only a test moves; callbacks that are due run in the loop's next turn."""

    def __init__(self) -> None:
        self.time_ms = NOW_MS

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> TimerHandle:
        assert delay_ms == 0, "a quorum of one voter waits for no time"
        return asyncio.get_running_loop().call_soon(callback)


@pytest.fixture
def timers() -> StillTimers:
    return StillTimers()


@pytest.fixture
def kafka_directory(tmp_path: Path) -> Callable[[str], Path]:
    """kafka_directory("data-clean"): the metadata part of that data directory, writable."""

    def unpack(name: str) -> Path:
        target = tmp_path / name
        with tarfile.open(KAFKA_DATA / f"{name}.tar.gz") as archive:
            for member in archive.getmembers():
                path = member.name.split("/", 1)[-1]
                wanted = "/" not in path or path.startswith("__cluster_metadata-0/")
                if wanted and member.isfile() and member.size < LARGE_BYTES:
                    member.mode = 0o644
                    archive.extract(member, target)
        (folder,) = target.iterdir()
        return folder

    return unpack
