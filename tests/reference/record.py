"""Hold the conversation with Apache Kafka 4.3.1 and keep its answers in tests/data/reference.

    python -m tests.reference.record

Needs Java; the jars come through scripts/kafka_jars.py. Run it again when a step is added.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from scripts.apache_kafka import ApacheKafka
from scripts.kafka_jars import KAFKA_VERSION
from tests.reference.conversation import hold

ANSWERS = Path(__file__).resolve().parents[1] / "data" / "reference" / "answers.json"


def main() -> int:
    """Start Kafka on an empty folder, ask, write the answers."""
    with tempfile.TemporaryDirectory() as folder, ApacheKafka(Path(folder) / "data") as kafka:
        time.sleep(3)  # the port opens before the broker is unfenced
        answers = hold("127.0.0.1", kafka.port, pause_s=1.0)
    ANSWERS.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in answers.items()
    )
    ANSWERS.write_text(f'{{\n"kafkaVersion": "{KAFKA_VERSION}",\n"answers": {{\n{lines}\n}}}}\n')
    print(f"{len(answers)} answers in {ANSWERS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
