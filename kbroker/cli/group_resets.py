"""`kbroker groups reset-offsets`: where a group without members will read on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kbroker.cli.output import Cell, note, show
from kbroker.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, Json, run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.client.cluster import Client
    from kbroker.model import TopicPartition

EPILOG: Final = """
Shows what would be committed; --execute commits it. The group must have no members. New offsets are
kept between the first and the end of each partition.

\b
Examples:
  kbroker groups reset-offsets payments --topic orders --to-earliest
  kbroker groups reset-offsets payments --topic orders:0,2 --to-offset 100 --execute
  kbroker groups reset-offsets payments --to-datetime 2026-01-31T12:00:00 --execute
"""


def reset_offsets(
    name: Annotated[str, typer.Argument(help="The group.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:P,P]", help="Repeatable; else all it has committed."
        ),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="The end.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", help="This offset.")] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", help="So many records on, or (negative) back.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", help="The first record at or after this time (UTC)."),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Commit, do not only show.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show, or with --execute commit, new offsets of a group."""
    wishes = (
        to_earliest,
        to_latest,
        to_offset is not None,
        shift_by is not None,
        bool(to_datetime),
    )
    if sum(wishes) != 1:
        raise typer.BadParameter("say one of --to-earliest, --to-latest, --to-offset, ...")
    timestamp = None
    if to_earliest or to_latest:
        timestamp = -2 if to_earliest else -1
    elif to_datetime:
        timestamp = _milliseconds(to_datetime)
    rows = run(_reset(bootstrap, name, topic, timestamp, to_offset, shift_by, execute))
    show(rows, ("group", "topic", "partition", "committed", "new"), as_json=as_json)
    if not execute:
        note("nothing was changed; --execute commits this")


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"--to-datetime: {error}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


async def _reset(
    bootstrap: str,
    name: str,
    topics: list[str] | None,
    timestamp: int | None,
    to_offset: int | None,
    shift_by: int | None,
    execute: bool,
) -> list[dict[str, Cell]]:
    from kbroker.cli.groups import committed_offsets
    from kbroker.client.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Client

    async with Client(bootstrap) as client:
        committed = await client.retry(lambda: committed_offsets(client, name))
        places = sorted(committed) if topics is None else await _places(client, topics)
        if not places:
            return []

        async def offsets(at: int) -> dict[TopicPartition, int]:
            found = await client.retry(lambda: client.list_offsets(dict.fromkeys(places, at)))
            return {place: answer.offset for place, answer in found.items()}

        first, end = await offsets(EARLIEST_TIMESTAMP), await offsets(LATEST_TIMESTAMP)
        wanted = end if timestamp is None else await offsets(timestamp)
        new: dict[TopicPartition, int] = {}
        for place in places:
            offset = wanted[place] if wanted[place] >= 0 else end[place]
            if to_offset is not None:
                offset = to_offset
            elif shift_by is not None:
                offset = committed.get(place, end[place]) + shift_by
            new[place] = min(max(offset, first[place]), end[place])
        if execute:
            await client.retry(lambda: _commit(client, name, new))
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


async def _places(client: Client, topics: list[str]) -> list[TopicPartition]:
    from kbroker.model import TopicPartition

    places: set[TopicPartition] = set()
    for text in topics:
        name, _, chosen = text.partition(":")
        view = await client.topic(name)
        known = sorted(view.partitions)
        indexes = known
        if chosen:
            try:
                indexes = [int(part) for part in chosen.split(",")]
            except ValueError:
                raise typer.BadParameter(f"--topic {text}: partitions are numbers") from None
            if not set(indexes) <= set(known):
                raise typer.BadParameter(f"--topic {text}: {name} has partitions {known}")
        places.update(TopicPartition(name, index) for index in indexes)
    return sorted(places)


async def _commit(client: Client, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    from kbroker.client.cluster import check, group_by_topic
    from kbroker.model import TopicPartition
    from kbroker.protocol.messages.offsets import OffsetCommitRequest, OffsetCommitResponse

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
