"""Where a record's file is and what it is called: folders by the layout, a name by its content.

`topic=orders/date=2026-05-01/p00003-000000012000-000000015999.parquet` holds records of partition 3
from offset 12000 to 15999 (inclusive). Offsets in between may be missing: those of other folders,
of aborted transactions and of compacted records. No two files of an archive overlap within one
folder, so a file that is written again replaces itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import quote, unquote

from ..errors import JobError

LEVELS: Final = ("topic", "date", "hour", "partition")
"""Levels of folders, outermost first. date and hour are the record's time in UTC."""

DEFAULT_LAYOUT: Final = ("topic", "date")

STRING_MARK: Final = "~string"
"""A value that no topic can have (`~` is not legal in topic names). An empty file in its folder
keeps readers from inferring a number or a date from topic names such as `20240101`.
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_HOUR: Final = (datetime(9999, 12, 31, 23, tzinfo=UTC) - _EPOCH) // timedelta(hours=1)
"""The last hour that a folder can name; later records are in it too."""

_NAME = re.compile(
    r"(?:(?P<topic>.+)-)?p(?P<partition>\d{5,})-(?P<first>\d{12,})-(?P<last>\d{12,})"
    r"(?:\.g(?P<generation>\d+))?\.parquet"
)
_TYPED = re.compile(r"[-.]*(?:[0-9]|(?:nan|inf|infinity|null|true|false)$)", re.IGNORECASE)


def parse_layout(text: str) -> tuple[str, ...]:
    """`topic,date` to levels in their order; `none` to no levels. Raises JobError. An hour is of a
    date, so `hour` brings `date` with it.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["none"]:
        return ()
    unknown = [name for name in names if name not in LEVELS]
    if unknown or not names:
        raise JobError(
            f"--layout {text}: levels are {', '.join(LEVELS)} (comma separated), or none"
        )
    wanted = {*names, "date"} if "hour" in names else set(names)
    return tuple(level for level in LEVELS if level in wanted)


def looks_typed(topic: str) -> bool:
    """Whether readers may infer a number, a date or a boolean from a folder `topic=...`."""
    return _TYPED.match(topic) is not None


@dataclass(frozen=True, slots=True)
class FileRange:
    """What a file holds: records of one partition, offsets inclusive. generation: 2 and above for
    a topic that was deleted and created again while the archive stayed.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    generation: int = 1


def folder(layout: tuple[str, ...], topic: str, partition: int, hour: int) -> str:
    """The folder of records; empty without levels. hour: the record's time in hours since 1970; -1
    for a record without a time.
    """
    time = _EPOCH + timedelta(hours=hour)
    values = {
        "topic": topic,
        "date": f"{time:%Y-%m-%d}",
        "hour": f"{time:%H}",
        "partition": str(partition),
    }
    return "/".join(f"{level}={values[level]}" for level in layout)


def file_name(layout: tuple[str, ...], content: FileRange) -> str:
    """The name of a file. It names the topic where no folder does."""
    name = (
        f"p{content.partition:05d}-{content.first_offset:012d}-{content.last_offset:012d}"
        f"{f'.g{content.generation}' if content.generation > 1 else ''}.parquet"
    )
    return name if "topic" in layout else f"{_visible(content.topic)}-{name}"


def check_name(layout: tuple[str, ...], content: FileRange, longest_name: int | None) -> None:
    """Raises JobError if the name of a file is too long. longest_name: in bytes, None for any."""
    size = len(file_name(layout, content).encode())
    if longest_name is not None and size > longest_name:
        raise JobError(
            f"--layout {','.join(layout) or 'none'}: names of files have the topic in them, and "
            f"with topic {content.topic} {size} bytes, of which the file system takes "
            f"{longest_name}. --layout must have the level topic; an --output that has records "
            "keeps its layout, so name another one then"
        )


def parse_file(path: str) -> FileRange | None:
    """What a file of an archive holds, from its relative path; None if it is none."""
    *folders, name = path.split("/")
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    values = dict(part.partition("=")[::2] for part in folders)
    topic = values.get("topic") or (unquote(match["topic"]) if match["topic"] else None)
    if topic is None:
        return None
    return FileRange(
        topic,
        int(match["partition"]),
        int(match["first"]),
        int(match["last"]),
        int(match["generation"] or 1),
    )


def string_mark(layout: tuple[str, ...]) -> str:
    """Path of the empty file that makes readers take `topic` for a string."""
    return f"{folder(layout, STRING_MARK, 0, 0)}/no-records.parquet"


def is_string_mark(path: str) -> bool:
    """Whether a path is that of `string_mark`."""
    return path.startswith(f"topic={STRING_MARK}/")


def _visible(topic: str) -> str:
    """A topic's name as the beginning of a file name, which must not look hidden."""
    if topic[0] in "._":
        return f"%{ord(topic[0]):02X}{quote(topic[1:])}"
    return quote(topic)


Positions = dict[str, dict[int, int]]
"""Next offset by topic and partition, exclusive end of what is archived."""


@dataclass(frozen=True, slots=True)
class Rewind:
    """What going back in an archive removes and where the records begin that it archives again."""

    positions: Positions
    removed: tuple[str, ...]


def rewind(paths: Iterable[str], wanted: Positions, generations: dict[str, int]) -> Rewind:
    """The files to remove so that records from `wanted` on can be archived again, each once.

    A file that begins before the wanted position is kept, and its partition begins behind it: Kafka
    may no longer have its first records. paths: all files of the archive. generations: by topic;
    files of an earlier one are kept.
    """
    by_partition: dict[tuple[str, int], list[tuple[FileRange, str]]] = {}
    for path in paths:
        content = parse_file(path)
        if content is None or content.partition not in wanted.get(content.topic, {}):
            continue
        if content.generation == generations.get(content.topic, 1):
            key = (content.topic, content.partition)
            by_partition.setdefault(key, []).append((content, path))
    positions = {topic: dict(offsets) for topic, offsets in wanted.items()}
    removed: list[str] = []
    for (topic, partition), files in by_partition.items():
        position = positions[topic][partition]
        for content, path in sorted(files, key=lambda file: file[0].first_offset):
            if content.first_offset >= position:
                removed.append(path)
            else:
                position = max(position, content.last_offset + 1)
        positions[topic][partition] = position
    return Rewind(positions, tuple(sorted(removed)))
