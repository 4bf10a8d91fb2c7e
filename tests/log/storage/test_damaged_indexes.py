"""Every bit of an index file flipped in turn after a clean stop: reads and lookups by time return
the same results, and the indexes were rebuilt or still correct.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage import names
from kbroker.log.time_search import find_now
from kbroker.log.tools.findings import Problem
from kbroker.log.tools.verify import verify_folder
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.errors import KafkaError
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=2000, segment_index_bytes=4096, index_interval_bytes=100)
BATCHES = 18
CLOSED, ACTIVE = 0, 24
"""Base offsets of two segments."""


def open_log(folder: Path) -> PartitionLog:
    return PartitionLog.open(
        folder, TopicPartition("topic", 0), CONFIG, clean_shutdown=True, now_ms=NOW_MS
    )


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of batches of two records, closed cleanly; times mostly rise."""
    folder = tmp_path_factory.mktemp("indexes") / "topic-0"
    log = open_log(folder)
    for number in range(BATCHES):
        time = NOW_MS + 10 * number - (15 if number % 4 == 3 else 0)
        batch = build_batch([(time, b"k", bytes(70), []), (time + 1, b"k", bytes(70), [])])
        if 2 * number == ACTIVE:
            log.roll(NOW_MS)
        append_as_leader(log, batch, leader_epoch=0, now_ms=NOW_MS)
    assert log.segments.base_offsets[-1] == ACTIVE
    log.close()
    return folder


def answers(log: PartitionLog) -> list[object]:
    """Everything that clients can request: each offset, with a small and a large limit, and each
    time.
    """
    found: list[object] = [log.log_end_offset, find_now(log.search_max_timestamp())]
    for offset in range(2 * BATCHES):
        for max_bytes in (1, 700):
            data = log.read(offset, max_bytes=max_bytes).records
            held = data if isinstance(data, bytes) else data.read()
            found.append([header.base_offset for _, header in iter_batches(held)])
    found += [log.offset_for_timestamp(NOW_MS + time) for time in range(-5, 10 * BATCHES + 5, 5)]
    found += [segment.largest_timestamp() for segment in log.segments]
    log.release()
    return found


@pytest.mark.parametrize("base", [CLOSED, ACTIVE])
@pytest.mark.parametrize("kind", [names.INDEX, names.TIME_INDEX])
@pytest.mark.parametrize(
    "bit", [0, *(pytest.param(bit, marks=pytest.mark.slow) for bit in range(1, 8))]
)
def test_a_flipped_bit_changes_no_answer(
    closed: Path, tmp_path: Path, base: int, kind: str, bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    expected = answers(open_log(shutil.copytree(closed, tmp_path / "sound")))
    copy = tmp_path / "topic-0"
    name = names.offset_name(base, kind)
    content = (closed / name).read_bytes()
    mended = 0
    assert len(content) >= 40
    for at in range(len(content)):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(closed, copy)
        (copy / name).write_bytes(
            bytes(byte ^ (1 << bit if place == at else 0) for place, byte in enumerate(content))
        )
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            log = open_log(copy)
            assert answers(log) == expected, (name, at)
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) <= 1 and all(name in line for line in lines), lines
        mended += len(lines)
        log.close()
    assert mended > len(content) // 4


@pytest.mark.parametrize("base", [CLOSED, ACTIVE])
@pytest.mark.parametrize("kind", [names.INDEX, names.TIME_INDEX])
def test_a_mended_index_is_what_it_was(closed: Path, tmp_path: Path, base: int, kind: str) -> None:
    copy = shutil.copytree(closed, tmp_path / "topic-0")
    path = copy / names.offset_name(base, kind)
    content = bytearray(path.read_bytes())
    content[len(content) // 24 * 12 - 1] ^= 0x40
    path.write_bytes(content)
    log = open_log(copy)
    answers(log)
    log.close()
    assert [item for item in verify_folder(copy) if isinstance(item, Problem)] == []


def test_where_the_log_is_damaged_its_index_is_left_alone(
    closed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = shutil.copytree(closed, tmp_path / "topic-0")
    path = copy / names.offset_name(CLOSED, names.LOG)
    content = bytearray(path.read_bytes())
    size = next(iter_batches(content))[1].size_bytes
    content[2 * size + 16] ^= 0x40  # the magic of the third batch
    path.write_bytes(content)
    log = open_log(copy)
    with pytest.raises(KafkaError, match=rf"{path.name}: no record batch at position {2 * size}"):
        log.read(4, max_bytes=1)
    assert not caplog.records
    data = log.read(8, max_bytes=1).records
    assert not isinstance(data, bytes) and next(iter_batches(data.read()))[1].base_offset == 8
