"""`kbroker produce`: lines of standard input or of files, or whole files, to records."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kbroker.cli.console.output import ProgressDisplay, counted, note, progress
from kbroker.cli.records.deliveries import Deliveries
from kbroker.cli.records.lines import Headers, Input, compile_input, parse_line
from kbroker.cli.session import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    connect,
    key_values,
    moment,
    not_empty,
    properties,
    run,
)
from kbroker.model import StartupError

if TYPE_CHECKING:
    from kbroker.cli.console.client_properties import ClientProperties
    from kbroker.client.producer import Producer, ProducerConfig

EPILOG = """
Each line is the value of a record; --key-separator splits it into key and value, --format says
where key (%k), value (%v), headers (%h), timestamp in ms (%T) and partition (%p) stand in it, and
--json reads objects with key, value, headers and timestamp (what `kbroker consume --json` prints).
With --whole each file is one value.

\b
Examples:
  echo hello | kbroker produce greetings
  printf 'ada:1815\\ngrace:1906\\n' | kbroker produce births --key-separator :
  printf '1815-12-10 ada\\n' | kbroker produce births --format '%v %k' --timestamp -1h
  kbroker produce events --file events.jsonl --compression zstd --header source=import
  kbroker produce pictures --file a.png --file b.png --whole --key album -X acks=1
"""
app = typer.Typer(add_completion=False, rich_markup_mode=None)


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


_ACKS: Final[Mapping[Acks, int]] = {Acks.ALL: -1, Acks.LEADER: 1, Acks.NONE: 0}

Files = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", help="Read this instead of standard input; repeatable."),
]
Whole = Annotated[bool, typer.Option("--whole", help="Each file is one record.")]
Key = Annotated[str | None, typer.Option("--key", help="For records whose line has no key.")]
KeySeparator = Annotated[
    str | None, typer.Option("--key-separator", "-k", help="Text between key and value.")
]
NullValue = Annotated[
    str | None, typer.Option("--null-value", help="A value equal to this becomes null.")
]
InputFormat = Annotated[
    str | None, typer.Option("--format", "-F", help="What stands where in a line; see below.")
]
HeaderPairs = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="For every record; repeatable."),
]
Timestamp = Annotated[
    str | None,
    typer.Option("--timestamp", metavar="TIME", help="Of records whose line has none."),
]
CompressionOption = Annotated[
    Codec | None, typer.Option("--compression", "-z", help="Of the batches; none by default.")
]
AcksOption = Annotated[
    Acks | None, typer.Option("--acks", help="all (the default), 1 (leader) or 0.")
]


@app.command("produce", epilog=EPILOG)
def produce(
    topic: Annotated[
        str, typer.Argument(help="Made by itself where the broker allows that.", callback=not_empty)
    ],
    file: Files = None,
    whole: Whole = False,
    key: Key = None,
    key_separator: KeySeparator = None,
    null_value: NullValue = None,
    template: InputFormat = None,
    header: HeaderPairs = None,
    timestamp: Timestamp = None,
    as_json: Annotated[bool, typer.Option("--json", help="Lines are JSON objects.")] = False,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="Instead of one chosen by key.")
    ] = None,
    compression: CompressionOption = None,
    acks: AcksOption = None,
    idempotent: Annotated[
        bool, typer.Option("--idempotent", help="No duplicates from retries.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write lines as records."""
    if (key_separator is not None) + (template is not None) + as_json + whole > 1:
        raise typer.BadParameter("give one of --key-separator, --format, --json and --whole")
    if key_separator == "":
        raise typer.BadParameter("it is empty", param_hint="--key-separator")
    if whole and not file:
        raise typer.BadParameter("it needs --file", param_hint="--whole")
    reading = Input(
        key=None if key is None else key.encode(),
        key_separator=key_separator.encode() if key_separator else None,
        null_value=null_value.encode() if null_value is not None else None,
        lines=_pattern(template),
        as_json=as_json,
        headers=_headers(header),
        timestamp_ms=None if timestamp is None else moment(timestamp, "--timestamp"),
        partition=partition,
    )
    config = producer_config(compression, acks, idempotent=idempotent)
    with ExitStack() as stack:
        opened = [stack.enter_context(path.open("rb")).fileno() for path in file or ()]
        run(
            _produce(bootstrap, topic, reading, opened or [sys.stdin.fileno()], config, whole),
            spinner=False,
        )


def _pattern(template: str | None) -> re.Pattern[bytes] | None:
    try:
        return None if template is None else compile_input(template)
    except StartupError as error:
        raise typer.BadParameter(str(error), param_hint="--format") from None


def _headers(pairs: list[str] | None) -> Headers:
    found = key_values(pairs, "--header")
    return tuple((name.encode(), value.encode()) for name, value in found.items())


def producer_config(
    compression: Codec | None,
    acks: Acks | None,
    *,
    idempotent: bool,
    given: ClientProperties | None = None,
) -> ProducerConfig:
    """The properties, and over them the options. given: properties instead of the command's."""
    from kbroker.client.producer import ProducerConfig
    from kbroker.protocol.batches.compression import Compression

    config = (given or properties()).producer(ProducerConfig())
    if compression is not None:
        config = replace(config, compression=Compression[compression.name])
    if acks is not None:
        config = replace(config, acks=_ACKS[acks])
    return replace(config, idempotent=True) if idempotent else config


async def _produce(
    bootstrap: str,
    topic: str,
    reading: Input,
    descriptors: Sequence[int],
    config: ProducerConfig,
    whole: bool,
) -> None:
    from kbroker.client.producer import Producer

    began = time.monotonic()
    typing = any(os.isatty(descriptor) for descriptor in descriptors)
    if typing:
        note(f"one record per line to {topic}; end with Ctrl-D")
    async with connect(bootstrap) as client, Producer(client, config) as producer:
        with progress(f"records to {topic}", visible=not typing) as done:
            texts = _values(descriptors) if whole else _lines(descriptors)
            count = await _send_all(producer, topic, reading, texts, done)
    seconds = max(time.monotonic() - began, 0.001)
    note(f"{counted(count, 'record')} to {topic} in {seconds:.1f} s")


async def _lines(descriptors: Sequence[int]) -> AsyncIterator[bytes]:
    from kbroker.cli.records.line_input import read_lines

    for descriptor in descriptors:
        async for line in read_lines(descriptor):
            yield line


async def _values(descriptors: Sequence[int]) -> AsyncIterator[bytes]:
    import asyncio

    for descriptor in descriptors:
        with os.fdopen(os.dup(descriptor), "rb") as stream:
            yield await asyncio.to_thread(stream.read)


async def _send_all(
    producer: Producer,
    topic: str,
    reading: Input,
    texts: AsyncIterator[bytes],
    done: ProgressDisplay,
) -> int:
    """Send every record and wait for all acknowledgements. Returns their number."""
    deliveries = Deliveries(done)
    count = 0
    async for text in texts:
        count += 1
        line = parse_line(text, reading, count)
        future = await producer.send(
            topic,
            line.value,
            line.key,
            headers=line.headers,
            timestamp_ms=line.timestamp_ms,
            partition=line.partition,
        )
        deliveries.watch(future)
        if deliveries.has_failed:
            break
    await producer.flush()
    deliveries.check()
    return count
