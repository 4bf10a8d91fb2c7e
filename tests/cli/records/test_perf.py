"""`kbroker perf` against a broker: few records, and the lines of Kafka's tools."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from kbroker.cli.records.perf_lines import CONSUMER_HEADER

Kbroker = Callable[..., Any]


def test_produce_and_consume(kbroker: Kbroker, kafka_topic: str) -> None:
    sent = kbroker("perf", "produce", kafka_topic, "-n", "500", "--record-size", "64")
    assert sent.code == 0, sent.err
    assert re.fullmatch(
        r"500 records sent, [\d.]+ records/sec \([\d.]+ MB/sec\), [\d.]+ ms avg latency, "
        r"[\d.]+ ms max latency, \d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99\.9th\.",
        sent.lines[-1],
    )
    (length,) = set(map(len, kbroker("consume", kafka_topic, "-e", "-x").lines))
    assert length == 64
    read = kbroker("perf", "consume", kafka_topic, "-n", "500")
    assert read.code == 0, read.err
    header, line = read.lines
    assert header == CONSUMER_HEADER
    assert line.split(", ")[4] == "500"
    assert len(line.split(", ")) == len(header.split(", "))
    assert kbroker("perf", "consume", kafka_topic, "-n", "500", "--hide-header").lines[0] != header


def test_json(kbroker: Kbroker, kafka_topic: str) -> None:
    sent = kbroker("perf", "produce", kafka_topic, "-n", "10", "--throughput", "1000", "--json")
    (row,) = map(json.loads, sent.lines)
    assert row["records"] == 10
    assert row["records_per_s"] <= 1200
    assert {"avg_latency_ms", "p50_ms", "p999_ms", "mb_per_s"} < row.keys()
    few = kbroker("perf", "consume", kafka_topic, "-n", "11", "--timeout", "0", "--json")
    (row,) = map(json.loads, few.lines)
    assert row["records"] <= 10
    assert "no record came for 0 ms; 11 were to be read" in few.err


def test_latency(kbroker: Kbroker, kafka_topic: str) -> None:
    name = f"{kafka_topic}-latency"
    result = kbroker("perf", "latency", name, "-n", "5", "-s", "10")
    assert result.code == 0, result.err
    assert f"{name} does not exist; creating it with 1 partition" in result.err
    first, average, percentiles = result.lines
    assert re.fullmatch(r"0\t[\d.]+", first)
    assert re.fullmatch(r"Avg latency: [\d.]+ ms", average)
    assert re.fullmatch(r"Percentiles: 50th = \d+, 99th = \d+, 99\.9th = \d+", percentiles)
    (row,) = map(json.loads, kbroker("perf", "latency", name, "-n", "2", "--json").lines)
    assert row["records"] == 2


def test_mistakes(kbroker: Kbroker) -> None:
    without = kbroker("perf", "latency", "t", "--acks", "0")
    assert (without.code, without.err.count("\n")) == (2, 1)
    assert "latency needs acknowledgements" in without.err
    missing = kbroker("perf", "consume", "no-such-topic")
    assert (missing.code, missing.err.count("\n")) == (1, 1)
