"""Kafka's performance tools print such lines; the expected texts are in their formats."""

from __future__ import annotations

import re

from kbroker.cli.records.perf_lines import (
    CONSUMER_HEADER,
    ProducerStats,
    consumer_line,
    consumer_summary,
    latency_lines,
    latency_summary,
    percentiles,
    producer_line,
)


def test_producer() -> None:
    stats = ProducerStats(100, 1_000)
    lines = [stats.record(latency, 1024, 1_000 + 10 * latency) for latency in range(1, 101)]
    assert lines == [None] * 100
    assert producer_line(stats.summary(3_000)) == (
        "100 records sent, 50.000000 records/sec (0.05 MB/sec), 50.50 ms avg latency, "
        "100.00 ms max latency, 51 ms 50th, 96 ms 95th, 100 ms 99th, 100 ms 99.9th."
    )


def test_a_window_is_five_seconds() -> None:
    stats = ProducerStats(10, 0)
    assert stats.record(10, 2**20, 4_999) is None
    assert stats.record(30, 2**20, 5_000) == (
        "2 records sent, 0.4 records/sec (0.40 MB/sec), 20.0 ms avg latency, 30.0 ms max latency."
    )
    assert stats.record(1, 2**20, 6_000) is None
    assert stats.record(3, 2**20, 10_000) == (
        "2 records sent, 0.4 records/sec (0.40 MB/sec), 2.0 ms avg latency, 3.0 ms max latency."
    )


def test_nothing_was_sent() -> None:
    assert producer_line(ProducerStats(1, 0).summary(0)).startswith("0 records sent, 0.000000 ")


def test_percentiles() -> None:
    assert percentiles([3, 1, 2], (0.5, 0.99)) == [2, 3]
    assert percentiles([], (0.5,)) == [0]


def test_consumer() -> None:
    summary = consumer_summary(1_769_860_800_500, 1_769_860_802_500, 2**20, 1000)
    fields = consumer_line(summary).split(", ")
    assert len(fields) == len(CONSUMER_HEADER.split(", "))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:500", fields[0])
    expected = ["1.0000", "0.5000", "1000", "500.0000", "0", "2000", "0.5000", "500.0000"]
    assert fields[2:] == expected


def test_latency() -> None:
    summary = latency_summary([1_500_000, 2_500_000, 9_000_000])
    assert latency_lines(summary) == [
        "Avg latency: 4.3333 ms",
        "Percentiles: 50th = 2, 99th = 9, 99.9th = 9",
    ]
