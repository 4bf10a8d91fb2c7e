"""docs/copying.md and stateful.md: commands have options that exist, tables are the code's, the
examples run.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs import cli
from spark_jobs.archive import ArchiveOptions, archive
from spark_jobs.commands import COMMANDS
from spark_jobs.dlq.checks import Problem
from spark_jobs.dlq.headers import Place, dead_letter_headers
from spark_jobs.java import java_problem
from spark_jobs.translate.options import TRANSLATE_OPTIONS
from tests.clients.adapters import ConfluentAdapter, Sent
from tests.spark.copying.records import content, fill, records_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "copying.md").read_text()
STATEFUL = (ROOT / "docs" / "stateful.md").read_text()
ALL = TEXT + STATEFUL
TABLES = {
    **{name: command.options for name, command in COMMANDS.items() if name != "table"},
    "translate": TRANSLATE_OPTIONS,
}
FLAGS = {"json", "progress", "metrics-port", "execute", "config"}


def names_of(job: str) -> set[str]:
    return {name for option in TABLES[job] for name in option.names} | FLAGS


def commands() -> list[tuple[str, str]]:
    """Job and arguments of each command in the text."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", ALL, re.DOTALL | re.MULTILINE)
    blocks = "".join(block for name, block in fences if not name)
    lines = re.findall(r"spark_jobs (dlq retry|\S+) (.*)", blocks)
    return [(job.replace(" ", "-"), arguments) for job, arguments in lines]


def test_every_job_has_a_command_with_options_that_exist() -> None:
    assert {job for job, _ in commands()} == set(TABLES)
    for job, arguments in commands():
        words = shlex.split(arguments)
        assert {word[2:] for word in words if word.startswith("--")} <= names_of(job), arguments


def test_commands_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the parser that they are for, up to their options as a value."""
    from spark_jobs.options import collect

    for job, arguments in commands():
        if job == "translate":
            continue
        words = [job, *shlex.split(arguments)]
        parsed, rest = cli.parser().parse_known_args(words)
        command = COMMANDS[parsed.job]
        assert command.parse(collect(command.options, parsed, rest)) is not None


def test_options_in_the_text_exist() -> None:
    known = {name for job in TABLES for name in names_of(job)}
    for name in re.findall(r"`--([A-Za-z-]+)", ALL):
        assert name in known, name


def test_the_table_of_headers_is_whole() -> None:
    table = TEXT.partition("| header | value |")[2].partition("\n\n")[0]
    documented: list[str] = []
    for cell in (line.split("|")[1] for line in table.splitlines()[2:]):
        first, *more = re.findall(r"`([^`]+)`", cell)
        base = first.rpartition(".")[0] if not first.endswith("connector.name") else first[:-15]
        documented += [first, *(base + name for name in more)]
    place = Place("t", 0, 0, "q", 0)
    headers = dead_letter_headers([], place, Problem("", "", ""), "")
    headers = dead_letter_headers(headers, place, Problem("", "", ""), "")
    assert documented == [name.decode() for name, _ in headers]


@pytest.mark.spark
@pytest.mark.long_spark
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")
def test_the_example(
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, range(50), 2)
    out = str(tmp_path / "archive")
    archive(spark, ArchiveOptions(output=out, bootstrap_servers=bootstrap, subscribe=topic))
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    copy = f"restored-{os.getpid()}"
    code = code.replace('archive="archive"', f'archive="{out}", bootstrap_servers="{bootstrap}"')
    exec(compile(code.replace("orders-restored", copy), "copying.md", "exec"), {"spark": spark})
    said = capsys.readouterr().out
    assert said == f"restored 50 records of archive {out} to {copy} in 1 batch, offsets kept\n"
    copies, sources = (records_of(bootstrap, name, 2) for name in (copy, topic))
    assert [content(one) for one in copies] == [content(one) for one in sources]


@pytest.mark.spark
@pytest.mark.long_spark
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")
def test_the_example_of_dedupe(
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = new_topic(1)
    records = [Sent(b"k%d" % (n % 3), b"v", (), 1_700_000_000_000 + n, 0) for n in range(5)]
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)
    (code,) = re.findall(r"^```python\n(.*?)^```$", STATEFUL, re.DOTALL | re.MULTILINE)
    code = code.replace("orders", topic).replace('"dedupe"', f'"{tmp_path}"')
    code = code.replace("{", f'{{"kafka.bootstrap.servers": "{bootstrap}", ', 1)
    exec(compile(code, "stateful.md", "exec"), {"spark": spark})
    said = f"read 5 records of {topic}: 3 to {topic}-once; 2 duplicates; in 1 batch\n"
    assert capsys.readouterr().out == said
