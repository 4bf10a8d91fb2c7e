"""`kbroker consume`: records to standard output."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from kbroker.cli.console.option_groups import with_groups
from kbroker.cli.console.output import ProgressDisplay, note, progress
from kbroker.cli.console.waiting import said_to_wait
from kbroker.cli.records.formats import FORMAT_EPILOG, Printing
from kbroker.cli.records.offset_ranges import RANGE_EPILOG, OffsetRange
from kbroker.cli.records.source import (
    FROM_THE_BEGINNING,
    FROM_THE_END,
    OffsetText,
    ReadCommitted,
    RecordSource,
    Selection,
    Topics,
    Wanted,
    consumer_config,
    matching_topics,
    offset_range,
)
from kbroker.cli.session import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    connect,
    not_empty,
    properties,
    run,
)
from kbroker.model import StartupError, TopicPartition

if TYPE_CHECKING:
    from kbroker.cli.records.formats import RecordLine
    from kbroker.client.cluster import Client
    from kbroker.client.consumer import ConsumedRecord, ConsumerConfig, Reset
    from kbroker.client.group import GroupConsumer

EPILOG = f"""{RANGE_EPILOG}{FORMAT_EPILOG}
\b
Examples:
  kbroker consume greetings --from-beginning --exit-at-end
  kbroker consume orders --group billing --max-messages 100
  kbroker consume orders --partition 0 --offset 1200 --format '%p/%o %T %k = %v'
  kbroker consume 'orders-.*' --regex --offset @-1h
  kbroker consume orders:0 --offset 100..200 --json
"""
app = typer.Typer(add_completion=False, rich_markup_mode=None)

FromBeginning = Annotated[
    bool,
    typer.Option(
        "--from-beginning", "-e", help="Start at the first record; by default at the end."
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        *("--group", "-g"),
        callback=not_empty,
        help="Read as a member; offsets are committed.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", "-t", min=0, help="Stop after this many seconds without a record."),
]
ExitAtEnd = Annotated[
    bool, typer.Option("--exit-at-end", "-x", help="Stop at the end as it is now.")
]


class _Limits(NamedTuple):
    """When to stop; None for never."""

    max_messages: int | None
    timeout_s: float | None
    exit_at_end: bool


@app.command("consume", epilog=EPILOG)
@with_groups
def consume(
    topics: Topics,
    selection: Selection,
    printing: Printing,
    from_beginning: FromBeginning = False,
    group: Group = None,
    offset: OffsetText = None,
    timeout: Timeout = None,
    exit_at_end: ExitAtEnd = False,
    read_committed: ReadCommitted = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print records."""
    is_alone = bool(selection.partition) or offset is not None or exit_at_end
    if group is not None and is_alone:
        raise typer.BadParameter(
            "a group decides on partitions and offsets itself", param_hint="--group"
        )
    wanted = selection.wanted(topics)
    show = printing.record_line()
    is_earliest = from_beginning or properties().get("auto.offset.reset") == "earliest"
    otherwise = FROM_THE_BEGINNING if is_earliest else FROM_THE_END
    offsets = offset_range(offset, from_beginning=from_beginning, otherwise=otherwise)
    limits = _Limits(selection.max_messages, timeout, exit_at_end)
    reset: Reset = "earliest" if offsets == FROM_THE_BEGINNING else "latest"
    config = consumer_config(reset, read_committed=read_committed)
    group = group or (None if is_alone else properties().get("group.id"))
    if group is not None:
        run(_consume_group(bootstrap, group, wanted, config, limits, show), spinner=False)
    else:
        run(_consume(bootstrap, wanted, offsets, config, limits, show), spinner=False)


async def _consume(
    bootstrap: str,
    wanted: Wanted,
    offsets: OffsetRange,
    config: ConsumerConfig,
    limits: _Limits,
    show: RecordLine,
) -> None:
    async with connect(bootstrap) as client:
        source = RecordSource(client, config, wanted, offsets)
        try:
            await source.open(exit_at_end=limits.exit_at_end)
            with _progress(limits) as done:
                await _print(source, limits, show, done)
        finally:
            source.close()


def _progress(limits: _Limits) -> AbstractContextManager[ProgressDisplay]:
    return progress("records", limits.max_messages, visible=not sys.stdout.isatty())


async def _consume_group(
    bootstrap: str,
    group: str,
    wanted: Wanted,
    config: ConsumerConfig,
    limits: _Limits,
    show: RecordLine,
) -> None:
    from kbroker.client.group import GroupConfig, GroupConsumer

    reset = config.auto_offset_reset
    group_config = properties().group(GroupConfig(auto_offset_reset=reset, auto_commit=False))
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(bootstrap))
        topics = await _subscription(client, wanted)
        # joining may take a whole rebalance, which is too long to look for a coordinator
        await said_to_wait(
            client.retry(lambda: client.coordinator(group)),
            f"group {group} has no coordinator yet; waiting for one",
        )
        member = GroupConsumer(client, group, topics, replace(group_config, consumer=config))
        await stack.enter_async_context(member)
        with _progress(limits) as done:
            await _print(member, limits, show, done)


async def _subscription(client: Client, wanted: Wanted) -> list[str]:
    """The topics of a group's member. Notes those that do not exist: a group waits for them, which
    looks like topics without records.
    """
    from kbroker.protocol.errors import ErrorCode

    if any(chosen.indexes for chosen in wanted.names):
        raise StartupError("a group decides on partitions itself; leave them out")
    topics = [topic for topic, _ in await matching_topics(client, wanted)]
    if not topics:
        raise StartupError("no topic matches")
    for topic in (await client.metadata(topics)).topics:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            note(f"topic {topic.name} does not exist; waiting for it")
    return topics


async def _commit(source: RecordSource | GroupConsumer, records: Sequence[ConsumedRecord]) -> None:
    """Commit exactly the records that were printed. Records that are not committed before a
    rebalance are printed again by their next owner.
    """
    from kbroker.client.group import REJOIN
    from kbroker.protocol.errors import KafkaError

    if not records or isinstance(source, RecordSource):
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
    source: RecordSource | GroupConsumer, limits: _Limits, show: RecordLine, done: ProgressDisplay
) -> None:
    """Until a limit is reached, or for ever."""
    write = sys.stdout.buffer.write
    left = limits.max_messages
    last_s = time.monotonic()
    while not (isinstance(source, RecordSource) and source.is_done):
        records = await source.poll()
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
