"""Every job: progress as JSON, metrics, and the end by SIGTERM and Ctrl-C."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scripts.ports import free_port
from spark_jobs.archive import ArchiveOptions, archive
from spark_jobs.archive.commits import Commit, add_commit
from spark_jobs.cli import main, parser
from spark_jobs.java import java_problem
from spark_jobs.storage import Folder, absolute
from tests.clients.adapters import ConfluentAdapter, Sent
from tests.spark.archive_simulation import Cluster, SimulatedSpark, values_in, values_of
from tests.spark.copying.records import BASE_MS, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

ROOT = Path(__file__).resolve().parents[2]
ROWS = 3000
EVERY = ("--every", "200 milliseconds", "--maxOffsetsPerTrigger", "20")
STATEFUL = ("--checkpoint", "{folder}/cp", "--to", "{topic}-to")
BATCH_JOBS = {
    "archive": ("--topics", "{topic}", "--output", "{folder}/out", *EVERY),
    "restore": ("--archive", "{archive}", "--to", "{topic}-to", "--rate", "10"),
    "replay": ("--topic", "{topic}", "--to", "{topic}-to", "--rate", "10"),
    "mirror": ("--topics", "{topic}", "--prefix", "to.", "--checkpoint", "{folder}/cp", *EVERY),
    "dlq": ("--topic", "{topic}", *STATEFUL, *EVERY),
    "dlq-retry": ("--topic", "{topic}", *STATEFUL, "--maxOffsetsPerTrigger", "20"),
    "dedupe": ("--topic", "{topic}", *STATEFUL, "--by", "value", "--withoutId", "keep", *EVERY),
    "aggregate": ("--topic", "{topic}", *STATEFUL, *EVERY),
    "table": ("--topic", "{topic}-keyed", "--output", "{folder}/out", *EVERY),
}
"""The arguments of a run that has many batches."""

OTHER_JOBS = {
    "verify": ("--topic", "{topic}"),
    "lag": ("--group", "readers"),
    "groups-audit": (),
    "translate": ("--group", "readers"),
}
ALL_JOBS = BATCH_JOBS | OTHER_JOBS
NO_JOBS = {"check", "bundle", "spark-conf"}
JOBS_WITHOUT_BROKER = {"compact"}
SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)


def filled(words: tuple[str, ...], **values: str) -> list[str]:
    return [word.format(**values) for word in words]


def test_every_job_is_here_and_those_that_run_batches_show_them() -> None:
    jobs = next(
        action.choices
        for action in parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    assert set(jobs) - NO_JOBS - JOBS_WITHOUT_BROKER == set(ALL_JOBS)
    for name, job in jobs.items():
        options = job._option_string_actions
        assert ("--progress" in options) == ("--metrics-port" in options) == (name in BATCH_JOBS)


@contextmanager
def silent_broker(number: signal.Signals) -> Iterator[str]:
    """An address that takes connections and answers nothing; the first of them is a signal."""
    with socket.create_server(("localhost", 0)) as server:
        kept: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    kept.append(server.accept()[0])
                except OSError:
                    return
                if len(kept) == 1:
                    os.kill(os.getpid(), number)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        try:
            yield f"localhost:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in kept:
                connection.close()


@SIGNALS
@pytest.mark.parametrize("job", ALL_JOBS)
def test_a_signal_before_the_first_batch(
    job: str,
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It ended by SIGTERM itself, without a word and with its temporary folders left."""
    monkeypatch.chdir(tmp_path)
    archived = tmp_path / "archived"
    add_commit(Folder(absolute(str(archived))), Commit(1, "c", 1, 0, ("topic",), {"t": {0: 1}}))
    (archived / "topic=t").mkdir()
    (archived / "topic=t" / "p00000-000000000000-000000000000.parquet").touch()
    values = {"topic": "t", "folder": str(tmp_path), "archive": str(archived)}
    with silent_broker(number) as servers:
        words = filled(ALL_JOBS[job], **values)
        code = main([job, *words, "--bootstrap-servers", servers])
    said, errors = capfd.readouterr()
    assert (code, said) == (143 if number is signal.SIGTERM else 130, "")
    assert errors == "spark_jobs: interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@SIGNALS
def test_a_signal_ends_compact_between_two_changes(
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The next run goes on; the folders that it had prepared are gone then."""
    from spark_jobs.compact import parquet

    out = tmp_path / "out"
    cluster = Cluster(monkeypatch)
    cluster.add("t", 60)
    SimulatedSpark(cluster, 5).run(ArchiveOptions(output=str(out), subscribe="t"))
    words = ["compact", "--output", str(out), "--untouchedFor", "1 ms", "--minFiles", "2"]

    def merge(*_: object) -> int:
        os.kill(os.getpid(), number)
        raise AssertionError("the signal had no effect")

    with monkeypatch.context() as patch:
        patch.setattr(parquet, "merge", merge)
        assert main(words) == (143 if number is signal.SIGTERM else 130)
    assert capfd.readouterr() == ("", "spark_jobs: interrupted\n")
    assert values_in(out) == values_of(cluster.topics["t"])
    assert main(words) == 0
    assert capfd.readouterr().out.startswith("compacted ")
    assert values_in(out) == values_of(cluster.topics["t"])
    assert not any((out / "_archive" / "compaction").iterdir())


@pytest.fixture(scope="module")
def source(spark: SparkSession, bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A topic with records, an archive of it, and a topic whose records all have keys."""
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"signals-{os.getpid()}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    keyed = f"{topic}-keyed"
    for made in admin.create_topics([NewTopic(name, 2, 1) for name in (topic, keyed)]).values():
        made.result(20)
    fill(bootstrap, topic, range(ROWS), 2)
    rows = [Sent(b"%d" % (n % 50), b"value", (), BASE_MS + n, n % 2) for n in range(ROWS)]
    ConfluentAdapter(bootstrap).produce(keyed, rows, codec="none", idempotent=True)
    out = str(tmp_path_factory.mktemp("signals") / "out")
    archive(spark, ArchiveOptions(output=out, bootstrap_servers=bootstrap, subscribe=topic))
    return topic, out


def rows_total(port: int) -> float:
    """As Prometheus reads it."""
    with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return sum(s.value for f in families for s in f.samples if s.name == "kbroker_spark_rows_total")


@pytest.mark.spark
@pytest.mark.long_spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, id="SIGTERM"),
        pytest.param(signal.SIGINT, id="Ctrl-C", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("job", BATCH_JOBS)
def test_a_signal_ends_the_batch_with_the_summary(
    job: str,
    number: signal.Signals,
    source: tuple[str, str],
    bootstrap: str,
    tmp_path: Path,
) -> None:
    topic, out = source
    words = filled(BATCH_JOBS[job], topic=topic, folder=str(tmp_path), archive=out)
    words += ["--bootstrap-servers", bootstrap, "--master", "local[2]", "--json"]
    port = free_port()
    words += ["--progress", "json", "--metrics-port", str(port)]
    if job != "archive":
        words += ["--queryName", f"{topic}-{job}-{number.name}"]
    run = subprocess.Popen(
        [sys.executable, "-m", "spark_jobs", job, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert run.stderr is not None
        said = [first := run.stderr.readline()]
        while first and not first.startswith("{"):
            said.append(first := run.stderr.readline())
        assert first, (said, run.communicate())
        assert json.loads(first)["rows"] > 0
        assert rows_total(port) >= json.loads(first)["rows"]
        if number is signal.SIGINT:  # of a terminal: to all processes
            os.killpg(run.pid, number)
        else:
            run.send_signal(number)
        printed, errors = run.communicate(timeout=120)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    others = [line for line in errors.splitlines() if not line.startswith("{")]
    assert all(line.startswith("spark_jobs: created topic ") for line in others), errors
    assert run.returncode == 0, errors
    summary = json.loads(printed)
    assert 0 < summary["rows"] < ROWS


def test_the_port_of_metrics_is_checked(
    capfd: pytest.CaptureFixture[str], run_to_spark: Callable[..., int]
) -> None:
    assert run_to_spark("--metrics-port", "http") == 1
    assert capfd.readouterr().err == (
        "spark_jobs: --metrics-port http: write a port from 1 to 65535\n"
    )


@pytest.fixture
def run_to_spark(
    kafka_topic: str, kafka_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., int]:
    monkeypatch.chdir(tmp_path)
    given = ["archive", "--topics", kafka_topic, "--output", "out"]
    given += ["--bootstrap-servers", kafka_broker.bootstrap_servers]
    return lambda *words: main([*given, *words])
