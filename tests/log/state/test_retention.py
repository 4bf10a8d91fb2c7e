from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.state.retention import count_before_start, count_excess, count_expired
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.storage.segments import Segments
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.settings.views.log_config import LogConfig

DAY_MS = 86_400_000


@pytest.fixture
def segments(tmp_path: Path) -> Segments:
    """Four segments of one batch each, at 0, 10, 20, 30, a day apart; the log ends at 31."""
    segments = Segments(str(tmp_path), OpenFiles(10))
    for number in range(4):
        segment = segments.create_active(10 * number, config=LogConfig(), now_ms=0)
        batch = build_batch([(number * DAY_MS, None, bytes(100), [])], base_offset=10 * number)
        segment.append(batch, [read_batch_header(batch)])
    return segments


@pytest.mark.parametrize(
    ("days", "upper_offset", "count"),
    [
        pytest.param(1, 31, 0, id="none"),
        pytest.param(3, 31, 1, id="one"),
        pytest.param(9, 31, 4, id="all"),
        pytest.param(9, 20, 2, id="up to the high watermark"),
        pytest.param(9, 19, 1, id="not the segment that has it"),
    ],
)
def test_by_time(segments: Segments, days: int, upper_offset: int, count: int) -> None:
    config = LogConfig(retention_ms=2 * DAY_MS)
    now_ms = days * DAY_MS
    assert count_expired(segments, config, now_ms, upper_offset=upper_offset, end=31) == count
    unlimited = LogConfig(retention_ms=-1)
    assert count_expired(segments, unlimited, now_ms, upper_offset=31, end=31) == 0
    compacted = LogConfig(retention_ms=1, cleanup_policy=frozenset({"compact"}))
    assert count_expired(segments, compacted, now_ms, upper_offset=31, end=31) == 0


@pytest.mark.parametrize(("kept", "count"), [(5, 0), (4, 0), (3.5, 0), (3, 1), (1.5, 2), (0, 4)])
def test_by_size(segments: Segments, kept: float, count: int) -> None:
    size = segments.first.size
    config = LogConfig(retention_bytes=int(kept * size))
    assert count_excess(segments, config, upper_offset=31, end=31) == count
    assert count_excess(segments, LogConfig(), upper_offset=31, end=31) == 0


@pytest.mark.parametrize(("start", "count"), [(0, 0), (9, 0), (10, 1), (29, 2), (31, 3)])
def test_before_the_start(segments: Segments, start: int, count: int) -> None:
    assert count_before_start(segments, start) == count


def test_an_empty_active_segment_stays(segments: Segments) -> None:
    segments.create_active(31, config=LogConfig(), now_ms=0)
    config = LogConfig(retention_ms=1)
    assert count_expired(segments, config, 99 * DAY_MS, upper_offset=31, end=31) == 4
