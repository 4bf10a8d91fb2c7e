"""A recurring error is logged once."""

from __future__ import annotations

import pytest

from kbroker.log.storage import faults
from kbroker.log.storage.faults import FaultReports
from kbroker.protocol.errors import ErrorCode, KafkaError


def test_the_same_error_is_reported_once_per_owner_and_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines, reports = caplog.records, FaultReports()
    for _ in range(3):
        reports.report("t-0", "retention", ValueError("one"))
    assert len(lines) == 1 and "t-0: retention failed" in lines[0].getMessage()
    reports.report("t-0", "flushing", ValueError("one"))
    reports.report("t-1", "retention", ValueError("one"))
    reports.report("t-0", "retention", ValueError("two"))
    assert len(lines) == 4
    reports.report("t-0", "retention", ValueError("one"))
    assert len(lines) == 5, "it changed meanwhile"


def test_a_known_error_has_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    lines, reports = caplog.records, FaultReports()
    reports.report("t-0", "compaction", KafkaError(ErrorCode.CORRUPT_MESSAGE, "damaged"))
    reports.report("t-0", "compaction", IndexError("a surprise"))
    assert [bool(line.exc_info) for line in lines] == [False, True]
    assert "damaged" in lines[0].getMessage() and "IndexError" in lines[1].getMessage()


def test_a_deleted_log_is_forgotten_the_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    lines, reports = caplog.records, FaultReports()
    reports.report("t-0", "retention", ValueError("one"))
    reports.report("t-1", "retention", ValueError("one"))
    reports.forget("t-0")
    reports.report("t-0", "retention", ValueError("one"))
    reports.report("t-1", "retention", ValueError("one"))
    assert len(lines) == 3


def test_memory_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "MAX_REPORTED", 3)
    lines, reports = caplog.records, FaultReports()
    for number in range(4):
        reports.report(f"t-{number}", "retention", ValueError("one"))
    assert len(reports._reported) == 1 and len(lines) == 4
