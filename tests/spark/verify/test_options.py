"""The command line of `verify`, and its report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import get_args

import pytest

from kbroker.testing import EmbeddedBroker
from spark_jobs.__main__ import main
from spark_jobs.errors import JobError
from spark_jobs.java import java_problem
from spark_jobs.verify.facts import Field, PartitionFacts
from spark_jobs.verify.options import FIELDS, parse_fields, verify_options
from spark_jobs.verify.report import VerifyReport


def test_fields() -> None:
    assert get_args(Field) == FIELDS
    assert parse_fields("timestamp, headers") == {"timestamp", "headers"}
    assert parse_fields("") == frozenset()
    with pytest.raises(ValueError, match="write names out of timestamp, headers, offset"):
        parse_fields("key")


def test_values() -> None:
    options, archive = verify_options({"topic": "t"})
    assert (options.topic.topic, options.copy, archive) == ("t", None, None)
    assert options.topic.address.bootstrap_servers == "localhost:9092"
    options, archive = verify_options(
        {
            "topic": "t",
            "kafka.bootstrap.servers": "a:1",
            "againstTopic": "u",
            "againstBootstrapServers": "b:2",
            "keepsPartitions": "false",
            "ignore": "timestamp",
        }
    )
    assert options.copy is not None
    assert (options.copy.topic, options.copy.address.bootstrap_servers) == ("u", "b:2")
    assert (options.keeps_partitions, options.ignored) == (False, {"timestamp"})
    assert verify_options({"topic": "t", "againstArchive": "/x"})[1] == "/x"


def test_the_copy_in_another_cluster_has_the_same_name() -> None:
    options, _ = verify_options({"topic": "t", "againstBootstrapServers": "b:2"})
    assert options.copy is not None
    assert (options.copy.topic, options.copy.address.bootstrap_servers) == ("t", "b:2")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "--topic is needed"),
        ({"topic": "t", "againstTopic": "u", "againstArchive": "/x"}, "give one of them"),
        (
            {"topic": "t", "againstArchive": "/x", "keepsPartitions": "false"},
            "--keepsPartitions is of a copy that is a topic: --againstArchive takes none",
        ),
        (
            {"topic": "t", "againstArchive": "/x", "againstBootstrapServers": "b:2"},
            "--againstBootstrapServers is of a copy that is a topic",
        ),
        (
            {"topic": "t", "againstBootstrapServers": "localhost:9092"},
            "topic t of localhost:9092 would be compared with itself",
        ),
        ({"topic": "t", "kafka.security.protocol": "SSL"}, "reads without TLS and SASL"),
    ],
)
def test_values_that_cannot_be(values: dict[str, str], why: str) -> None:
    with pytest.raises(JobError, match=why):
        verify_options(values)


def test_reports() -> None:
    facts = PartitionFacts("t", 0, 0, 12, records=9, markers=2, aborted=1, ordered="ab")
    alone = VerifyReport([facts], [], [])
    assert alone.to_text() == (
        "t-0: offsets 0 to 12, 9 records, 2 markers, 1 aborted, hash ab\n"
        "9 records, nothing is missing"
    )
    assert alone.exit_code == 0
    assert (
        VerifyReport([facts], [facts], []).to_text().endswith("\nthe same 9 records on both sides")
    )
    broken = VerifyReport([facts], [facts], ["x is missing"], ["y was deleted"])
    assert broken.exit_code == 1
    assert broken.to_text().splitlines()[1:] == [
        "note: y was deleted",
        "finding: x is missing",
        "1 findings in 9 records",
    ]
    assert broken.to_json()["is_equal"] is False


@pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")
def test_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kafka_broker: EmbeddedBroker,
    kafka_topic: str,
) -> None:
    """Up to the start of Spark, and what is printed of the report."""
    report = VerifyReport([PartitionFacts(kafka_topic, 0, 0, 0)], [], ["x is missing"])
    opened = []

    @contextmanager
    def open_session(name: str, settings: Mapping[str, str]) -> Iterator[None]:
        opened.append((name, dict(settings)))
        yield

    monkeypatch.setattr("spark_jobs.cli.open_session", open_session)
    monkeypatch.setattr("spark_jobs.verify.job.verify", lambda spark, options: report)
    arguments = ["verify", "--bootstrap-servers", kafka_broker.bootstrap_servers, "--topic"]
    assert main([*arguments, kafka_topic, "--master", "local[1]"]) == 1
    assert capsys.readouterr().out == report.to_text() + "\n"
    assert opened == [(f"verify {kafka_topic}", {"spark.master": "local[1]"})]
    assert main([*arguments, kafka_topic, "--json"]) == 1
    assert '"findings": ["x is missing"]' in capsys.readouterr().out
    assert main([*arguments, "absent"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("spark_jobs: topic absent does not exist: create it")
    assert said.count("\n") == 1
    assert len(opened) == 2
