"""Options of `table`."""

from __future__ import annotations

import pytest

from spark_jobs.errors import JobError
from spark_jobs.table.options import table_options

VALUES = {"topic": "customers", "path": "lake/customers"}


def test_values() -> None:
    options = table_options(
        {**VALUES, "schema": "id long,\n  name string", "envelope": "debezium", "format": "iceberg"}
    )
    assert options.rule == ("--envelope debezium", "--schema 'id long, name string'")
    archive = options.archive
    assert (archive.job, archive.format, archive.subscribe) == ("table", "iceberg", "customers")
    assert archive.checkpoint_uri.endswith("lake/customers.checkpoint")
    assert table_options(VALUES).lake.name == "delta"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"topic": "customers"}, "give --topic, and --output"),
        ({"path": "lake"}, "give --topic, and --output"),
        ({**VALUES, "envelope": "debezium"}, "--envelope debezium needs --schema"),
    ],
)
def test_mistakes(values: dict[str, str], why: str) -> None:
    with pytest.raises(JobError, match=why):
        table_options(values)
