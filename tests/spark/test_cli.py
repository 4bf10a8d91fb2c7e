"""The command line of the pack up to the start of Spark: one line for every mistake."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.testing import EmbeddedBroker
from spark_jobs import session, spark_conf
from spark_jobs.__main__ import main
from spark_jobs.errors import JobError, StartRefused, first_cause, job_error_in
from spark_jobs.exactly_once.errors import SecondDriver
from spark_jobs.java import java_problem
from spark_jobs.lake.formats import DELTA, ICEBERG
from spark_jobs.spark_conf import connector_package

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
def archive(run: Run, kafka_broker: EmbeddedBroker) -> Callable[..., tuple[int, str]]:
    def call(*arguments: str) -> tuple[int, str]:
        servers = kafka_broker.bootstrap_servers
        code, out, err = run(
            "archive", "--bootstrap-servers", servers, "--output", "out", *arguments
        )
        assert out == ""
        assert err.count("\n") == 1 and err.startswith("spark_jobs: ")
        return code, err.removeprefix("spark_jobs: ")

    return call


def test_nothing_is_wrong(archive: Run, kafka_topic: str, tmp_path: Path) -> None:
    assert archive("--topics", kafka_topic) == (
        1,
        f"Spark would start now: archive {kafka_topic} {{}}\n",
    )
    settings = ("--master", "local[1]", "--conf", "spark.x.y=1")
    _, said = archive("--topics-pattern", ".*", *settings)
    assert (
        said == 'Spark would start now: archive .* {"spark.x.y": "1", "spark.master": "local[1]"}\n'
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--topics", "no-such"), 1, "topic no-such does not exist"),
        (("--topics-pattern", "no-such.*"), 1, "matches none of the"),
        (
            ("--topics", "t", "--bootstrap-servers", "localhost:1"),
            1,
            "no broker answers: localhost:1:",
        ),
        (("--topics", "t", "--kafka-option", "x"), 1, "unknown option --kafka-option"),
        (("--topics", "t", "--kafka.ssl.key.password=x"), 1, "can be seen in `ps`"),
    ],
)
def test_mistakes(archive: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
    found = archive(*arguments)
    assert (found[0], said in found[1]) == (code, True), found


def test_a_contradiction_is_exit_code_2(archive: Run, kafka_topic: str, tmp_path: Path) -> None:
    (tmp_path / "out" / "_spark_metadata").mkdir(parents=True)
    code, said = archive("--topics", kafka_topic)
    assert (code, "was written by Spark's file sink" in said) == (2, True)


def test_check_says_what_a_start_would_do(
    run: Run, kafka_broker: EmbeddedBroker, kafka_topic: str, tmp_path: Path
) -> None:
    servers = kafka_broker.bootstrap_servers
    arguments = ("check", "archive", "--topics", kafka_topic, "--bootstrap-servers", servers)
    assert run(*arguments, "--output", "out") == (
        0,
        f"out: begins a new archive; topics {kafka_topic}\n",
        "",
    )
    assert list(tmp_path.iterdir()) == []


def test_checks_of_other_jobs(
    run: Run, kafka_broker: EmbeddedBroker, kafka_topic: str, tmp_path: Path
) -> None:
    servers = ("--bootstrap-servers", kafka_broker.bootstrap_servers)
    named = f"topic {kafka_topic} of {servers[1]} with 1 partition and 0 offsets"
    verify = ("check", "verify", *servers, "--topic", kafka_topic)
    assert run(*verify) == (0, f"{named}\n", "")
    assert run(*verify, "--againstTopic", kafka_topic)[1] == f"{named} against {named}\n"
    code, _, said = run(*verify, "--againstArchive", str(tmp_path / "absent"))
    assert (code, said.count("\n"), "has no files: name the --output" in said) == (1, 1, True)
    (tmp_path / "a.parquet").touch()
    assert run(*verify, "--againstArchive", str(tmp_path))[1].endswith("with 1 file\n")
    sink = ("check", "kafka-sink", *servers, "--query-name", "q", "--topic")
    said = f"query q: topic {kafka_topic} with 1 partition; no batch was written yet\n"
    assert run(*sink, kafka_topic) == (0, said, "")
    assert run(*sink, "absent")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((), "required: JOB"), (("nonsense",), "invalid choice: 'nonsense'"), (("check",), "JOB")],
)
def test_usage_is_one_line(run: Run, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err and "--help" in err


def test_help_names_sparks_options(run: Run) -> None:
    code, out, _ = run("archive", "--help")
    assert code == 0
    for word in ("--maxOffsetsPerTrigger", "--starting-offsets", "--output", "examples:"):
        assert word in out


def test_java_that_is_missing(
    archive: Run, kafka_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/such")
    code, said = archive("--topics", kafka_topic)
    assert code == 1 and "Java 17 or 21" in said and "apt-get install" in said


def test_spark_conf(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = connector_package()
    assert package.startswith("org.apache.spark:spark-sql-kafka-0-10_2.13:4.")
    assert run("spark-conf", "--packages") == (0, f"{package}\n", "")
    assert run("spark-conf")[1].splitlines() == [
        f"spark.jars.packages {package}",
        "spark.sql.session.timeZone UTC",
    ]
    assert f"--packages {package} --conf spark.sql" in run("spark-conf", "--submit")[1]
    assert run("spark-conf", "--nonsense")[0] == 1
    assert run("spark-conf", "--packages", "--format", "delta")[1] == f"{package},{DELTA.package}\n"
    said = run("spark-conf", "--submit", "--format", "iceberg")[1]
    assert f"--packages {package},{ICEBERG.package} --conf spark.sql.session" in said
    assert f"--conf spark.sql.extensions={ICEBERG.extension}" in said
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert "no spark-core jar" in run("spark-conf")[2]
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setattr(spark_conf, "find_spec", lambda name: None)
    assert "pyspark is not installed" in run("spark-conf")[2]


def test_bundle(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("bundle")
    assert (code, "modules, for spark-submit --py-files" in out) == (0, True)
    assert [path.name for path in tmp_path.iterdir()] == ["spark_jobs.zip"]


def test_why_java_ended() -> None:
    package = "org.apache.spark#spark-sql-kafka-0-10_2.13;4.0.9"
    log = f"noise\n\t\t:: {package}: not found\nException in thread " + '"main" '
    log += f"java.lang.RuntimeException: [unresolved dependency: {package}: not found]\n\tat x\n"
    assert session._reason(log).startswith(f": {package}: not found")
    assert session._reason("Error: no such master\nmore") == ": no such master"
    assert session._reason("") == ""


def test_java_that_ran_out_of_memory() -> None:
    """The job saw only a connection that was refused."""
    error = JobError("archive stopped: [Errno 111] Connection refused")
    log = "26/11/26 ERROR Executor: x\njava.lang.OutOfMemoryError: Java heap space\n\tat y\n"
    explained = session._out_of_memory(error, log)
    assert str(explained).startswith("Spark's Java ran out of memory (Java heap space): give it")
    assert str(explained).endswith(f"; {error}")
    assert session._out_of_memory(error, "nothing") is None
    assert session._out_of_memory(StartRefused("foreign"), log) is None


def test_artifacts_of_spark_submit_are_removed(tmp_path: Path) -> None:
    with session._without_artifacts(tmp_path):
        (tmp_path / "artifacts" / "spark-1").mkdir(parents=True)
    assert not (tmp_path / "artifacts").exists()
    (tmp_path / "artifacts" / "mine").mkdir(parents=True)
    with session._without_artifacts(tmp_path):
        (tmp_path / "artifacts" / "spark-2").mkdir()
    assert os.listdir(tmp_path / "artifacts") == ["mine"]


def test_settings_of_our_own_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_PACKAGES", "a:b:1")
    monkeypatch.delenv("SPARK_MASTER", raising=False)
    made = session._local_settings({"spark.jars.packages": "c:d:2", "spark.ui.enabled": "true"})
    assert made["spark.jars.packages"] == f"{connector_package()},c:d:2,a:b:1"
    assert (made["spark.master"], made["spark.ui.enabled"]) == ("local[*]", "true")
    assert session._local_settings({"spark.remote": "sc://x"}) == {"spark.remote": "sc://x"}


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[BAD] first\nsecond", "[BAD] first"),
        ("first\nCaused by: java.io.IOException: a\nCaused by: x.Y: b\n", "x.Y: b"),
        (
            "Job aborted\nTraceback (most recent call last):\n  File x\nValueError: a\n\nDuring\n"
            "OSError: [Errno 28] No space left on device\n\n\tat org.apache\n",
            "OSError: [Errno 28] No space left on device",
        ),
        (
            "Job aborted\nTraceback (most recent call last):\n  File x\n"
            "ModuleNotFoundError: No module named 'lz4'\n\n\tat org.apache\n",
            "No module named 'lz4' in Spark's Python workers: install it on the executors too",
        ),
        ("", "RuntimeError"),
    ],
)
def test_the_cause_of_a_failure(text: str, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_JOBS_TRACE", raising=False)
    assert first_cause(RuntimeError(text)) == cause
    monkeypatch.setenv("SPARK_JOBS_TRACE", "1")
    assert first_cause(RuntimeError(text)) == text


def test_what_a_python_process_of_spark_raised() -> None:
    text = (
        "[FOREACH_BATCH_USER_FUNCTION_ERROR] An error\nTraceback (most recent call last):\n"
        "  File x\nValueError: a\n\nDuring\nspark_jobs.some.errors.{}: the topic is another\n"
    )
    for kind in (JobError, StartRefused, SecondDriver):
        raised = job_error_in(RuntimeError(text.format(kind.__name__)))
        assert type(raised) is kind
        assert str(raised) == "the topic is another"
    assert job_error_in(RuntimeError(text.format("KeyError"))) is None
    assert job_error_in(RuntimeError("JobError: no trace")) is None


def test_the_cause_of_an_error_whose_java_has_ended() -> None:
    class JavaError(Exception):
        """As py4j's, which asks Java for its text."""

        def __str__(self) -> str:
            raise ConnectionRefusedError(111, "Connection refused")

    assert first_cause(JavaError()) == "Java has ended (JavaError)"
