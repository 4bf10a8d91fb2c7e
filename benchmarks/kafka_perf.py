"""Kafka's own load tools as a client of either broker: ProducerPerformance, ConsumerPerformance and
EndToEndLatency of Apache Kafka 4.3.1, and their words taken as figures.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from scripts.kafka_jars import tools_class_path

TOOL_TIMEOUT_S = 600.0
HEAP = "1g"

_PRODUCED = re.compile(
    r"(?P<count>\d+) records sent, [\d.]+ records/sec \((?P<mb>[\d.]+) MB/sec\), "
    r"(?P<avg>[\d.]+) ms avg latency, [\d.]+ ms max latency, (?P<p50>\d+) ms 50th, "
    r"\d+ ms 95th, (?P<p99>\d+) ms 99th, (?P<p999>\d+) ms 99\.9th"
)
_AVERAGE = re.compile(r"Avg latency: (?P<avg>[\d.]+) ms")
_PERCENTILES = re.compile(
    r"50th = (?P<p50>[\d.]+), 99th = (?P<p99>[\d.]+), 99.9th = (?P<p999>[\d.]+)"
)


@dataclass(frozen=True, slots=True)
class Load:
    """What a tool says of its run; None where it says nothing of it."""

    mb_per_s: float | None = None
    average_ms: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None


class RecordsLostError(RuntimeError):
    """A producer gave records up."""


def run_tool(name: str, arguments: Sequence[str]) -> str:
    """Standard output of a tool of org.apache.kafka.tools; what it says of records that failed, and
    the errors that its client logs, are passed on.

    Raises RuntimeError with the end of its output if it fails or takes more than ten minutes.
    """
    command = ["java", f"-Xmx{HEAP}", "-cp", tools_class_path(), f"org.apache.kafka.tools.{name}"]
    try:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=TOOL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{name} took more than {TOOL_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        tail = (done.stdout + done.stderr).strip().splitlines()[-3:]
        raise RuntimeError(f"{name} ended with code {done.returncode}: {' | '.join(tail)}")
    for line in (done.stdout + done.stderr).splitlines():
        if "Exception" in line or " ERROR " in line:
            print(f"{name}: {line}", file=sys.stderr, flush=True)
    return done.stdout


def produce(
    bootstrap: str,
    topic: str,
    *,
    records: int,
    record_bytes: int,
    properties: Sequence[str] = (),
    records_per_s: int = -1,
) -> Load:
    """ProducerPerformance with acks=all. records_per_s: -1 as fast as it goes. Raises
    RecordsLostError.
    """
    output = run_tool(
        "ProducerPerformance",
        [
            *("--bootstrap-server", bootstrap, "--topic", topic),
            *("--num-records", str(records), "--record-size", str(record_bytes)),
            *("--throughput", str(records_per_s)),
            *("--command-property", "acks=all", *properties),
        ],
    )
    found = [match for match in _PRODUCED.finditer(output) if int(match["count"]) == records]
    if not found:
        raise RecordsLostError(f"{topic}: not all of {records} records were sent: {output[-300:]}")
    last = found[-1]
    return Load(
        # The tool's MB is 1,048,576 bytes.
        mb_per_s=float(last["mb"]) * 1.048576,
        average_ms=float(last["avg"]),
        p50_ms=float(last["p50"]),
        p99_ms=float(last["p99"]),
        p999_ms=float(last["p999"]),
    )


def consume(bootstrap: str, topic: str, *, records: int) -> Load:
    """ConsumerPerformance from the start of the topic; its rate is without the time in which the
    group formed.
    """
    output = run_tool(
        "ConsumerPerformance",
        [
            *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records)),
            *("--timeout", "30000", "--hide-header"),
        ],
    )
    lines = [line for line in output.splitlines() if line.count(", ") >= 9]
    if not lines:
        raise RuntimeError(f"ConsumerPerformance gave no figures: {output[-300:]}")
    fields = lines[-1].split(", ")
    if int(fields[4]) < records:
        raise RuntimeError(f"ConsumerPerformance read {fields[4]} of {records} records")
    return Load(mb_per_s=float(fields[8]) * 1.048576)


def end_to_end(bootstrap: str, topic: str, *, records: int, record_bytes: int) -> Load:
    """EndToEndLatency, acks=1: from a send to the record's arrival at a consumer, one at a time."""
    output = run_tool("EndToEndLatency", [bootstrap, topic, str(records), "1", str(record_bytes)])
    average, percentiles = _AVERAGE.search(output), _PERCENTILES.search(output)
    if average is None or percentiles is None:
        raise RuntimeError(f"EndToEndLatency gave no figures: {output[-300:]}")
    return Load(
        average_ms=float(average["avg"]),
        p50_ms=float(percentiles["p50"]),
        p99_ms=float(percentiles["p99"]),
        p999_ms=float(percentiles["p999"]),
    )
