"""Hold the conversations with Apache Kafka 4.3.1 and keep its answers in tests/data/reference.

    python -m tests.reference.record            all of them
    python -m tests.reference.record streams    only that one

Needs Java; the jars come through scripts/kafka_jars.py. Run it again when a step is added.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from scripts.apache_kafka import ApacheKafka
from scripts.kafka_jars import KAFKA_VERSION
from scripts.ports import free_port
from tests.reference.administration import administration_steps
from tests.reference.basics import steps
from tests.reference.conversation import hold
from tests.reference.partitions import partition_steps
from tests.reference.quotas import steps as quota_steps
from tests.reference.security_settings import FILE as SECURITY_FILE
from tests.reference.security_settings import PAUSE_S as SECURITY_PAUSE_S
from tests.reference.security_settings import RESTARTS, file_steps, security_steps
from tests.reference.share_groups import OVERRIDES as SHARE_OVERRIDES
from tests.reference.share_groups import STATE_SEGMENT, share_steps
from tests.reference.step import Step
from tests.reference.streams_groups import OFFSETS_SEGMENT, OVERRIDES, streams_steps
from tests.reference.transactional_offsets import OVERRIDES as OFFSET_OVERRIDES
from tests.reference.transactional_offsets import transactional_offset_steps
from tests.reference.transactions import OVERRIDES as TRANSACTION_OVERRIDES
from tests.reference.transactions import (
    make_held,
    prepared_steps,
    transaction_steps,
    without_itself,
)
from tests.reference.wrong_groups import OVERRIDES as WRONG_OVERRIDES
from tests.reference.wrong_groups import wrong_group_steps

FOLDER = Path(__file__).resolve().parents[1] / "data" / "reference"
CONVERSATIONS: Mapping[str, tuple[Callable[[], Iterator[Step]], Mapping[str, str]]] = {
    "administration": (administration_steps, {}),
    "answers": (steps, {}),
    "quotas": (quota_steps, {}),
    "security-file": (file_steps, SECURITY_FILE),
    "security-settings": (security_steps, {}),
    "partitions": (partition_steps, {}),
    "streams": (streams_steps, OVERRIDES),
    "share": (share_steps, SHARE_OVERRIDES),
    "transactional-offsets": (transactional_offset_steps, OFFSET_OVERRIDES),
    "transactions": (transaction_steps, TRANSACTION_OVERRIDES),
    "wrong-groups": (wrong_group_steps, WRONG_OVERRIDES),
    "prepared": (prepared_steps, TRANSACTION_OVERRIDES),
}
"""File name -> the conversation, and the broker's properties for it."""

RESTARTED: Mapping[str, Sequence[Callable[[], Iterator[Step]]]] = {"security-settings": RESTARTS}
"""File name -> what is asked of the same broker after each of its next starts."""

PAUSES_S: Mapping[str, float] = {"security-settings": SECURITY_PAUSE_S}
"""File name -> the pause after each change, where 1 s would take too long."""


def record(name: str) -> None:
    """Start Kafka on an empty folder, ask, write the answers."""
    conversation, overrides = CONVERSATIONS[name]
    with tempfile.TemporaryDirectory() as folder:
        kafka = ApacheKafka(Path(folder) / "data", overrides=overrides)
        if name == "prepared":
            port, controller = free_port(), free_port()
            kafka = ApacheKafka(
                kafka.data,
                overrides=without_itself(port, controller, free_port()),
                controller_port=controller,
            )
            kafka.port = port
        with kafka:
            time.sleep(3)  # the port opens before the broker is unfenced
            if name == "prepared":
                make_held(kafka.port)
            pause_s = PAUSES_S.get(name, 1.0)
            answers = hold("127.0.0.1", kafka.port, pause_s=pause_s, conversation=conversation)
        for later in RESTARTED.get(name, ()):
            with kafka:
                time.sleep(3)
                answers |= hold("127.0.0.1", kafka.port, pause_s=pause_s, conversation=later)
        if name == "streams":
            shutil.copy(kafka.data / OFFSETS_SEGMENT, FOLDER / "streams.log")
        if name == "share":
            shutil.copy(kafka.data / OFFSETS_SEGMENT, FOLDER / "share-offsets.log")
            shutil.copy(kafka.data / STATE_SEGMENT, FOLDER / "share-states.log")
    FOLDER.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(
        f"{json.dumps(step)}: {json.dumps(answer)}" for step, answer in answers.items()
    )
    path = FOLDER / f"{name}.json"
    path.write_text(f'{{\n"kafkaVersion": "{KAFKA_VERSION}",\n"answers": {{\n{lines}\n}}}}\n')
    print(f"{len(answers)} answers in {path}")


def main() -> int:
    """Record those named, or all."""
    for name in sys.argv[1:] or CONVERSATIONS:
        record(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
