"""`kbroker consume`: records to standard output."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from kbroker.cli.output import Progress, note, progress, text_or_base64
from kbroker.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, Json, not_empty, run
from kbroker.model import StartupError, TopicPartition

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.client.consumer import ConsumedRecord, Consumer, Position, Reset
    from kbroker.client.group import GroupConsumer

EPILOG = """
In --format, %t is the topic, %p partition, %o offset, %T timestamp in ms, %k key, %v value, %h
headers, %% a percent sign; \\t and \\n are tab and newline. Null keys and values print as null.

\b
Examples:
  kbroker consume greetings --from-beginning --exit-at-end
  kbroker consume orders --group billing --max-messages 100
  kbroker consume orders --partition 0 --offset 1200 --format '%p/%o %T %k = %v'
"""

_ESCAPES: Final[Mapping[str, str]] = {"\\n": "\n", "\\t": "\t", "\\0": "\0", "\\\\": "\\"}


class _Limits(NamedTuple):
    """When to stop; None for never."""

    max_messages: int | None
    timeout_s: float | None
    exit_at_end: bool


def consume(
    topics: Annotated[list[str], typer.Argument(help="One topic or several.", callback=not_empty)],
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning", "-e", help="Start at the first record; by default at the end."
        ),
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            *("--group", "-g"),
            callback=not_empty,
            help="Read as a member; offsets are committed.",
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="This partition alone.")
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option("--offset", "-o", help="Start at this offset; negative: from the end."),
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=1, help="Stop after so many.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", "-t", min=0, help="Stop after this many seconds without a record."
        ),
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-x", help="Stop at the end as it is now.")
    ] = False,
    read_committed: Annotated[
        bool, typer.Option("--read-committed", help="Leave out aborted transactions.")
    ] = False,
    template: Annotated[str, typer.Option("--format", "-F", help="See below.")] = "%v",
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print records."""
    if group is not None and (partition is not None or offset is not None or exit_at_end):
        raise typer.BadParameter(
            "a group decides on partitions and offsets itself", param_hint="--group"
        )
    try:
        show = _json_line if as_json else compile_format(template)
    except StartupError as error:
        raise typer.BadParameter(str(error), param_hint="--format") from None
    limits = _Limits(max_messages, timeout, exit_at_end)
    run(
        _consume(
            bootstrap,
            topics,
            "earliest" if from_beginning else "latest",
            group,
            None if partition is None else {partition},
            offset,
            limits,
            read_committed,
            show,
        )
    )


def compile_format(template: str) -> Callable[[ConsumedRecord], bytes]:
    """Turn a --format into a function from a record to its line. Raises StartupError."""
    text = re.sub(r"\\[nt0\\]", lambda match: _ESCAPES[match[0]], template)
    parts = re.split(r"%(.)", text, flags=re.DOTALL)
    if parts[-1].endswith("%"):
        raise StartupError("it ends in a lone %; write %% for a percent sign")
    fields: list[bytes | Callable[[ConsumedRecord], bytes]] = []
    for index, part in enumerate(parts):
        if index % 2 == 0:
            fields.append(part.encode())
        elif part == "%":
            fields.append(b"%")
        elif part in _FIELDS:
            fields.append(_FIELDS[part])
        else:
            known = " ".join(f"%{letter}" for letter in _FIELDS)
            raise StartupError(f"%{part} is unknown; there are {known} and %%")

    def line(record: ConsumedRecord) -> bytes:
        found = (field if isinstance(field, bytes) else field(record) for field in fields)
        return b"".join(found) + b"\n"

    return line


def _headers(record: ConsumedRecord) -> bytes:
    pairs = (name + b"=" + (b"null" if value is None else value) for name, value in record.headers)
    return b",".join(pairs)


_FIELDS: Final[Mapping[str, Callable[[ConsumedRecord], bytes]]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp,
    "k": lambda record: b"null" if record.key is None else bytes(record.key),
    "v": lambda record: b"null" if record.value is None else bytes(record.value),
    "h": _headers,
}


def _json_line(record: ConsumedRecord) -> bytes:
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


async def _consume(
    bootstrap: str,
    topics: Sequence[str],
    position: Position,
    group: str | None,
    partitions: set[int] | None,
    offset: int | None,
    limits: _Limits,
    read_committed: bool,
    show: Callable[[ConsumedRecord], bytes],
) -> None:
    from kbroker.client.cluster import READ_COMMITTED, READ_UNCOMMITTED, Client
    from kbroker.client.consumer import Consumer, ConsumerConfig
    from kbroker.client.group import GroupConfig, GroupConsumer

    reset: Reset = "earliest" if position == "earliest" else "latest"
    config = ConsumerConfig(
        isolation_level=READ_COMMITTED if read_committed else READ_UNCOMMITTED,
        auto_offset_reset=reset,
    )
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(bootstrap))
        source: Consumer | GroupConsumer
        ends: dict[TopicPartition, int] = {}
        if group is not None:
            await _note_missing(client, topics)
            settings = GroupConfig(auto_offset_reset=reset, auto_commit=False, consumer=config)
            source = await stack.enter_async_context(GroupConsumer(client, group, topics, settings))
        else:
            source = Consumer(client, config)
            stack.callback(source.close)
            await _assign(client, source, topics, position, partitions, offset)
            if limits.exit_at_end:
                ends = await source.end_offsets()
        piped = not sys.stdout.isatty()
        with progress("records", limits.max_messages, visible=piped) as done:
            await _print(source, limits, ends, show, done)


async def _note_missing(client: Client, topics: Sequence[str]) -> None:
    """Note topics that do not exist: a group waits for them, which looks like topics without
    records.
    """
    from kbroker.protocol.errors import ErrorCode

    for topic in (await client.metadata(topics)).topics:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            note(f"topic {topic.name} does not exist; waiting for it")


async def _assign(
    client: Client,
    consumer: Consumer,
    topics: Sequence[str],
    position: Position,
    partitions: set[int] | None,
    offset: int | None,
) -> None:
    places: dict[TopicPartition, Position] = {}
    for topic in topics:
        view = await client.topic(topic)
        missing = (partitions or set()) - set(view.partitions)
        if missing:
            last = max(view.partitions)
            raise StartupError(f"{topic} has no partition {min(missing)}, its last is {last}")
        for partition in sorted(partitions or view.partitions):
            places[TopicPartition(topic, partition)] = position
    await consumer.assign(places)
    if offset is not None:
        await consumer.assign(await _from_offset(client, consumer, offset))


async def _from_offset(
    client: Client, consumer: Consumer, offset: int
) -> dict[TopicPartition, int]:
    """The start position of each assigned partition; notes where --offset lies outside of it."""
    from kbroker.client.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

    async def offsets(at: int) -> dict[TopicPartition, int]:
        asked = dict.fromkeys(consumer.assignment, at)
        found = await client.retry(lambda: client.list_offsets(asked))
        return {place: answer.offset for place, answer in found.items()}

    starts = await offsets(EARLIEST_TIMESTAMP)
    if offset < 0:
        ends = await consumer.end_offsets()
        return {place: max(end + offset, starts[place]) for place, end in ends.items()}
    ends = await offsets(LATEST_TIMESTAMP)
    for place, end in ends.items():
        if offset > end:
            note(f"{place} ends at {end}; reading from there, not from {offset}")
        elif offset < starts[place]:
            note(f"{place} begins at {starts[place]}; reading from there, not from {offset}")
    return {place: min(max(offset, starts[place]), end) for place, end in ends.items()}


async def _commit(source: Consumer | GroupConsumer, records: Sequence[ConsumedRecord]) -> None:
    """Commit exactly the records that were printed. Records that are not committed before a
    rebalance are printed again by their next owner.
    """
    from kbroker.client.group import REJOIN, GroupConsumer
    from kbroker.protocol.errors import KafkaError

    if not records or not isinstance(source, GroupConsumer):
        return
    offsets = {
        TopicPartition(record.topic, record.partition): record.offset + 1 for record in records
    }
    try:
        await source.commit(offsets)
    except KafkaError as error:
        if error.code not in REJOIN and not error.code.retriable:
            raise


async def _print(
    source: Consumer | GroupConsumer,
    limits: _Limits,
    ends: dict[TopicPartition, int],
    show: Callable[[ConsumedRecord], bytes],
    done: Progress,
) -> None:
    """Until a limit is reached, or for ever."""
    import time

    from kbroker.client.consumer import Consumer

    write = sys.stdout.buffer.write
    left = limits.max_messages
    last_s = time.monotonic()
    while True:
        if limits.exit_at_end and isinstance(source, Consumer):
            positions = source.positions
            if all(positions[place] >= end for place, end in ends.items()):
                return
        records = await source.poll()
        if limits.exit_at_end:
            records = [
                record
                for record in records
                if record.offset < ends[TopicPartition(record.topic, record.partition)]
            ]
        if left is not None:
            records = records[:left]
            left -= len(records)
        for record in records:
            write(show(record))
        sys.stdout.buffer.flush()
        done.advance(len(records))
        await _commit(source, records)
        now_s = time.monotonic()
        if records:
            last_s = now_s
        elif limits.timeout_s is not None and now_s - last_s >= limits.timeout_s:
            return
        if left == 0:
            return
