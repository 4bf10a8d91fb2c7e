"""`kbroker groups reset-offsets`: sets the committed offsets of a group without members."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kbroker.cli.console.output import Cell, note, show
from kbroker.cli.console.partitions import (
    ChosenPartitions,
    chosen_partitions,
    existing_partitions,
    offsets_at,
    read_offsets,
)
from kbroker.cli.groups.offsets import group_offsets
from kbroker.cli.groups.share import alter_share_offsets, is_share_group
from kbroker.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, Json, connect, moment, not_empty, run
from kbroker.settings.durations import duration_ms

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.model import TopicPartition

EPILOG: Final = """
Shows what would be committed; --execute commits it. The group must have no members. New offsets are
kept between the first and the end of each partition. --export writes what would be committed as
lines of topic,partition,offset, which --from-file reads; kafka-consumer-groups does the same.

\b
Examples:
  kbroker groups reset-offsets payments --topic orders --to-earliest
  kbroker groups reset-offsets payments --topic orders:0,2 --to-offset 100 --execute
  kbroker groups reset-offsets payments --to-datetime 2026-01-31T12:00:00 --execute
  kbroker groups reset-offsets payments --by-duration PT1H --export > an-hour-ago.csv
  kbroker groups reset-offsets payments --from-file an-hour-ago.csv --execute
"""


ONE_TARGET: Final = (
    "say one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, "
    "--to-datetime, --by-duration, --from-file"
)


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """The target of a reset: exactly one field is set."""

    earliest: bool = False
    latest: bool = False
    current: bool = False
    offset: int | None = None
    shift: int | None = None
    timestamp_ms: int | None = None
    listed: Mapping[TopicPartition, int] | None = None
    """Offsets by partition, read from a file."""

    def check(self, *, names_topics: bool) -> None:
        """Raises typer.BadParameter unless exactly one target was given and fits the topics."""
        flags = (self.earliest, self.latest, self.current)
        values = (self.offset, self.shift, self.timestamp_ms, self.listed)
        if sum(flags) + sum(value is not None for value in values) != 1:
            raise typer.BadParameter(ONE_TARGET)
        if self.listed is not None and names_topics:
            raise typer.BadParameter("--from-file says which topics; leave --topic out")


def reset_offsets(
    name: Annotated[str, typer.Argument(help="The group.", callback=not_empty)],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:P,P]",
            help="Repeatable; default: all that the group has committed.",
        ),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="The end.")] = False,
    to_current: Annotated[
        bool,
        typer.Option("--to-current", help="The committed offset; the end where there is none."),
    ] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", help="This offset.")] = None,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", help="This many records forward, or (negative) back."),
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", help="The first record at or after this time (UTC)."),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(
            "--by-duration",
            metavar="PnDTnHnMnS",
            help="The first record after now minus this duration.",
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", help="Lines of topic,partition,offset, as --export gives."),
    ] = None,
    export: Annotated[
        bool, typer.Option("--export", help="Write topic,partition,offset and change nothing.")
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Commit, do not only show.")] = False,
    share: Annotated[
        bool, typer.Option("--share", help="A share group, even one that no member has joined yet.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show, or with --execute commit, new offsets of a group."""
    target = ResetTarget(
        to_earliest,
        to_latest,
        to_current,
        to_offset,
        shift_by,
        _timestamp(to_datetime, by_duration),
        None if from_file is None else read_offsets(from_file, name),
    )
    target.check(names_topics=topic is not None)
    if export and execute:
        raise typer.BadParameter("--export changes nothing; leave --execute out")
    topics = None if topic is None else [chosen_partitions(text, "--topic") for text in topic]
    rows = run(_reset(bootstrap, name, topics, target, execute=execute, share=share))
    if not rows:
        note(f"{name} has no committed offsets; name topics with --topic")
    elif export:
        write_offsets(rows, "new")
    else:
        _show_new_offsets(rows, execute=execute, as_json=as_json)


def _show_new_offsets(rows: Sequence[Mapping[str, Cell]], *, execute: bool, as_json: bool) -> None:
    columns = ("group", "topic", "partition", "committed", "new")
    show(rows, columns, as_json=as_json, sections=("group",))
    if not execute:
        note("nothing was changed; --execute commits this")


def _timestamp(to_datetime: str | None, by_duration: str | None) -> int | None:
    """The time in ms since 1970: of --to-datetime, else now minus --by-duration."""
    if to_datetime and by_duration:
        raise typer.BadParameter(ONE_TARGET)
    if to_datetime is not None:
        return moment(to_datetime, "--to-datetime")
    if by_duration is None:
        return None
    try:
        length_ms = duration_ms(by_duration)
    except ValueError as error:
        raise typer.BadParameter(f"--by-duration: {error}") from None
    if length_ms < 0:
        raise typer.BadParameter("--by-duration: time goes back from now; leave the sign out")
    return max(int(time.time() * 1000) - length_ms, 0)


def write_offsets(rows: Sequence[Mapping[str, Cell]], column: str) -> None:
    """Offsets as lines of topic,partition,offset on standard output."""
    lines = csv.writer(sys.stdout, lineterminator="\n")
    lines.writerows([row["topic"], row["partition"], row[column]] for row in rows)


async def _reset(
    bootstrap: str,
    name: str,
    topics: Sequence[ChosenPartitions] | None,
    target: ResetTarget,
    *,
    execute: bool,
    share: bool,
) -> list[dict[str, Cell]]:
    async with connect(bootstrap) as client:
        share = share or await client.retry(lambda: is_share_group(client, name))
        committed = await client.retry(lambda: group_offsets(client, name))
        if target.listed is not None:
            places = sorted(target.listed)
        else:
            places = (
                sorted(committed) if topics is None else await existing_partitions(client, topics)
            )
        new = await _new_offsets(client, places, committed, target) if places else {}
        if execute and new:
            write = alter_share_offsets if share else _commit
            await client.retry(lambda: write(client, name, new))
    return [
        {
            "group": name,
            "topic": place.topic,
            "partition": place.partition,
            "committed": committed.get(place),
            "new": offset,
        }
        for place, offset in new.items()
    ]


async def _new_offsets(
    client: Client,
    places: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, int],
    target: ResetTarget,
) -> dict[TopicPartition, int]:
    from kbroker.client.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

    first = await offsets_at(client, places, EARLIEST_TIMESTAMP)
    end = await offsets_at(client, places, LATEST_TIMESTAMP)
    wanted = first if target.earliest else end
    if target.timestamp_ms is not None:
        wanted = await offsets_at(client, places, target.timestamp_ms)
    elif target.listed is not None:
        wanted = dict(target.listed)
    new: dict[TopicPartition, int] = {}
    for place in places:
        offset = wanted[place] if wanted[place] >= 0 else end[place]
        if target.offset is not None:
            offset = target.offset
        elif target.shift is not None or target.current:
            offset = committed.get(place, end[place]) + (target.shift or 0)
        new[place] = min(max(offset, first[place]), end[place])
    return new


async def _commit(client: Client, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    from kbroker.client.cluster import check, group_by_topic
    from kbroker.model import TopicPartition
    from kbroker.protocol.messages.coordinators.offsets import (
        OffsetCommitRequest,
        OffsetCommitResponse,
    )

    request = OffsetCommitRequest(
        group_id=name,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offsets[TopicPartition(topic, index)],
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in group_by_topic(offsets).items()
        ],
    )
    response = await client.to_coordinator(name, request, OffsetCommitResponse, max_version=9)
    for topic in response.topics:
        for partition in topic.partitions:
            place = f"{topic.name}-{partition.partition_index}"
            check(partition.error_code, f"group {name}, {place}: is it without members?")
