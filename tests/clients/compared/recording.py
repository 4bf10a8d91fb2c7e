"""What Kafka's tools printed against Apache Kafka, in tests/data/kafka_tools, and how the output
of kbroker is compared with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from scripts.kafka_jars import KAFKA_VERSION
from tests.clients.compared.row import Difference
from tests.clients.compared.run import Output

FOLDER: Final = Path(__file__).resolve().parents[2] / "data" / "kafka_tools"


def write(name: str, outputs: Mapping[str, Output]) -> None:
    """Keep the outputs of a session, a row on each line."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(f"{json.dumps(row)}: {json.dumps(out)}" for row, out in outputs.items())
    path = FOLDER / f"{name}.json"
    path.write_text(f'{{\n"kafkaVersion": "{KAFKA_VERSION}",\n"rows": {{\n{rows}\n}}}}\n')


def read(name: str) -> dict[str, Output]:
    """The outputs of a session by the rows' names, {} if it is not recorded."""
    path = FOLDER / f"{name}.json"
    rows: dict[str, Output] = json.loads(path.read_text())["rows"] if path.exists() else {}
    return rows


def without_own(printed: Output, difference: Difference | None) -> Output:
    """What kbroker printed without the lines that only kbroker has. Raises AssertionError if it
    has none.
    """
    if difference is None or difference.own is None:
        return printed
    own = re.compile(difference.own)
    lines = [line for line in printed["out"] if not own.match(line)]
    assert lines != printed["out"], f"no line {difference.own}"
    return {**printed, "out": lines}


def expected(recorded: Output, difference: Difference | None) -> Output:
    """What kbroker is to print. Raises AssertionError if Kafka prints no line that is stated to
    differ.
    """
    if difference is None:
        return recorded
    changed = dict(recorded)
    unused = set(difference.lines)
    for stream in ("out", "err"):
        lines: list[str] = []
        for line in recorded[stream]:
            other = difference.lines.get(line, line)
            lines += [] if other is None else other.split("\n")
        unused -= set(recorded[stream])
        changed[stream] = lines
    assert not unused, f"Kafka does not print {sorted(unused)}"
    if difference.errors:
        assert recorded["code"] == 0
        changed |= {"code": 1, "err": [*changed["err"], *difference.errors]}
    return changed
