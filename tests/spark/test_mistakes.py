"""What `python -m spark_jobs archive` says of a mistake: one line, and most before Spark starts."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.client import cluster
from kbroker.testing import EmbeddedBroker
from spark_jobs import session
from spark_jobs.__main__ import main
from spark_jobs.archive import counted
from spark_jobs.checks import check_pair, is_local
from spark_jobs.java import java_problem
from spark_jobs.session import JobError

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

Archive = Callable[..., tuple[int, str]]


@pytest.fixture
def archive(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kafka_broker: EmbeddedBroker,
) -> Archive:
    """Run the job in this process up to the start of Spark; its exit code and standard error."""
    monkeypatch.chdir(tmp_path)

    def refuse(name: str) -> None:
        raise JobError("Spark would start now")

    monkeypatch.setattr("spark_jobs.archive.open_session", refuse)

    def run(*arguments: str, output: str = "out") -> tuple[int, str]:
        standard = ("--bootstrap-servers", kafka_broker.bootstrap_servers, "--output", output)
        code = main(["archive", *standard, *arguments])
        out, err = capfd.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        return code, err

    return run


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def test_nothing_is_wrong(archive: Archive, kafka_topic: str) -> None:
    assert archive("--topics", kafka_topic) == (1, "spark_jobs: Spark would start now\n")
    assert archive("--topics-pattern", ".*") == (1, "spark_jobs: Spark would start now\n")


@pytest.mark.parametrize("options", [[], ["--kafka-option", "kafka.security.protocol=SASL_SSL"]])
def test_a_broker_that_is_down(archive: Archive, closed_port: int, options: list[str]) -> None:
    address = f"127.0.0.1:{closed_port}"
    code, said = archive("--topics", "t", "--bootstrap-servers", address, *options)
    assert code == 1
    assert said == f"spark_jobs: no broker answers: {address}: Connection refused\n"


def test_an_address_that_is_none(archive: Archive) -> None:
    code, said = archive("--topics", "t", "--bootstrap-servers", "a:b:c")
    assert (code, "'a:b:c' is no broker address" in said) == (1, True)


def test_an_advertised_address_that_cannot_be_reached(
    archive: Archive, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "ADVERTISED_GRACE_S", 0.0)
    settings = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{closed_port}"}
    with EmbeddedBroker(settings) as broker:
        broker.create_topic("t")
        said = archive("--topics", "t", "--bootstrap-servers", broker.bootstrap_servers)[1]
    assert f"broker 1 advertises 127.0.0.1:{closed_port}, which this machine cannot reach" in said
    assert "check advertised.listeners" in said


def test_a_topic_that_is_not_there(archive: Archive, kafka_topic: str) -> None:
    code, said = archive("--topics", f"{kafka_topic},no-{kafka_topic}")
    assert (code, said) == (
        1,
        f"spark_jobs: UNKNOWN_TOPIC_OR_PARTITION: topic no-{kafka_topic}\n",
    )


def test_an_output_that_cannot_be_written(
    archive: Archive, kafka_topic: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    code, said = archive("--topics", kafka_topic, output="file/out")
    assert code == 1
    assert said.startswith(f"spark_jobs: --output {tmp_path}/file/out cannot be written: ")
    code, said = archive("--topics", kafka_topic, "--checkpoint", "file")
    assert (code, "--checkpoint" in said) == (1, True)


def test_a_checkpoint_without_its_output(
    archive: Archive, kafka_topic: str, tmp_path: Path
) -> None:
    commits = tmp_path / "out.checkpoint" / "commits"
    commits.mkdir(parents=True)
    assert "Spark would start" in archive("--topics", kafka_topic)[1]
    (commits / "0").touch()
    code, said = archive("--topics", kafka_topic)
    assert code == 1
    assert f"{tmp_path}/out has none of them (no _spark_metadata): bring the output back" in said


def test_an_output_without_its_checkpoint(
    archive: Archive, kafka_topic: str, tmp_path: Path
) -> None:
    """Spark would skip as many batches as the output has."""
    metadata = tmp_path / "out" / "_spark_metadata"
    metadata.mkdir(parents=True)
    (metadata / "0").touch()
    code, said = archive("--topics", kafka_topic)
    assert code == 1
    assert f"{tmp_path}/out was written with another checkpoint than {tmp_path}/out." in said


@pytest.mark.parametrize(
    ("there", "is_refused"),
    [
        ([], False),
        (["out/_spark_metadata", "cp/offsets", "cp/commits"], False),
        (["cp/offsets"], False),  # killed in its first batch
        (["out/_spark_metadata", "cp/offsets"], False),  # killed before it was committed
        (["cp/offsets", "cp/commits"], True),
        (["out/_spark_metadata"], True),
    ],
)
def test_output_and_checkpoint(there: list[str], is_refused: bool) -> None:
    def check() -> None:
        check_pair("out", "cp", lambda path: path in there)

    if is_refused:
        with pytest.raises(JobError):
            check()
    else:
        check()


def test_local_paths() -> None:
    assert [is_local(path) for path in ("out", "/out", "./a:b", "s3a://b/o", "file:/o")] == [
        *(True, True, True),
        *(False, False),
    ]


def test_why_java_ended() -> None:
    package = "org.apache.spark#spark-sql-kafka-0-10_2.13;4.0.9"
    log = f"noise\n\t\t:: {package}: not found\nException in thread " + '"main" '
    log += f"java.lang.RuntimeException: [unresolved dependency: {package}: not found]\n\tat x\n"
    assert session._reason(log).startswith(f": {package}: not found")
    assert session._reason("Error: no such master\nmore") == ": no such master"
    assert session._reason("") == ""


def test_artifacts_of_spark_submit_are_removed(tmp_path: Path) -> None:
    with session._without_artifacts(tmp_path):
        (tmp_path / "artifacts" / "spark-1").mkdir(parents=True)
    assert not (tmp_path / "artifacts").exists()
    (tmp_path / "artifacts" / "mine").mkdir(parents=True)
    with session._without_artifacts(tmp_path):
        (tmp_path / "artifacts" / "spark-2").mkdir()
    assert os.listdir(tmp_path / "artifacts") == ["mine"]


def test_counted() -> None:
    assert [counted(n, "record") for n in (0, 1, 2000)] == [
        "0 records",
        "1 record",
        "2,000 records",
    ]
    assert counted(1, "batch") + counted(2, "batch") == "1 batch2 batches"
