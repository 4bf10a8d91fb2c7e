"""`kbroker produce`: lines of standard input or a file to records."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kbroker.cli.output import Progress, counted, note, progress
from kbroker.cli.session import DEFAULT_BOOTSTRAP, INT64_MAX, Bootstrap, key_values, not_empty, run
from kbroker.model import StartupError

if TYPE_CHECKING:
    from kbroker.client.producer import Producer, RecordMetadata

EPILOG = """
Each line is the value of a record; --key-separator splits it into key and value, --json reads
objects with key, value, headers, timestamp and partition (what `kbroker consume --json` prints).

\b
Examples:
  echo hello | kbroker produce greetings
  printf 'ada:1815\\ngrace:1906\\n' | kbroker produce births --key-separator :
  kbroker produce events --file events.jsonl --compression zstd --header source=import
"""


class Codec(StrEnum):
    """Compression by Kafka's names."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    """Which replicas must have a record before it counts as written (the setting acks)."""

    ALL = "all"
    LEADER = "1"
    NONE = "0"


_ACKS: Mapping[Acks, int] = {Acks.ALL: -1, Acks.LEADER: 1, Acks.NONE: 0}


class _Input(NamedTuple):
    """How a line becomes a record."""

    key_separator: bytes | None
    null_value: bytes | None
    as_json: bool
    headers: tuple[tuple[bytes, bytes | None], ...]
    partition: int | None


class _Line(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    timestamp_ms: int | None
    partition: int | None


def produce(
    topic: Annotated[
        str, typer.Argument(help="Made by itself where the broker allows that.", callback=not_empty)
    ],
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read this instead of standard input.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", help="Text between key and value.")
    ] = None,
    null_value: Annotated[
        str | None, typer.Option("--null-value", help="A value equal to this becomes null.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="For every record; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Lines are JSON objects.")] = False,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="Instead of one chosen by key.")
    ] = None,
    compression: Annotated[Codec, typer.Option("--compression", "-z")] = Codec.NONE,
    acks: Annotated[Acks, typer.Option("--acks", help="all, 1 (leader) or 0.")] = Acks.ALL,
    idempotent: Annotated[
        bool, typer.Option("--idempotent", help="No duplicates from retries.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write lines as records."""
    if key_separator == "":
        raise typer.BadParameter("it is empty", param_hint="--key-separator")
    headers = key_values(header, "--header")
    reading = _Input(
        key_separator=key_separator.encode() if key_separator else None,
        null_value=null_value.encode() if null_value is not None else None,
        as_json=as_json,
        headers=tuple((name.encode(), value.encode()) for name, value in headers.items()),
        partition=partition,
    )
    if file is None:
        run(_produce(bootstrap, topic, reading, sys.stdin.fileno(), compression, acks, idempotent))
        return
    with file.open("rb") as stream:
        run(_produce(bootstrap, topic, reading, stream.fileno(), compression, acks, idempotent))


async def _produce(
    bootstrap: str,
    topic: str,
    reading: _Input,
    descriptor: int,
    compression: Codec,
    acks: Acks,
    idempotent: bool,
) -> None:
    from kbroker.client.cluster import Client
    from kbroker.client.producer import Producer, ProducerConfig
    from kbroker.protocol.compression import Compression

    config = ProducerConfig(
        acks=_ACKS[acks],
        compression=Compression[compression.name],
        idempotent=idempotent,
    )
    began = time.monotonic()
    typing = os.isatty(descriptor)
    if typing:
        note(f"one record per line to {topic}; end with Ctrl-D")
    async with Client(bootstrap) as client, Producer(client, config) as producer:
        with progress(f"records to {topic}", visible=not typing) as done:
            count = await _send_all(producer, topic, reading, descriptor, done)
    seconds = max(time.monotonic() - began, 0.001)
    note(f"{counted(count, 'record')} to {topic} in {seconds:.1f} s")


async def _send_all(
    producer: Producer, topic: str, reading: _Input, descriptor: int, done: Progress
) -> int:
    """Send every line and wait for all acknowledgements. Returns the number of records."""
    from kbroker.cli.line_input import read_lines

    failures: list[BaseException] = []

    def arrived(future: asyncio.Future[RecordMetadata]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            done.advance()
        else:
            failures.append(error)

    count = 0
    async for text in read_lines(descriptor):
        count += 1
        line = _parse(text, reading, count)
        future = await producer.send(
            topic,
            line.value,
            line.key,
            headers=line.headers,
            timestamp_ms=line.timestamp_ms,
            partition=line.partition,
        )
        future.add_done_callback(arrived)
        if failures:
            break
    await producer.flush()
    if failures:
        raise failures[0]
    return count


def _parse(text: bytes, reading: _Input, number: int) -> _Line:
    if reading.as_json:
        return _parse_json(text, reading, number)
    key: bytes | None = None
    value: bytes | None = text
    if reading.key_separator is not None:
        key, separator, value = text.partition(reading.key_separator)
        if not separator:
            shown = reading.key_separator.decode()
            raise StartupError(f"line {number} has no key separator {shown!r}")
    if value == reading.null_value:
        value = None
    return _Line(key, value, reading.headers, None, reading.partition)


def _parse_json(text: bytes, reading: _Input, number: int) -> _Line:
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("not an object")
        headers = fields.get("headers") or []
        if isinstance(headers, dict):
            headers = [{"name": name, "value": value} for name, value in headers.items()]
        if not isinstance(headers, list) or not all(isinstance(one, dict) for one in headers):
            raise ValueError("headers is neither an object nor a list of objects")
        return _Line(
            key=_data(fields, "key"),
            value=_data(fields, "value"),
            headers=reading.headers
            + tuple((str(each["name"]).encode(), _data(each, "value")) for each in headers),
            timestamp_ms=_whole(fields.get("timestamp")),
            partition=reading.partition,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StartupError(f"line {number} cannot be read: {error}") from None


# Any: a JSON object of unknown shape
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
