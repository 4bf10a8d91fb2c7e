"""What scrapes of the metrics cost a broker and its clients.

    python -m benchmarks.scrapes [--partitions 10000] [--scrapers 10] [--seconds 10] [--settle 130]

A broker hosts so many partitions. A client asks for its API versions all the time, alone, beside
one scrape after the other, and beside scrapers that never pause. Told are the times of its answers,
the time of a scrape, and the broker's CPU and memory. Its own probe measures how long its loop was
late.
"""

from __future__ import annotations

import argparse
import http.client
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.wire import Client, create_topics
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.testing.process import BrokerProcess
from scripts.ports import free_port

PARTITIONS_PER_TOPIC: Final = 100
LONGEST_STALL: Final = re.compile(r"^kbroker_event_loop_stall_recent_max_seconds (\S+)$", re.M)


class Scrape(NamedTuple):
    """seconds: from the request to the last byte."""

    seconds: float
    text: str


def scrape(port: int) -> Scrape:
    """One scrape, read as fast as it comes."""
    begin = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    return Scrape(time.perf_counter() - begin, text)


@contextmanager
def scrapers(port: int, count: int) -> Iterator[list[float]]:
    """So many scrapers that never pause; the times of their scrapes."""
    times: list[float] = []
    stopping = threading.Event()

    def run() -> None:
        while not stopping.is_set():
            times.append(scrape(port).seconds)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield times
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def measure(broker: BrokerProcess, seconds: float) -> str:
    """Ask for so long; the times of the answers and the broker's CPU, as text."""
    client = Client(broker.host, broker.port)
    took: list[float] = []
    cpu, begin = broker.cpu_seconds(), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        asked = time.perf_counter()
        client.ask(ApiVersionsRequest(), ApiVersionsResponse, 0)
        took.append(time.perf_counter() - asked)
        time.sleep(0.002)
    share = (broker.cpu_seconds() - cpu) / (time.perf_counter() - begin)
    client.close()
    took.sort()
    p50, p99 = (took[int(len(took) * each)] * 1000 for each in (0.5, 0.99))
    return (
        f"p50 {p50:6.2f} ms  p99 {p99:6.2f} ms  max {took[-1] * 1000:6.2f} ms"
        f"  CPU {share:5.1%}  memory {broker.resident_bytes() / 1e6:.0f} MB"
    )


def main(partitions: int, count: int, seconds: float, settle_s: float) -> None:
    """Measure and print. settle_s: how long to wait after the topics are made."""
    port = free_port()
    overrides = {
        "kbroker.metrics.listener": f"127.0.0.1:{port}",
        "kbroker.metrics.max.series": str(12 * partitions + 10_000),
        "log.retention.ms": "-1",
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder) / "data", overrides=overrides) as broker,
    ):
        names = [
            (f"t{number}", PARTITIONS_PER_TOPIC)
            for number in range(partitions // PARTITIONS_PER_TOPIC)
        ]
        create_topics(broker, names)
        time.sleep(settle_s)
        print(f"{partitions} partitions")
        print(f"{'alone':<24}", measure(broker, seconds))
        for number in (1, count):
            with scrapers(port, number) as times:
                line = measure(broker, seconds)
            average = sum(times) / len(times)
            print(f"{f'{number} scrapers':<24}", line, f" a scrape {average:.2f} s")
        last = scrape(port)
        lines = sum(not line.startswith("#") for line in last.text.splitlines())
        match = LONGEST_STALL.search(last.text)
        stall_ms = float(match[1]) * 1000 if match is not None else float("nan")
        print(f"a scrape: {lines} series, {len(last.text) / 1e6:.1f} MB, {last.seconds:.2f} s")
        print(f"the longest delay of the loop meanwhile: {stall_ms:.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--scrapers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument(
        "--settle", type=float, default=130, help="seconds until the probe forgets the topics"
    )
    given = parser.parse_args()
    main(given.partitions, given.scrapers, given.seconds, given.settle)
