"""How long from `kbroker serve` on an empty folder to the first acknowledged record, and what an
idle broker costs.

    python benchmarks/start.py [--runs 7] [--kafka] [--install]

Goals: 0.4 s, 45 MB. --kafka measures Apache Kafka 4.3.1 in the same run (format + start; needs
Java). --install makes a fresh virtual environment, installs kbroker into it and says how large it
became.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kbroker.protocol.batches.batch_builder import build_batch  # noqa: E402
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest  # noqa: E402
from kbroker.protocol.messages.metadata import MetadataRequest  # noqa: E402
from kbroker.protocol.messages.produce import ProduceRequest  # noqa: E402
from kbroker.testing.process import BrokerProcess  # noqa: E402
from scripts.apache_kafka import ApacheKafka  # noqa: E402
from tests.e2e.wire import call  # noqa: E402


def first_record(port: int, deadline: float) -> float:
    """Connect, create a topic, produce one record with acks=all; gives the time it was
    acknowledged.
    """
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=5)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)
    topic = CreateTopicsRequest.CreatableTopic(name="first", num_partitions=1, replication_factor=1)
    batch = build_batch([(int(time.time() * 1000), b"key", b"value", [])])
    data = ProduceRequest.PartitionProduceData(index=0, records=batch)
    produce = ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        topic_data=[ProduceRequest.TopicProduceData(name="first", partition_data=[data])],
    )
    with connection:
        # A Kafka that has just opened its port refuses for a while: ask until it knows a broker.
        while not call(connection, MetadataRequest(topics=[]), 9).brokers:
            time.sleep(0.005)
        while time.monotonic() < deadline:
            call(connection, CreateTopicsRequest(topics=[topic], timeout_ms=5000), 5)
            answer = call(connection, produce, 9)
            if answer.responses[0].partition_responses[0].error_code == 0:
                return time.monotonic()
            time.sleep(0.005)
    raise TimeoutError("no record was acknowledged")


def measure(server: BrokerProcess | ApacheKafka, start: float, settle_s: float) -> dict[str, float]:
    """Of a server that was started at `start`; stops it."""
    try:
        done = first_record(server.port, start + 60)
        time.sleep(settle_s)
        return {"first_record_s": done - start, "idle_rss_mb": server.resident_bytes() / 1e6}
    finally:
        server.stop()


def run_kbroker(folder: Path, settle_s: float) -> dict[str, float]:
    start = time.monotonic()
    return measure(BrokerProcess(folder).start(), start, settle_s)


def run_kafka(folder: Path, settle_s: float) -> dict[str, float]:
    server = ApacheKafka(folder, heap="1g")
    start = time.monotonic()
    server.format()
    server.launch()
    return measure(server, start, settle_s)


def install_size(folder: Path) -> dict[str, float]:
    """Install the checkout into a fresh virtual environment; MB of all it brought, pip itself left
    out.
    """
    environment = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip"]
    packages = environment / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    before = tree_bytes(packages)
    start = time.monotonic()
    subprocess.run([*pip, "install", "-q", str(ROOT)], check=True)
    return {
        "install_mb": (tree_bytes(packages) - before) / 1e6,
        "install_s": time.monotonic() - start,
    }


def tree_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> int:
    """Measure, print a table and one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument(
        "--kafka", action="store_true", help="Apache Kafka 4.3.1 too, in turn with kbroker"
    )
    parser.add_argument("--install", action="store_true", help="install size as well")
    arguments = parser.parse_args()
    results: dict[str, list[dict[str, float]]] = {"kbroker": []}
    runners = {"kbroker": run_kbroker}
    if arguments.kafka:
        results["kafka"] = []
        runners["kafka"] = run_kafka
    base = Path(tempfile.mkdtemp(prefix="kbroker-start-"))
    # An installed package has its bytecode compiled.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        for number in range(
            arguments.runs + 1
        ):  # the first warms the page cache and is not counted
            for name, runner in runners.items():
                figures = runner(base / f"{name}-{number}", 1.0)
                if number:
                    results[name].append(figures)
        print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
        report: dict[str, dict[str, float]] = {}
        for name, runs in results.items():
            report[name] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            spread = [run["first_record_s"] for run in runs]
            print(
                f"{name:8} first acknowledged record {report[name]['first_record_s']:.3f} s "
                f"(median of {len(runs)}, {min(spread):.3f} to {max(spread):.3f}), "
                f"idle RSS {report[name]['idle_rss_mb']:.1f} MB"
            )
        if arguments.install:
            report["install"] = install_size(base)
            print(f"install  {report['install']['install_mb']:.1f} MB in site-packages")
        print(json.dumps(report))
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
