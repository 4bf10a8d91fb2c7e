"""docs/tables.md: commands can be read, columns are the code's, the example runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs import cli
from spark_jobs.archive.options import ARCHIVE_OPTIONS, archive_options
from spark_jobs.compact.options import COMPACT_OPTIONS, compact_options
from spark_jobs.java import java_problem
from spark_jobs.lake.formats import FORMATS
from spark_jobs.options import collect
from spark_jobs.table.changes import KEY, PLACE
from spark_jobs.table.options import TABLE_OPTIONS, table_options
from tests.clients.adapters import ConfluentAdapter, Sent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "tables.md").read_text()
JOBS = {
    "archive": (ARCHIVE_OPTIONS, archive_options),
    "table": (TABLE_OPTIONS, table_options),
    "compact": (COMPACT_OPTIONS, compact_options),
}


def test_commands_can_be_read() -> None:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    lines = "".join(block for name, block in fences if not name).splitlines()
    seen = set()
    for line in lines:
        words = shlex.split(line.partition("spark_jobs ")[2])
        parsed, rest = cli.parser().parse_known_args(words)
        seen.add(parsed.job)
        if parsed.job != "spark-conf":
            table, parse = JOBS[parsed.job]
            assert parse(collect(table, parsed, rest)) is not None
    assert seen == {*JOBS, "spark-conf"}


def test_options_and_packages_in_the_text_exist() -> None:
    known = {name for table, _ in JOBS.values() for option in table for name in option.names}
    for name in re.findall(r"`--([A-Za-z-]+)", TEXT):
        assert name in known | {"requireKey"}, name
    for each in FORMATS.values():
        assert f"`{each.package}`" in TEXT


def test_the_table_of_columns_is_whole() -> None:
    table = TEXT.partition("| column | type | |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    found = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert found == {column.name for column in (KEY, *PLACE)}


@pytest.mark.spark
@pytest.mark.long_spark
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")
def test_the_example(
    lake_spark: SparkSession,
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    topic = new_topic(1)
    records = [Sent(b"k%d" % (n % 2), b"v", (), 1_700_000_000_000, 0) for n in range(5)]
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    code = code.replace('"customers"', f'"{topic}"').replace("localhost:9092", bootstrap)
    exec(compile(code, "tables.md", "exec"), {"spark": spark})
    said = f"applied 5 records of {topic} to lake/customers in 1 batch\n"
    assert capsys.readouterr().out == said
    assert spark.read.format("delta").load(f"{tmp_path}/lake/customers").count() == 2
