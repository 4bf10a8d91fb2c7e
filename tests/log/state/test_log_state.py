"""All fields of a log are those of LogState, and `check` reports inconsistent ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.log_state import LogState
from kbroker.model import InvariantError, TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader

NOW_MS = 1_700_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    log = PartitionLog.open(
        tmp_path / "t-0", TopicPartition("t", 0), LogConfig(), now_ms=NOW_MS, log_start_offset=5
    )
    append_as_leader(log, build_batch([(NOW_MS, None, b"", [])] * 3), leader_epoch=0, now_ms=NOW_MS)
    log.roll(NOW_MS)
    append_as_leader(log, build_batch([(NOW_MS, None, b"", [])]), leader_epoch=0, now_ms=NOW_MS)
    return log


def test_a_partition_log_has_no_state_of_its_own(log: PartitionLog) -> None:
    assert PartitionLog.__slots__ == ()
    assert not hasattr(log, "__dict__")
    assert set(LogState.__slots__) == {name for name in LogState.__slots__ if hasattr(log, name)}


def test_a_log_agrees_with_itself_after_every_operation(log: PartitionLog) -> None:
    log.check()
    log.flush()
    log.check()
    log.delete_records_before(8)
    log.delete_old_segments(NOW_MS)
    log.check()
    log.truncate_to(8)
    log.check()
    log.truncate_fully(20)
    log.check()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("log_start_offset", 4),
        ("log_start_offset", 10),
        ("log_end_offset", 7),
        ("recovery_point", 10),
        ("cleaner_offset", 10),
        ("last_snapshot_offset", 10),
    ],
)
def test_fields_that_disagree(log: PartitionLog, field: str, value: int) -> None:
    assert (log.log_start_offset, log.log_end_offset) == (5, 9)
    setattr(log, field, value)
    with pytest.raises(InvariantError):
        log.check()


def test_producers_that_end_elsewhere(log: PartitionLog) -> None:
    log.producers.map_end_offset = 8
    with pytest.raises(InvariantError, match="producers"):
        log.check()
