"""`--retention` deletes rows of tables of `archive` alone. Without Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from spark_jobs.archive.lake_store import COLUMNS
from spark_jobs.compact.tables import delete_old
from spark_jobs.errors import JobError
from spark_jobs.table.changes import KEY, PLACE

ARCHIVED = [column.name for column in COLUMNS]
OF_TABLE = [column.name for column in (KEY, *PLACE)]


@dataclass
class Session:
    """A table with these columns, of which every row is old; keeps the SQL that it is told."""

    columns: list[str]
    told: list[str] = field(default_factory=list)

    def table(self, _name: str) -> Any:
        return SimpleNamespace(columns=self.columns)

    def sql(self, text: str) -> Any:
        self.told.append(text)
        return SimpleNamespace(collect=lambda: [SimpleNamespace(n=3)])


def test_rows_of_an_archive() -> None:
    spark = Session([*ARCHIVED, "date"])
    assert delete_old(spark, "t", 5) == 3  # type: ignore[arg-type]  # not Spark's
    assert spark.told[-1] == "DELETE FROM t WHERE `timestamp` < timestamp_millis(5)"


@pytest.mark.parametrize(
    "columns",
    [
        ["id", "value"],
        [*OF_TABLE, "id", "timestamp"],  # of `table`, with a schema that has the name
        [*OF_TABLE, *ARCHIVED],
        ["id", "timestamp"],
    ],
)
def test_rows_of_another_table_stay(columns: list[str]) -> None:
    spark = Session(columns)
    with pytest.raises(JobError, match=r"^--retention: `archive` did not make the table"):
        delete_old(spark, "t", 5)  # type: ignore[arg-type]  # not Spark's
    assert spark.told == []
