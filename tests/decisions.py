"""Reads tests/data/decisions: outcomes of Apache Kafka 4.3.1, one JSON object per line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

DECISIONS = Path(__file__).parent / "data" / "decisions"

Case = dict[str, Any]


def cases(name: str) -> list[tuple[int, Case]]:
    """(line number from 1, case) of each line of that file."""
    with gzip.open(DECISIONS / f"{name}.jsonl.gz", "rt") as lines:
        return [(number, json.loads(line)) for number, line in enumerate(lines, 1)]
