"""The command line of the jobs that copy, up to the start of Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kbroker.testing import EmbeddedBroker
from spark_jobs.__main__ import main
from spark_jobs.archive.commits import NO_BATCH, Commit, add_commit
from spark_jobs.commands import COMMANDS
from spark_jobs.errors import JobError
from spark_jobs.java import java_problem
from spark_jobs.lake.formats import DELTA, EXTENSIONS, ICEBERG, PACKAGES
from spark_jobs.storage import Folder, absolute
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from spark_jobs.wire.groups import commit_offsets

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command line in this process up to the start of Spark: code, output, errors."""
    monkeypatch.chdir(tmp_path)

    @contextmanager
    def refuse(name: str, settings: Mapping[str, str]) -> Iterator[None]:
        raise JobError(f"Spark would start now: {name} {json.dumps(dict(settings))}")
        yield

    monkeypatch.setattr("spark_jobs.cli.open_session", refuse)

    def call(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(list(arguments))
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture
def servers(kafka_broker: EmbeddedBroker) -> str:
    return kafka_broker.bootstrap_servers


def arguments_of(job: str, topic: str, servers: str) -> list[str]:
    common = ["--bootstrap-servers", servers]
    return {
        "replay": [*common, "--topic", topic, "--to", f"{topic}-copy"],
        "mirror": [*common, "--topics", topic, "--prefix", "copy.", "--checkpoint", "cp"],
        "dlq": [*common, "--topic", topic, "--to", f"{topic}-good", "--checkpoint", "cp"],
        "dlq retry": [*common, "--topic", topic, "--to", f"{topic}-good", "--checkpoint", "cp"],
        "dedupe": [*common, "--topic", topic, "--to", f"{topic}-once", "--checkpoint", "cp"],
        "aggregate": [*common, "--topic", topic, "--to", f"{topic}-sums", "--checkpoint", "cp"],
        "table": [*common, "--topic", topic, "--output", "lake/t", "--format", "iceberg"],
    }[job]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (
            "replay",
            "query replay-{0}-copy: 0 offsets of topic {0} to write; topic {0}-copy is created; "
            "offsets are kept if the source has no gaps",
        ),
        ("mirror", "copy.* of {1}: begins a new copy; topics {0}"),
        (
            "dlq",
            "{0}-good and {0}.dlq: begins a new copy; topics {0}; topic {0}-good is created; "
            "topic {0}.dlq is created",
        ),
        ("dedupe", "{0}-once: begins a new copy; topics {0}; topic {0}-once is created"),
        ("aggregate", "{0}-sums: begins a new copy; topics {0}; topic {0}-sums is created"),
        ("dlq retry", "{0}-good and {0}: begins a new copy; topics {0}; topic {0}-good is created"),
    ],
)
def test_a_check_and_a_start(
    run: Run, servers: str, kafka_topic: str, tmp_path: Path, job: str, said: str
) -> None:
    words, arguments = job.split(), arguments_of(job, kafka_topic, servers)
    expected = said.format(kafka_topic, servers)
    assert run("check", *words, *arguments) == (0, f"{expected}\n", "")
    code, out, err = run(*words, *arguments, "--master", "local[1]", "--conf", "spark.x=1")
    name = "-".join(words)
    settings = '{"spark.x": "1", "spark.master": "local[1]"}'
    assert (code, out) == (1, "")
    assert err == f"spark_jobs: Spark would start now: {name} {settings}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_writes_a_table(
    run: Run, servers: str, kafka_topic: str, tmp_path: Path
) -> None:
    """Its session has the format's package and SQL."""
    arguments = arguments_of("table", kafka_topic, servers)
    said = f"lake/t: begins a new table; topics {kafka_topic}\n"
    assert run("check", "table", *arguments) == (0, said, "")
    code, _, err = run("table", *arguments, "--conf", "spark.jars.packages=a:b:1")
    wanted = {PACKAGES: f"a:b:1,{ICEBERG.package}", EXTENSIONS: ICEBERG.extension}
    assert (code, err) == (1, f"spark_jobs: Spark would start now: table {json.dumps(wanted)}\n")
    archive = ["--bootstrap-servers", servers, "--topics", kafka_topic, "--output", "lake/a"]
    code, _, err = run("archive", *archive, "--format", "delta")
    assert code == 1 and DELTA.package in err
    code, _, err = run("archive", *archive, "--format", "delta", "--targetFileSize", "1m")
    assert (code, "Delta Lake decides itself" in err) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_compact(run: Run, tmp_path: Path) -> None:
    """Files of Parquet need neither Spark nor Java; a table does."""
    assert run("compact") == (
        1,
        "",
        "spark_jobs: give --output, the archive or table that is compacted\n",
    )
    code, _, err = run("compact", "--output", "absent")
    assert (code, "is no archive and no table" in err) == (1, True)
    assert list(tmp_path.iterdir()) == []
    archive = Folder(absolute(str(tmp_path / "out")))
    add_commit(archive, Commit(1, "c", 1, NO_BATCH, ("topic",), {}))
    said = "compacted 0 files of out into 0; deleted 0 old records in 0 files\n"
    assert run("compact", "--output", "out", "--retention", "1 day") == (0, said, "")
    assert run("check", "compact", "--output", "out")[1] == "out: 0 files to merge into 0\n"
    archive.write("_delta_log/00000000000000000000.json", b"{}")
    code, _, err = run("compact", "--output", "out")
    assert code == 1 and "Spark would start now: compact" in err and DELTA.extension in err


def test_values_of_options_that_argparse_does_not_know(
    run: Run, servers: str, kafka_topic: str
) -> None:
    """They are no positional arguments: not `retry` either."""
    arguments = arguments_of("dlq", kafka_topic, servers)
    code, _, err = run("check", "dlq", *arguments, "--kafka.client.id", "retry")
    assert (code, err) == (0, "")


@pytest.mark.parametrize("job", sorted(COMMANDS))
def test_mistakes_are_one_line(run: Run, tmp_path: Path, job: str) -> None:
    for arguments in ([], ["--nonsense"], ["--kafka.sasl.jaas.config=x"]):
        code, out, err = run(job, *arguments)
        assert (code, out, err.count("\n")) == (1, "", 1), err
        assert err.startswith("spark_jobs: ")


def test_no_broker_and_no_topic(run: Run, servers: str, kafka_topic: str) -> None:
    for job in ("replay", "mirror", "dlq", "dedupe", "aggregate", "table"):
        code, _, err = run(job, *arguments_of(job, "absent", servers))
        assert (code, err) == (1, "spark_jobs: topic absent does not exist\n")
        code, _, err = run(job, *arguments_of(job, "absent", "localhost:1"))
        assert code == 1 and "no broker answers: localhost:1" in err and err.count("\n") == 1
    arguments = arguments_of("mirror", kafka_topic, servers)
    code, _, err = run("mirror", *arguments, "--toBootstrapServers", "localhost:1")
    assert code == 1 and "no broker answers" in err


def test_an_archive_that_is_none(run: Run, servers: str, tmp_path: Path) -> None:
    arguments = ("--archive", str(tmp_path), "--to", "copy", "--bootstrap-servers", servers)
    code, _, err = run("check", "restore", *arguments)
    assert (code, err) == (
        1,
        f"spark_jobs: {tmp_path} is no archive: name the --output of `archive`\n",
    )


def test_help_names_every_job(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for job in [*COMMANDS, "translate", "groups-audit", "compact"]:
        assert f"    {job} " in out or f"    {job}\n" in out, job
        code, described, _ = run(job, "--help")
        assert (code, "--config" in described) == (0, True)


def test_translating_what_is_not_there(run: Run, servers: str, kafka_topic: str) -> None:
    def said(*arguments: str) -> Any:
        code, out, err = run("translate", "--bootstrap-servers", servers, *arguments)
        assert (out, err.count("\n")) == ("", 1)
        return code, err.removeprefix("spark_jobs: ").rstrip("\n")

    assert said() == (1, "give --group, the consumer group that moves")
    assert said("--group", "absent") == (1, "group absent has committed no offsets")
    client = BlockingClient(ClusterAddress(servers))
    commit_offsets(client, "readers", {kafka_topic: {0: 0}})
    client.close()
    assert said("--group", "readers", "--queryName", "absent") == (
        1,
        "query absent has written no batch yet",
    )
