"""Hold the conversation with Apache Kafka 4.3.1 and keep its answers in tests/data/reference.

    python -m tests.reference.record

Needs Java; the jars come through scripts/kafka_jars.py. Run it again when a step is added.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scripts.kafka_jars import KAFKA_VERSION, broker_class_path
from tests.reference.conversation import hold

ANSWERS = Path(__file__).resolve().parents[1] / "data" / "reference" / "answers.json"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            time.sleep(3)  # the port opens before the broker is unfenced
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("Apache Kafka did not start")


def main() -> int:
    """Start Kafka on an empty folder, ask, write the answers."""
    port, controller = free_port(), free_port()
    java = ["java", "-Xmx512m", "-cp", broker_class_path()]
    with tempfile.TemporaryDirectory() as folder:
        properties = Path(folder) / "server.properties"
        properties.write_text(
            f"process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
            f"controller.listener.names=CONTROLLER\nlog.dirs={folder}/data\n"
            f"offsets.topic.replication.factor=1\ngroup.initial.rebalance.delay.ms=0\n"
        )
        formatting = [*java, "kafka.tools.StorageTool", "format", "-t", "a2Jyb2tlci1yZWZlcmVuYw"]
        subprocess.run([*formatting, "-c", str(properties)], check=True, capture_output=True)
        process = subprocess.Popen(
            [*java, "kafka.Kafka", str(properties)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(port, process)
            answers = hold("127.0.0.1", port, pause_s=1.0)
        finally:
            process.terminate()
            process.wait(60)
    ANSWERS.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in answers.items()
    )
    ANSWERS.write_text(f'{{\n"kafkaVersion": "{KAFKA_VERSION}",\n"answers": {{\n{lines}\n}}}}\n')
    print(f"{len(answers)} answers in {ANSWERS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
