"""Options of `compact`."""

from __future__ import annotations

import pytest

from spark_jobs.compact.options import CompactOptions, compact_options
from spark_jobs.errors import JobError


def test_values() -> None:
    options = compact_options(
        {
            "path": "out",
            "targetFileSize": "1m",
            "minFiles": "1",
            "untouchedFor": "1 hour",
            "retention": "30 days",
            "history": "7d",
        }
    )
    day_ms = 86_400_000
    assert options == CompactOptions("out", 1 << 20, 2, 3_600_000, 30 * day_ms, 7 * day_ms)
    assert compact_options({"path": "out"}) == CompactOptions("out")
    with pytest.raises(JobError, match="give --output"):
        compact_options({})
