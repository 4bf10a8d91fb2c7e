"""What a task leaves in its Python worker."""

from __future__ import annotations

import importlib.util
import os
import sys
import zipfile
import zipimport
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_jobs.arrow_map import map_in_arrow
from spark_jobs.java import java_problem
from spark_jobs.worker import forget_archives

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
]


def importers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The worker, the archives it has importers of as a task begins, and once a module was looked
    for that does not exist.
    """
    before = archives()
    for _ in batches:
        assert importlib.util.find_spec("no_such_module") is None
        counts = {"worker": os.getpid(), "before": before, "after": archives()}
        yield pa.RecordBatch.from_pydict({name: [count] for name, count in counts.items()})


def archives() -> int:
    """How many archives this process has importers of."""
    return sum(isinstance(one, zipimport.zipimporter) for one in sys.path_importer_cache.values())


@pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")
def test_a_second_task_begins_without_archives(spark: SparkSession) -> None:
    """Although the first task of its worker needed them."""
    schema, workers = "worker long, before long, after long", set[int]()
    while True:  # Spark has at most as many workers as it ran tasks at a time
        (row,) = map_in_arrow(spark.range(0, 1, 1, 1), importers, schema).collect()
        assert row.after
        if row.worker in workers:
            assert not row.before
            break
        workers.add(row.worker)


def test_outside_of_a_task_nothing_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("module_of_an_archive.py", "NAME = 1")
    monkeypatch.syspath_prepend(str(archive))
    assert importlib.import_module("module_of_an_archive").NAME == 1
    forget_archives()
    assert str(archive) in sys.path_importer_cache
