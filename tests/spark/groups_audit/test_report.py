"""What `groups-audit` prints of times that are none."""

from __future__ import annotations

import pytest

from spark_jobs.groups_audit.report import AuditedPartition, AuditPoint, AuditReport


@pytest.mark.parametrize(
    ("time_ms", "said"),
    [
        (1_777_636_801_000, "2026-05-01T12:00:01Z"),
        (-1, "1969-12-31T23:59:59Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59Z"),
        (253_402_300_800_000, "253402300800000 ms"),
        (2**63 - 1, "9223372036854775807 ms"),
        (-(2**63), "-9223372036854775808 ms"),
    ],
)
def test_a_time_of_any_size(time_ms: int, said: str) -> None:
    point = AuditPoint(offset=3, time_ms=time_ms, by="no member", end=5, lag=2)
    one = AuditedPartition("g", "t", 0, 1, False, 5, 2, (point,))
    lines = AuditReport([one], []).to_text().splitlines()
    assert lines[2] == f"    {said}  offset 3  lag 2  by no member"
