"""The store of a table, as another process gets it. With Spark: test_lake_archive."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from spark_jobs.archive.commits import NO_BATCH, Commit
from spark_jobs.archive.lake_store import lake_store
from spark_jobs.archive.options import ArchiveOptions
from spark_jobs.lake.notes import log_folder


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_a_store_is_of_the_same_format_in_another_process(tmp_path: Path, format_: str) -> None:
    options = ArchiveOptions(output=str(tmp_path), subscribe="t", format=format_)
    assert options.lake is not None
    here = lake_store(options, options.lake, None)
    there = pickle.loads(pickle.dumps(here))
    commit = Commit(1, "c", 1, NO_BATCH, ("topic", "date"), {})
    assert there.columns(commit) == here.columns(commit)
    assert there.partitions(commit) == here.partitions(commit)
    assert type(there.table) is type(here.table)
    assert log_folder(there.format) == log_folder(here.format)
