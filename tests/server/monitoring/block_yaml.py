"""As much of YAML as our files for Prometheus use: mappings, lists, scalars on one line and literal
blocks (`|`). Anything else is a ValueError, so that a file is either understood or a failed test.
"""

from __future__ import annotations

import json
import re
from typing import Any

KEY = re.compile(r"([A-Za-z_][\w-]*):(?: +(.*))?")
PLAIN = re.compile(r"[^\s\[\]{}&*!|>'\"%@`#,?:-](?:[^:#]|:(?=\S)|(?<=\S)#)*")


def parse(text: str) -> Any:
    """The document. Scalars are strings."""
    lines = [(len(line) - len(line.lstrip()), line.strip(), line) for line in text.splitlines()]
    value, rest = _block(lines, 0)
    if _skip_empty(rest):
        raise ValueError(f"unread: {rest[0]}")
    return value


Lines = list[tuple[int, str, str]]


def _block(lines: Lines, indent: int) -> tuple[Any, Lines]:
    lines = _skip_empty(lines)
    if not lines or lines[0][0] < indent:
        raise ValueError(f"nothing at an indent of {indent}: {lines[:1]}")
    return (_list if lines[0][1].startswith("- ") else _mapping)(lines, lines[0][0])


def _list(lines: Lines, indent: int) -> tuple[list[Any], Lines]:
    found = []
    while lines and lines[0][0] == indent and lines[0][1].startswith("- "):
        _, content, raw = lines[0]
        if KEY.fullmatch(content[2:]):
            lines = [(indent + 2, content[2:], raw), *lines[1:]]
            value, lines = _mapping(lines, indent + 2)
        else:
            value, lines = _scalar(content[2:]), lines[1:]
        found.append(value)
        lines = _skip_empty(lines)
    return found, lines


def _mapping(lines: Lines, indent: int) -> tuple[dict[str, Any], Lines]:
    found: dict[str, Any] = {}
    while lines and lines[0][0] == indent and not lines[0][1].startswith("- "):
        match = KEY.fullmatch(lines[0][1])
        if match is None or match[1] in found:
            raise ValueError(f"no key, or one that was there: {lines[0][2]!r}")
        key, text = match[1], match[2]
        if text == "|":
            value, lines = _literal(lines[1:], indent)
        elif text is None:
            value, lines = _block(lines[1:], indent + 1)
        else:
            value, lines = _scalar(text), lines[1:]
        found[key] = value
        lines = _skip_empty(lines)
    return found, lines


def _literal(lines: Lines, indent: int) -> tuple[str, Lines]:
    taken = []
    while lines and (lines[0][0] > indent or not lines[0][1]):
        taken.append(lines.pop(0)[2])
    return "\n".join(taken), lines


def _scalar(text: str) -> str:
    if text.startswith('"'):
        value: str = json.loads(text)
        return value
    if PLAIN.fullmatch(text) is None:
        raise ValueError(f"not a plain scalar: {text!r}")
    return text


def _skip_empty(lines: Lines) -> Lines:
    """Without the empty lines and comments at the front."""
    while lines and (not lines[0][1] or lines[0][1].startswith("#")):
        lines = lines[1:]
    return lines
