"""Partitions that a user names: `orders` for all of a topic, `orders:0,2` for some; or lines of
topic,partition,offset in a file.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import typer

from kbroker.cli.console.output import note
from kbroker.model import StartupError, TopicPartition

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.client.cluster_view import OffsetAndTimestamp


READ_UNCOMMITTED: Final = 0
"""As in `client/cluster`, which takes long to import."""


class ChosenPartitions(NamedTuple):
    """Of one topic; no indexes stand for all of them."""

    topic: str
    indexes: Sequence[int]


def chosen_partitions(text: str, option: str) -> ChosenPartitions:
    """`topic` or `topic:0,2`. Raises BadParameter. option: named in it."""
    name, _, chosen = text.partition(":")
    try:
        indexes = [int(part) for part in chosen.split(",")] if chosen else []
    except ValueError:
        raise typer.BadParameter(f"{text}: partitions are numbers", param_hint=option) from None
    if not name:
        raise typer.BadParameter("a name is empty", param_hint=option)
    return ChosenPartitions(name, indexes)


async def existing_partitions(
    client: Client, choices: Sequence[ChosenPartitions]
) -> list[TopicPartition]:
    """In order of topic and index. Raises StartupError for a partition that the topic has not."""
    places: set[TopicPartition] = set()
    for name, chosen in choices:
        known = (await client.topic(name)).partitions
        missing = set(chosen) - set(known)
        if missing:
            last = max(known)
            raise StartupError(f"{name} has no partition {min(missing)}, its last is {last}")
        places.update(TopicPartition(name, index) for index in chosen or known)
    return sorted(places)


async def offsets_at(
    client: Client,
    places: Collection[TopicPartition],
    timestamp_ms: int,
    isolation_level: int = READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """The first offset at or after a time, per partition; -1 where there is none. A timestamp may
    be LATEST_TIMESTAMP or EARLIEST_TIMESTAMP.
    """
    if not places:
        return {}
    asked = dict.fromkeys(places, timestamp_ms)
    found = await client.retry(lambda: client.list_offsets(asked, isolation_level=isolation_level))
    return {place: answer.offset for place, answer in found.items()}


async def led_offsets(
    client: Client, places: Collection[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """As `offsets_at`, with timestamps, of those partitions that have a leader; a note names the
    others.
    """
    topics = sorted({place.topic for place in places})

    async def attempt() -> dict[TopicPartition, OffsetAndTimestamp]:
        await client.metadata(topics)
        led = [place for place in places if not client.is_leaderless(place)]
        return await client.list_offsets(dict.fromkeys(led, timestamp_ms))

    found = await client.retry(attempt) if places else {}
    for place in places:
        if place not in found:
            note(f"{place} has no leader")
    return found


def read_offsets(path: Path, group: str | None = None) -> dict[TopicPartition, int]:
    """Offsets out of lines of [group,]topic,partition,offset; lines of other groups are left out.
    Raises OSError, and StartupError for a line that is none.
    """
    offsets: dict[TopicPartition, int] = {}
    fields = (3,) if group is None else (3, 4)
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.reader(lines)
        try:
            for row in reader:
                if not row:
                    continue
                if len(row) not in fields:
                    raise ValueError("another number of fields")
                if len(row) == 3 or row[0] == group:
                    topic, partition, offset = row[-3:]
                    offsets[TopicPartition(topic, int(partition))] = int(offset)
        except (ValueError, csv.Error):  # UnicodeDecodeError, too, is a ValueError
            form = "topic,partition,offset" if group is None else "[group,]topic,partition,offset"
            raise StartupError(f"{path}, line {reader.line_num}: {form} expected") from None
    return offsets
