"""Run the table of commands (tests/clients/compared) with Kafka's tools against Apache Kafka 4.3.1
and keep what they print in tests/data/kafka_tools.

    python -m tests.reference.record_tools                  all sessions
    python -m tests.reference.record_tools topics-create    only that one

Needs Java; the jars come through scripts/kafka_jars.py. Run it again when a row is added.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.clients.compared.nodes import kafka
from tests.clients.compared.recording import write
from tests.clients.compared.run import run_session
from tests.clients.compared.sessions import SESSIONS
from tests.clients.kafka_tools import KafkaTools


def main() -> int:
    """Record the sessions named, or all."""
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaTools() as tools,
        kafka(Path(folder)) as new_world,
    ):
        for name in sys.argv[1:] or SESSIONS:
            own = Path(folder) / name
            own.mkdir()
            began = time.monotonic()
            outputs = run_session(SESSIONS[name], tools, new_world(own), settles=True)
            write(name, outputs)
            print(f"{len(outputs)} rows of {name}, {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
