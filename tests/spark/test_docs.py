"""The examples of docs/spark.md do what they say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from spark_jobs import cli
from spark_jobs.archive.files import SCHEMA
from spark_jobs.archive.options import ARCHIVE_OPTIONS
from spark_jobs.groups_audit.options import AUDIT_OPTIONS
from spark_jobs.java import java_problem
from spark_jobs.lag.options import LAG_OPTIONS
from spark_jobs.options import parse_properties, read_file
from tests.clients.adapters import ConfluentAdapter, Sent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "spark.md").read_text()
NAMES = {name: option.name for option in ARCHIVE_OPTIONS for name in option.names}

LAG_NAMES = {name for option in LAG_OPTIONS for name in option.names}
AUDIT_NAMES = {name for option in AUDIT_OPTIONS for name in option.names}

needs_spark = pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")


def blocks(language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return [block for name, block in fences if name == language]


def run_block(word: str, bootstrap: str, topic: str, names: dict[str, object]) -> None:
    """Run the Python example with that word in it. names: what it finds and what it defines."""
    (block,) = (block for block in blocks("python") if word in block)
    code = block.replace("localhost:9092", bootstrap).replace('"orders"', f'"{topic}"')
    code = code.replace('"totals"', f'"{topic}-group"')
    code = code.replace('"checkpoints', f'"{Path.cwd()}/checkpoints')  # Java may be elsewhere
    exec(compile(code, "spark.md", "exec"), names)


def test_commands_have_options_that_exist() -> None:
    tables = {
        "archive": {*NAMES, "progress", "metrics-port"},
        "lag": LAG_NAMES,
        "groups-audit": AUDIT_NAMES,
    }
    for block in [*blocks(""), cli.ARCHIVE_EXAMPLES]:
        for line in block.replace("\\\n", " ").splitlines():
            for job, names in tables.items():
                _, is_job, arguments = line.partition(f"spark_jobs {job} ")
                if is_job:
                    words = shlex.split(arguments)
                    given = {word.partition("=")[0][2:] for word in words if word.startswith("--")}
                    assert given <= {*names, "config", "conf", "help", "json"}, line


def test_options_in_the_text_exist() -> None:
    known = {
        *NAMES,
        *AUDIT_NAMES,
        "config",
        "help",
        "json",
        "progress",
        "metrics-port",
        "conf",
        "master",
        "py-files",
        "packages",
    }
    known |= {"submit", "properties-file", "kafka.*"}  # of spark-submit
    known |= {"format", "retention"}  # of spark-conf and compact
    for name in re.findall(r"`--([A-Za-z.*-]+)", TEXT):
        assert name in known, name


def test_the_properties_are_options(tmp_path: Path) -> None:
    (block,) = blocks("properties")
    path = tmp_path / "job.properties"
    path.write_text(block)
    found = read_file(str(path), NAMES)
    assert found == parse_properties(block)
    assert found["kafka.sasl.jaas.config"].endswith('password="${file:/etc/kafka/password}";')


def test_the_table_of_columns_is_whole() -> None:
    table = TEXT.partition("| column | type | |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert [name for cell in cells for name in re.findall(r"`(\w+)`", cell)] == SCHEMA.names


@pytest.mark.spark
@pytest.mark.long_spark
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore")
@needs_spark
def test_the_first_pipeline(bootstrap: str, tmp_path: Path) -> None:
    block = next(block for block in blocks("") if "printf" in block)
    topic = f"orders-{os.getpid()}"
    script = re.sub(r"\borders\b", topic, block)
    script = script.replace("kbroker topics", "python -m kbroker topics")
    script = script.replace("| kbroker", "| python -m kbroker").replace("python", sys.executable)
    script = script.replace("--topics ", f"--bootstrap-servers {bootstrap} --topics ")
    environment = {"PYTHONPATH": str(ROOT), "KBROKER_BOOTSTRAP": bootstrap}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "archived 3 records" in done.stdout
    values = done.stdout.splitlines()[-1]
    assert sorted(re.findall(r"b'(\w+)'", values)) == ["one", "three", "two"]


@pytest.mark.spark
@pytest.mark.long_spark
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore")
@needs_spark
def test_the_notebook(
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    topic = new_topic(1)
    records = [Sent(None, b"x", (), 1_700_000_000_000, 0)] * 5
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)
    run_block("ArchiveOptions", bootstrap, topic, {"spark": spark})
    assert capsys.readouterr().out == "5\n"
    assert pq.read_table(tmp_path / "archive").num_rows == 5


@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore")
@needs_spark
def test_a_query_with_a_group(
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The examples of `lag`: the group of a query, a query that begins there, the command."""
    monkeypatch.chdir(tmp_path)
    topic = new_topic(1)

    def produce() -> None:
        records = [Sent(None, b"x", (), 1_700_000_000_000, 0)] * 5
        ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)

    produce()
    names: dict[str, object] = {"spark": spark}
    run_block("with GroupOffsets", bootstrap, topic, names)
    produce()
    run_block("starting_offsets", bootstrap, topic, names)
    assert names["starting"] == f'{{"{topic}": {{"0": 5}}}}'
    (command,) = (block for block in blocks("") if "spark_jobs lag" in block)
    arguments = shlex.split(command.partition("spark_jobs ")[2])
    arguments = [f"{topic}-group" if word == "totals" else word for word in arguments]
    assert cli.main([*arguments, "--bootstrap-servers", bootstrap]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"checkpoint {tmp_path}/checkpoints/totals, batch 0"
    assert lines[4] == f"group {topic}-group"
    for line in (lines[2], lines[6]):
        assert line.split()[:5] == [topic, "0", "5", "10", "5"]
