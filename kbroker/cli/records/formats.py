"""How a record is printed: a --format like kcat's and rpk's, or JSON."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kbroker.cli.console.moments import shown_ms
from kbroker.cli.console.output import text_or_base64
from kbroker.cli.session import Json
from kbroker.model import StartupError

if TYPE_CHECKING:
    from kbroker.client.consumer import ConsumedRecord

    RecordLine = Callable[[ConsumedRecord], bytes]
    """A record to its line, the newline included."""

FORMAT_EPILOG: Final = """
In --format, %t is the topic, %p partition, %o offset, %T timestamp in ms, %d timestamp as a date,
%k key, %v value, %K and %S their sizes in bytes, %h headers, %% a percent sign; %v{hex} and
%v{base64} print bytes that are no text; \\t and \\n are tab and newline. Null keys and values print
as null, their size as -1.
"""
Template = Annotated[str, typer.Option("--format", "-F", help="See below.")]

_ESCAPE: Final = re.compile(r"\\(x[0-9A-Fa-f]{2}|[nrt0\\])")
_ESCAPES: Final[Mapping[str, str]] = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_FIELD: Final = re.compile(r"%(.)(?:(?<=[kvs])\{([^}]*)\})?", re.DOTALL)
_CODINGS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "hex": lambda data: data.hex().encode(),
    "base64": base64.b64encode,
}


def unescape(text: str) -> str:
    r"""\n, \r, \t, \0, \\ and \x41 to their characters."""

    def character(found: re.Match[str]) -> str:
        name = found[1]
        return chr(int(name[1:], 16)) if name[0] == "x" else _ESCAPES[name]

    return _ESCAPE.sub(character, text)


@dataclass(frozen=True, slots=True)
class Printing:
    """Options of every command that prints records."""

    template: Template = "%v"
    as_json: Json = False

    def record_line(self) -> RecordLine:
        """How records are printed. Raises BadParameter for a --format that cannot be read."""
        if self.as_json:
            return json_line
        try:
            return compile_format(self.template)
        except StartupError as error:
            raise typer.BadParameter(str(error), param_hint="--format") from None


def compile_format(template: str) -> RecordLine:
    """Turn a --format into a function from a record to its line. Raises StartupError."""
    text = unescape(template)
    fields: list[bytes | RecordLine] = []
    position = 0
    for found in _FIELD.finditer(text):
        fields.append(text[position : found.start()].encode())
        fields.append(_field(found[1], found[2]))
        position = found.end()
    rest = text[position:]
    if rest.endswith("%"):
        raise StartupError("it ends in a lone %; write %% for a percent sign")
    fields.append(rest.encode())

    def line(record: ConsumedRecord) -> bytes:
        found = (field if isinstance(field, bytes) else field(record) for field in fields)
        return b"".join(found) + b"\n"

    return line


def _field(letter: str, coding: str | None) -> bytes | RecordLine:
    if letter == "%":
        return b"%"
    if letter not in _FIELDS:
        known = " ".join(f"%{letter}" for letter in _FIELDS)
        raise StartupError(f"%{letter} is unknown; there are {known} and %%")
    if coding is None:
        return _FIELDS[letter]
    if coding not in _CODINGS:
        raise StartupError(f"%{letter}{{{coding}}} is unknown; there are {', '.join(_CODINGS)}")
    encode = _CODINGS[coding]

    def coded(record: ConsumedRecord) -> bytes:
        data = record.key if letter == "k" else record.value
        return b"null" if data is None else encode(bytes(data))

    return coded


def _headers(record: ConsumedRecord) -> bytes:
    pairs = (name + b"=" + (b"null" if value is None else value) for name, value in record.headers)
    return b",".join(pairs)


def _value(record: ConsumedRecord) -> bytes:
    return b"null" if record.value is None else bytes(record.value)


def _size(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)


_FIELDS: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp,
    "d": lambda record: shown_ms(record.timestamp).encode(),
    "k": lambda record: b"null" if record.key is None else bytes(record.key),
    "v": _value,
    "s": _value,
    "K": lambda record: _size(record.key),
    "S": lambda record: _size(record.value),
    "h": _headers,
}
"""%s is kcat's name for the value."""


def json_line(record: ConsumedRecord) -> bytes:
    """A record as a JSON object, which `kbroker produce --json` reads."""
    # Any: values of several JSON types
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **text_or_base64("key", record.key),
        **text_or_base64("value", record.value),
        "headers": [
            {"name": name.decode("utf-8", "replace"), **text_or_base64("value", value)}
            for name, value in record.headers
        ],
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"
