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

from kbroker.protocol.messages.metadata import MetadataRequest  # noqa: E402
from kbroker.protocol.messages.produce import ProduceRequest  # noqa: E402
from kbroker.protocol.messages.topics import CreateTopicsRequest  # noqa: E402
from kbroker.protocol.records import build_batch  # noqa: E402
from tests.e2e.wire import call  # noqa: E402


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def measure(
    commands: list[list[str]], port: int, environment: dict[str, str], settle_s: float
) -> dict[str, float]:
    """Run all commands but the last to their end, leave the last one running, and measure from the
    very start.
    """
    start = time.monotonic()
    for command in commands[:-1]:
        subprocess.run(command, check=True, capture_output=True, env=environment)
    process = subprocess.Popen(
        commands[-1], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        done = first_record(port, start + 60)
        time.sleep(settle_s)
        return {"first_record_s": done - start, "idle_rss_mb": resident_bytes(process.pid) / 1e6}
    finally:
        process.terminate()
        process.wait(30)


def plain_environment() -> dict[str, str]:
    """Without PYTHONDONTWRITEBYTECODE: an installed package has its bytecode compiled."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def run_kbroker(folder: Path, settle_s: float) -> dict[str, float]:
    port = free_port()
    command = [sys.executable, "-m", "kbroker", "serve"]
    command += [
        "--override",
        f"listeners=PLAINTEXT://127.0.0.1:{port}",
        "--override",
        f"log.dirs={folder}",
    ]
    return measure([command], port, plain_environment(), settle_s)


def run_kafka(folder: Path, settle_s: float) -> dict[str, float]:
    from scripts.kafka_jars import broker_class_path

    port, controller = free_port(), free_port()
    properties = folder.with_suffix(".properties")
    properties.write_text(
        f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
        f"controller.listener.names=CONTROLLER\nlog.dirs={folder}\noffsets.topic.replication.factor=1\n"
    )
    java = ["java", "-Xmx1g", "-cp", broker_class_path()]
    cluster_id = "a2Jyb2tlci1iZW5jaG1hcg"
    format_command = [
        *java,
        "kafka.tools.StorageTool",
        "format",
        "-t",
        cluster_id,
        "-c",
        str(properties),
    ]
    return measure(
        [format_command, [*java, "kafka.Kafka", str(properties)]], port, dict(os.environ), settle_s
    )


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
