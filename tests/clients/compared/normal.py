"""The output of a tool without what differs from run to run: addresses, ids, times, counters of
clients. Figures that are measured are masked row by row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

STACK: Final = re.compile(r"\s+at \S+\(.*\)( ~?\[.*\])?|\s*\.\.\. \d+ more|\s*Suppressed: .*")
"""Lines of a stack trace: where in the tool an error came up, which is the same in all cases."""
NAMED: Final = (
    ("uuid", re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")),
    (
        "id",
        re.compile(r"(?<![\w+/-])(?=\S*[a-z])(?=\S*[A-Z])(?!\w+Exception)[\w+/-]{22}(?![\w+/-])"),
    ),
)
"""Kinds of values that get a number, in order of appearance: which are equal is compared too."""
PLAIN: Final = (
    (re.compile(r"\d\d:\d\d:\d\d\.\d{3} \[[^]]*\]"), "<clock> [<thread>]"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.:,]\d{3}(Z|[+-]\d\d:?\d\d)?"), "<date>"),
    (re.compile(r"(?<![\d.])1[5-9]\d{11}(?!\d)"), "<ms>"),
    (
        re.compile(r"Timed out waiting for a node assignment\. Call: .*|Call\(.* attempt\(s\)"),
        "<timed out>",
    ),
    (re.compile(r"adminclient-\d+"), "adminclient-<n>"),
    (re.compile(r"\b(consumer|producer)-([\w.-]*?-)?\d+\b"), r"\1-\2<n>"),
)


def sorted_members(line: str) -> str:
    """An object of JSON with its members in order of their names; another line as it is."""
    if not line.startswith("{"):
        return line
    return json.dumps(json.loads(line), sort_keys=True, separators=(",", ":"))


def normalised(
    text: str, known: Mapping[str, str], masks: Sequence[tuple[str, str]] = (), sort: bool = False
) -> list[str]:
    """The lines. known: name -> a value of this run; the names stand for the values. sort: by
    their text, and values of a kind are not told apart.
    """
    text = "\n".join(line for line in text.splitlines() if not STACK.fullmatch(line))
    for name, value in sorted(known.items(), key=lambda item: -len(item[1])):
        # A port is no port within a longer number, such as a timestamp.
        text = re.sub(rf"(?<!\d){re.escape(value)}(?!\d)", f"<{name}>", text)
    numbers: dict[str, dict[str, int]] = {}

    def named(kind: str, value: str) -> str:
        if sort:
            return f"<{kind}>"
        seen = numbers.setdefault(kind, {})
        return f"<{kind} {seen.setdefault(value, len(seen) + 1)}>"

    for kind, pattern in NAMED:
        text = pattern.sub(lambda found, kind=kind: named(kind, found[0]), text)
    for pattern, replacement in PLAIN:
        text = pattern.sub(replacement, text)
    for mask, replacement in masks:
        text = re.sub(mask, replacement, text, flags=re.MULTILINE)
    lines = text.splitlines()
    return sorted(lines) if sort else lines
