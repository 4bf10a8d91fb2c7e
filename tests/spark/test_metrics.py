"""What Prometheus gets of a job, by Prometheus' own parser."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spark_jobs.errors import JobError
from spark_jobs.metrics import CONTENT_TYPE, Metrics, parse_port, serving
from spark_jobs.progress import BatchProgress

Samples = dict[tuple[str, str], float]


def samples(text: str) -> Samples:
    """Values by name and by partition, "" without."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["job"] == "archive"
            found[sample.name, sample.labels.get("partition", "")] = sample.value
    return found


def test_sums_and_the_last_batch() -> None:
    metrics = Metrics("archive")
    metrics.record('a "query"', BatchProgress(6, 70, 10.0, 20, 7000, {"t": {0: 70, 1: 5}}), 3)
    metrics.record('a "query"', BatchProgress(7, 0, 0.0, 20, 500, {"t": {0: 90}}), 4)
    assert samples(metrics.text()) == {
        ("kbroker_spark_rows_total", ""): 70,
        ("kbroker_spark_batches_total", ""): 1,
        ("kbroker_spark_files_total", ""): 4,
        ("kbroker_spark_lag_records", ""): 20,
        ("kbroker_spark_rows_per_second", ""): 0,
        ("kbroker_spark_last_batch_seconds", ""): 0.5,
        ("kbroker_spark_last_batch_id", ""): 7,
        ("kbroker_spark_next_offset", "0"): 90,
        ("kbroker_spark_next_offset", "1"): 5,
    }
    metrics.record('a "query"', BatchProgress(8, 40, 10.0, 20, 500, {}), 4)
    assert samples(metrics.text())["kbroker_spark_behind_seconds", ""] == 2


def test_queries_are_told_apart_and_names_may_have_any_character() -> None:
    metrics = Metrics("archive")
    names = ('a "query"', "back\\slash\nand line")
    for name in names:
        metrics.record(name, BatchProgress(0, 1, 1.0, 0, 1, {}), 0)
    rows = next(iter(text_string_to_metric_families(metrics.text())))
    assert [sample.labels["query"] for sample in rows.samples] == list(names)


@pytest.fixture
def port() -> int:
    with socket.create_server(("", 0)) as free:
        return int(free.getsockname()[1])


def test_it_is_served_while_the_block_runs(port: int) -> None:
    metrics = Metrics("archive")
    with serving(metrics, port):
        metrics.record("q", BatchProgress(0, 5, 1.0, 0, 1, {}), 0)
        with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPE
            assert samples(answer.read().decode())["kbroker_spark_rows_total", ""] == 5
        with pytest.raises(urllib.error.HTTPError, match="404") as raised:
            urllib.request.urlopen(f"http://localhost:{port}/", timeout=10)
        raised.value.close()
        with pytest.raises(JobError, match=f"--metrics-port {port}: Address already in use"):
            serving(metrics, port).__enter__()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=10)


@pytest.mark.parametrize("text", ["", "x", "0", "65536", "-1", "1.5"])
def test_no_port(text: str) -> None:
    with pytest.raises(ValueError, match="write a port from 1 to 65535"):
        parse_port(text)
