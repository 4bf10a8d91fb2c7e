"""The lines that Kafka's ProducerPerformance, ConsumerPerformance and EndToEndLatency print, from
numbers. Times are in ms, sizes in bytes; a MB is 2**20 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

MB: Final = 1024 * 1024
REPORTING_INTERVAL_MS: Final = 5_000
MAX_SAMPLES: Final = 500_000
CONSUMER_HEADER: Final = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
    "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)


class ProducerStats:
    """Latencies of acknowledged records. sampling: of so many records one counts for the
    percentiles.
    """

    def __init__(self, num_records: int, now_ms: int) -> None:
        self._start_ms = self._window_start_ms = now_ms
        self._sampling = max(num_records // MAX_SAMPLES, 1)
        self._samples: list[int] = []
        self.count = self.size = self._total_latency = self._max_latency = 0
        self._window_count = self._window_size = 0
        self._window_latency = self._window_max_latency = 0

    def record(self, latency_ms: int, size: int, now_ms: int) -> str | None:
        """A record is acknowledged. Returns the line of the last 5 s when they are over."""
        if self.count % self._sampling == 0:
            self._samples.append(latency_ms)
        self.count += 1
        self.size += size
        self._total_latency += latency_ms
        self._max_latency = max(self._max_latency, latency_ms)
        self._window_count += 1
        self._window_size += size
        self._window_latency += latency_ms
        self._window_max_latency = max(self._window_max_latency, latency_ms)
        if now_ms - self._window_start_ms < REPORTING_INTERVAL_MS:
            return None
        line = self._window_line(now_ms)
        self._window_start_ms = now_ms
        self._window_count = self._window_size = 0
        self._window_latency = self._window_max_latency = 0
        return line

    def _window_line(self, now_ms: int) -> str:
        elapsed_s = max(now_ms - self._window_start_ms, 1) / 1000
        return (
            f"{self._window_count} records sent, {self._window_count / elapsed_s:.1f} records/sec "
            f"({self._window_size / elapsed_s / MB:.2f} MB/sec), "
            f"{self._window_latency / self._window_count:.1f} ms avg latency, "
            f"{self._window_max_latency:.1f} ms max latency."
        )

    def summary(self, now_ms: int) -> dict[str, float]:
        """The numbers of the last line."""
        elapsed_s = max(now_ms - self._start_ms, 1) / 1000
        p50, p95, p99, p999 = percentiles(self._samples, (0.5, 0.95, 0.99, 0.999))
        return {
            "records": self.count,
            "records_per_s": self.count / elapsed_s,
            "mb_per_s": self.size / elapsed_s / MB,
            "avg_latency_ms": self._total_latency / max(self.count, 1),
            "max_latency_ms": self._max_latency,
            "p50_ms": p50,
            "p95_ms": p95,
            "p99_ms": p99,
            "p999_ms": p999,
        }


def producer_line(summary: dict[str, float]) -> str:
    """The last line of ProducerPerformance."""
    return (
        f"{summary['records']} records sent, {summary['records_per_s']:.6f} records/sec "
        f"({summary['mb_per_s']:.2f} MB/sec), {summary['avg_latency_ms']:.2f} ms avg latency, "
        f"{summary['max_latency_ms']:.2f} ms max latency, {summary['p50_ms']} ms 50th, "
        f"{summary['p95_ms']} ms 95th, {summary['p99_ms']} ms 99th, {summary['p999_ms']} ms 99.9th."
    )


def percentiles(samples: Sequence[int], parts: Sequence[float]) -> list[int]:
    """By rank, as Kafka's tools take them; 0 where there is no sample."""
    ordered = sorted(samples)
    if not ordered:
        return [0] * len(parts)
    return [ordered[int(part * len(ordered))] for part in parts]


def consumer_summary(start_ms: int, end_ms: int, size: int, count: int) -> dict[str, float]:
    """The numbers of ConsumerPerformance. Partitions are assigned, so no time goes into a
    rebalance.
    """
    elapsed_s = max(end_ms - start_ms, 1) / 1000
    return {
        "start_ms": start_ms,
        "end_ms": end_ms,
        "mb": size / MB,
        "mb_per_s": size / MB / elapsed_s,
        "records": count,
        "records_per_s": count / elapsed_s,
        "rebalance_ms": 0,
        "fetch_ms": end_ms - start_ms,
    }


def consumer_line(summary: dict[str, float]) -> str:
    """The line below `CONSUMER_HEADER`."""
    rates = f"{summary['mb_per_s']:.4f}, {summary['records']}, {summary['records_per_s']:.4f}"
    return (
        f"{_date(summary['start_ms'])}, {_date(summary['end_ms'])}, {summary['mb']:.4f}, {rates}, "
        f"{summary['rebalance_ms']}, {summary['fetch_ms']}, {summary['mb_per_s']:.4f}, "
        f"{summary['records_per_s']:.4f}"
    )


def _date(time_ms: float) -> str:
    """yyyy-MM-dd HH:mm:ss:SSS in this machine's zone."""
    moment = datetime.fromtimestamp(time_ms / 1000).astimezone()
    return f"{moment:%Y-%m-%d %H:%M:%S}:{int(time_ms) % 1000:03}"


def latency_summary(latencies_ns: Sequence[int]) -> dict[str, float]:
    """The numbers of EndToEndLatency. latencies_ns: one per record, at least one."""
    whole_ms = [latency // 1_000_000 for latency in latencies_ns]
    p50, p99, p999 = percentiles(whole_ms, (0.5, 0.99, 0.999))
    average_ms = sum(latencies_ns) / len(latencies_ns) / 1_000_000
    return {
        "records": len(latencies_ns),
        "avg_ms": average_ms,
        "p50_ms": p50,
        "p99_ms": p99,
        "p999_ms": p999,
    }


def latency_lines(summary: dict[str, float]) -> list[str]:
    """The last lines of EndToEndLatency."""
    return [
        f"Avg latency: {summary['avg_ms']:.4f} ms",
        f"Percentiles: 50th = {summary['p50_ms']}, 99th = {summary['p99_ms']}, "
        f"99.9th = {summary['p999_ms']}",
    ]
