"""Options of `compact`."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.compact.job import describe_check, lake_format
from spark_jobs.compact.options import CompactOptions, compact_options
from spark_jobs.errors import JobError
from spark_jobs.lake.formats import DELTA


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


def test_few_files_of_a_table_of_delta_lake(tmp_path: Path) -> None:
    """Its OPTIMIZE has no such number, so another one is refused before a session starts."""
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020d}.json").touch()
    values = {"path": str(tmp_path)}
    for given in ({}, {"minFiles": "2"}, {"minFiles": "1"}):
        assert lake_format(compact_options(values | given)) == DELTA
    for number in ("3", "4"):
        with pytest.raises(JobError, match=f"^--minFiles {number}: .* Delta Lake.*: leave it out"):
            lake_format(compact_options(values | {"minFiles": number}))
    with pytest.raises(JobError, match="--minFiles 9"):
        describe_check(CompactOptions(str(tmp_path), min_files=9), 0)
