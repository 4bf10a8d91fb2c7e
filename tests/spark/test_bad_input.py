"""What a job says where a password is wrong, rights are missing, executors lack a package or a
record is huge: one line, and nothing that the next run counts twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from kbroker.testing.process import BrokerProcess
from scripts.apache_kafka import ApacheKafka
from scripts.ports import free_port
from spark_jobs.archive import ArchiveOptions, archive
from spark_jobs.errors import JobError
from spark_jobs.java import java_problem
from tests.clients.adapters import ConfluentAdapter, Sent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 20
LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
HUGE_BYTES = 100_000_000
HUGE_BATCH = {"message.max.bytes": str(HUGE_BYTES + 100_000), "log.retention.ms": "-1"}


def fill(bootstrap: str, topic: str) -> None:
    records = [Sent(None, b"%d" % number, (), 1_700_000_000_000, 0) for number in range(RECORDS)]
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)


class SecuredKafka:
    """Apache Kafka with a listener on which users log in; ada may do all, bob nothing."""

    def __init__(self, folder: Path) -> None:
        internal, self.secured, controller = (f"127.0.0.1:{free_port()}" for _ in range(3))
        overrides = {
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"INTERNAL://{internal},CLEAR://{self.secured},CONTROLLER://{controller}",
            "listener.security.protocol.map": (
                "INTERNAL:PLAINTEXT,CLEAR:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "inter.broker.listener.name": "INTERNAL",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.clear.plain.sasl.jaas.config": (
                f'{LOGIN_MODULE} user_ada="right" user_bob="right";'
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:ada",
            "log.retention.ms": "-1",
        }
        self.kafka = ApacheKafka(folder / "data", overrides=overrides)
        self.kafka.port = int(internal.rpartition(":")[2])

    def options(self, output: Path, user: str, password: str) -> ArchiveOptions:
        """Of an archive of `topic`."""
        source = {
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": f'{LOGIN_MODULE} username="{user}" password="{password}";',
        }
        return ArchiveOptions(str(output), self.secured, "topic", source_options=source)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[SecuredKafka]:
    made = SecuredKafka(tmp_path / "kafka")
    with made.kafka as kafka:
        ConfluentAdapter(kafka.bootstrap_servers).create_topic("topic", 1)
        fill(kafka.bootstrap_servers, "topic")
        yield made


@pytest.mark.reference
def test_a_wrong_password_and_missing_rights(
    spark: SparkSession, secured: SecuredKafka, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    for user, password, said in (
        ("ada", "wrong", r"Authentication failed|Invalid username or password"),
        ("bob", "right", r"Not authorized to access topics|authoriz"),
    ):
        with pytest.raises(JobError, match=said) as raised:
            archive(spark, secured.options(output, user, password))
        assert "\n" not in str(raised.value)
        assert "right" not in str(raised.value) and "wrong" not in str(raised.value)
    assert archive(spark, secured.options(output, "ada", "right")).archived == RECORDS
    assert pq.read_table(output).num_rows == RECORDS


def test_executors_without_pyarrow(
    bootstrap: str, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    """They need it to decode values; files of bytes Spark writes without Python."""
    import py4j
    import pyspark

    topic, packages = new_topic(1), tmp_path / "packages"
    fill(bootstrap, topic)
    packages.mkdir()
    for module in (pyspark, py4j):
        folder = Path(module.__file__).parent
        (packages / folder.name).symlink_to(folder)
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n'
    )
    python.chmod(0o755)
    command = [sys.executable, "-m", "spark_jobs", "archive", "--bootstrap-servers", bootstrap]
    command += ["--topics", topic, "--master", "local[1]", "--output"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    bare = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": sys.executable}

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            env=environment | more,
            capture_output=True,
            text=True,
        )

    strings = ("strings", "--decode", "string")
    failed = run(*strings, **bare)
    assert failed.returncode == 1
    assert "pyarrow" in failed.stderr.lower(), failed.stderr
    assert failed.stderr.count("\n") == 1, failed.stderr
    assert run(*strings).returncode == 0
    assert run("bytes", **bare).returncode == 0
    for output in ("strings", "bytes"):
        assert pq.read_table(tmp_path / output).num_rows == RECORDS


READS = """
import sys
from spark_jobs.data_source.source import register
from spark_jobs.errors import first_cause
from spark_jobs.session import open_session

with open_session("reads", {"spark.master": "local[1]"}) as spark:
    register(spark)
    frame = spark.read.format("kbroker").option("kafka.bootstrap.servers", sys.argv[1])
    try:
        print(frame.option("subscribe", sys.argv[2]).load().select("value").distinct().count())
    except Exception as error:
        print(first_cause(error))
"""


def test_executors_without_a_codec(
    bootstrap: str, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    """The connector brings its codecs in Java; the format `kbroker` decompresses in Python."""
    topic, hidden = new_topic(1), tmp_path / "hidden"
    records = [Sent(None, b"%d" % n * 50, (), 1_700_000_000_000, 0) for n in range(RECORDS)]
    ConfluentAdapter(bootstrap).produce(topic, records, codec="lz4", idempotent=True)
    hidden.mkdir()
    (hidden / "lz4.py").write_text("raise ModuleNotFoundError(\"No module named 'lz4'\")\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{hidden}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)

    def run(worker: str) -> str:
        environment = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": worker}
        return subprocess.run(
            [sys.executable, "-c", READS, bootstrap, topic],
            cwd=tmp_path,
            env=os.environ | environment | {"PYSPARK_DRIVER_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    said = run(str(python))
    assert said == (
        "No module named 'lz4' in Spark's Python workers: install it on the executors too\n"
    )
    assert run(sys.executable) == f"{RECORDS}\n"


@pytest.fixture
def large(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", overrides=HUGE_BATCH) as broker:
        yield broker


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_record_of_100_mb(large: BrokerProcess, tmp_path: Path) -> None:
    """Between small ones: too large for the memory that Spark takes unasked, and archived with
    more. Another process, as Java ends.
    """
    from confluent_kafka import Producer

    bootstrap, output = large.bootstrap_servers, tmp_path / "out"
    ConfluentAdapter(bootstrap).create_topic("large", 1)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "message.max.bytes": HUGE_BYTES + 50_000, "linger.ms": 0}
    )
    value = os.urandom(HUGE_BYTES // 100) * 100
    for each in (b"before", value, b"behind"):
        producer.produce("large", value=each)
        assert producer.flush(60) == 0
    command = [sys.executable, "-m", "spark_jobs", "archive", "--bootstrap-servers", bootstrap]
    command += ["--topics", "large", "--output", str(output), "--master", "local[1]"]

    def run(memory: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, "--conf", f"spark.driver.memory={memory}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )

    failed = run("512m")
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1), failed.stderr
    assert "Java ran out of memory" in failed.stderr
    assert "--conf spark.driver.memory=" in failed.stderr
    done = run("3g")
    assert (done.returncode, done.stderr) == (0, "")
    values = pq.read_table(output)["value"].to_pylist()
    assert sorted(map(len, values)) == [6, 6, HUGE_BYTES]
    assert value in values
