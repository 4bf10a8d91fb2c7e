"""`kbroker jobs` and `kbroker spark-conf` pass their arguments on to the Spark pack."""

from __future__ import annotations

import pytest

from kbroker.cli import jobs
from spark_jobs.java import java_problem
from spark_jobs.lake.formats import FORMATS
from tests.cli.conftest import Cli


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("archive",), 1, "kbroker jobs: give --output, the folder of the Parquet files\n"),
        (
            ("archive", "--topics", "t", "-c", "/no/x.yaml"),
            1,
            "kbroker jobs: --config /no/x.yaml: ",
        ),
        (("archive", "--nonsense"), 1, "kbroker jobs: unknown option --nonsense\n"),
        (("nonsense",), 2, "kbroker jobs: argument JOB: invalid choice"),
    ],
)
def test_mistakes_are_those_of_the_pack(
    cli: Cli, arguments: tuple[str, ...], code: int, said: str
) -> None:
    try:
        result = cli("jobs", *arguments)
    except SystemExit as end:  # argparse
        assert end.code == code
        return
    assert result.code == code
    assert result.err.startswith(said) and result.err.count("\n") == 1


def test_without_a_job_it_helps(cli: Cli) -> None:
    assert cli("jobs").out == cli("jobs", "--help").out


def test_a_broker_that_is_down(cli: Cli) -> None:
    arguments = ("--topics", "t", "--output", "/tmp/x", "--bootstrap-servers", "localhost:1")
    result = cli("jobs", "check", "archive", *arguments)
    assert result.code == 1
    assert result.err.startswith("kbroker jobs: no broker answers: localhost:1: ")


@pytest.mark.skipif(java_problem() is not None, reason="as the other Spark tests")
def test_spark_conf(cli: Cli) -> None:
    assert cli("spark-conf", "--packages").out.startswith("org.apache.spark:spark-sql-kafka-0-10_")
    assert "spark.jars.packages " in cli("spark-conf").out
    assert "--packages " in cli("spark-conf", "--submit").out
    assert [each.value for each in jobs.TableFormat] == list(FORMATS)
    for name, each in FORMATS.items():
        assert cli("spark-conf", "--packages", "--format", name).out.endswith(f",{each.package}\n")
        assert each.extension in cli("spark-conf", "--format", name).out


def test_without_the_pack(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "find_spec", lambda name: None)
    result = cli("jobs", "archive")
    assert (result.code, result.err) == (
        1,
        "kbroker: the Spark jobs are not installed: install kbroker with its extra spark\n",
    )
