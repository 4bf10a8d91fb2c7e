"""How a line becomes a record: its value, key and value with a separator, a --format, or JSON."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kbroker.cli.records.formats import unescape
from kbroker.cli.session import INT32_MAX, INT64_MAX
from kbroker.model import StartupError

Headers = tuple[tuple[bytes, bytes | None], ...]

_PATTERNS: Final[Mapping[str, bytes]] = {
    "k": b"(?P<k>.*?)",
    "v": b"(?P<v>.*?)",
    "h": b"(?P<h>.*?)",
    "T": b"(?P<T>-?[0-9]{1,19})",
    "p": b"(?P<p>[0-9]{1,10})",
}


class Input(NamedTuple):
    """How lines are read. key: of every record, where the line has none. lines: the compiled
    --format.
    """

    key: bytes | None = None
    key_separator: bytes | None = None
    null_value: bytes | None = None
    lines: re.Pattern[bytes] | None = None
    as_json: bool = False
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None


class Line(NamedTuple):
    """A record to be sent; None for what the producer decides."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int | None
    partition: int | None


def compile_input(template: str) -> re.Pattern[bytes]:
    """Turn a --format into the pattern of a line. Raises StartupError."""
    parts = re.split(r"%(.)", unescape(template), flags=re.DOTALL)
    if parts[-1].endswith("%"):
        raise StartupError("it ends in a lone %; write %% for a percent sign")
    pattern = b""
    named: set[str] = set()
    for index, part in enumerate(parts):
        if index % 2 == 0:
            pattern += re.escape(part.encode())
        elif part == "%":
            pattern += b"%"
        elif part not in _PATTERNS:
            known = " ".join(f"%{letter}" for letter in _PATTERNS)
            raise StartupError(f"%{part} is unknown; there are {known} and %%")
        elif part in named:
            raise StartupError(f"%{part} stands there twice")
        else:
            named.add(part)
            pattern += _PATTERNS[part]
    return re.compile(pattern, re.DOTALL)


def parse_line(text: bytes, reading: Input, number: int) -> Line:
    """The record of a line. number: of the line, from 1. Raises StartupError."""
    if reading.as_json:
        return _parse_json(text, reading, number)
    line = Line(reading.key, text, reading.headers, reading.timestamp_ms, reading.partition)
    if reading.lines is not None:
        line = _parse_format(text, reading, line, number)
    elif reading.key_separator is not None:
        key, separator, value = text.partition(reading.key_separator)
        if not separator:
            shown = reading.key_separator.decode()
            raise StartupError(f"line {number} has no key separator {shown!r}")
        line = line._replace(key=key, value=value)
    if reading.null_value is not None and line.value == reading.null_value:
        line = line._replace(value=None)
    return line


def _parse_format(text: bytes, reading: Input, line: Line, number: int) -> Line:
    assert reading.lines is not None
    found = reading.lines.fullmatch(text)
    if found is None:
        raise StartupError(f"line {number} is not as --format says")
    fields = found.groupdict()
    timestamp_ms, partition = line.timestamp_ms, line.partition
    if "T" in fields:
        timestamp_ms = _within(int(fields["T"]), -1, INT64_MAX, f"line {number}: timestamp")
    if "p" in fields:
        partition = _within(int(fields["p"]), 0, INT32_MAX, f"line {number}: partition")
    headers = line.headers + (_parse_headers(fields["h"], number) if "h" in fields else ())
    key = fields.get("k", line.key)
    return Line(key, fields.get("v", b""), headers, timestamp_ms, partition)


def _within(value: int, low: int, high: int, about: str) -> int:
    if low <= value <= high:
        return value
    raise StartupError(f"{about} {value} is out of range")


def _parse_headers(text: bytes, number: int) -> Headers:
    """`a=1,b=2`, as `consume --format %h` prints them."""
    headers: list[tuple[bytes, bytes | None]] = []
    for item in text.split(b",") if text else ():
        name, equals, value = item.partition(b"=")
        if not equals:
            raise StartupError(f"line {number}: headers are written as name=value,name=value")
        headers.append((name, value))
    return tuple(headers)


def _parse_json(text: bytes, reading: Input, number: int) -> Line:
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("not an object")
        key = _data(fields, "key")
        timestamp_ms = _whole(fields.get("timestamp"))
        return Line(
            key=reading.key if key is None else key,
            value=_data(fields, "value"),
            headers=reading.headers + _json_headers(fields.get("headers") or []),
            timestamp_ms=reading.timestamp_ms if timestamp_ms is None else timestamp_ms,
            partition=reading.partition,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StartupError(f"line {number} cannot be read: {error}") from None


# Any: JSON of unknown shape
def _json_headers(headers: Any) -> Headers:
    if isinstance(headers, dict):
        headers = [{"name": name, "value": value} for name, value in headers.items()]
    if not isinstance(headers, Sequence) or not all(isinstance(one, dict) for one in headers):
        raise ValueError("headers is neither an object nor a list of objects")
    return tuple((str(each["name"]).encode(), _data(each, "value")) for each in headers)


def _data(fields: Mapping[str, Any], name: str) -> bytes | None:
    """Text as UTF-8, base64 under `name_base64`, any other JSON as JSON."""
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        return base64.b64decode(encoded, validate=True)
    value = fields.get(name)
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _whole(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and -1 <= value <= INT64_MAX:
        return value
    raise ValueError(f"timestamp {value!r} is not a whole number of milliseconds")
