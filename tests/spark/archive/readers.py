"""An archive's records as readers of Parquet that are not Spark see them."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow.parquet as pq

Place = tuple[str, int, int, bytes | None, bytes | str | None]
"""Topic, partition, offset, key and value, a string where it was decoded to one."""


def seen_by_pyarrow(folder: Path) -> list[Place]:
    """Sorted by topic, partition and offset."""
    rows = pq.read_table(folder).to_pylist()
    return sorted(
        (row["topic"], row["partition"], row["offset"], row["key"], row["value"]) for row in rows
    )


def seen_by_duckdb(folder: Path) -> list[Place]:
    """All files below the folder, also those that a batch has not committed, if DuckDB saw them."""
    query = f"""
        select topic, partition, "offset", key, value
        from read_parquet('{folder}/**/*.parquet', hive_partitioning = true)
        order by topic, partition, "offset"
    """
    with duckdb.connect() as connection:
        return list(connection.sql(query).fetchall())
