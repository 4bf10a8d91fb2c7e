"""Which files of an archive hold a topic. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..archive.layout import FileRange, parse_file
from ..errors import JobError


@dataclass(frozen=True, slots=True)
class TopicFile:
    """A visible file of an archive. path: relative to the archive."""

    path: str
    content: FileRange


def topics_in(paths: Iterable[str]) -> list[str]:
    """The topics that an archive has files of, sorted."""
    return sorted({content.topic for path in paths if (content := parse_file(path)) is not None})


def chosen_topic(paths: Sequence[str], topic: str | None, archive: str) -> str:
    """The topic to restore: the named one, or the archive's only one. Raises JobError."""
    found = topics_in(paths)
    if not found:
        raise JobError(f"{archive} has no files of an archive: name the --output of `archive`")
    if topic is None and len(found) > 1:
        shown = ", ".join(found[:5]) + (" and more" if len(found) > 5 else "")
        raise JobError(f"{archive} has several topics ({shown}): name one by --topic")
    if topic is not None and topic not in found:
        raise JobError(f"{archive} has no records of topic {topic}")
    return topic if topic is not None else found[0]


def files_of(paths: Iterable[str], topic: str) -> list[TopicFile]:
    """The files of a topic's newest generation: of the topic as it was created last."""
    files = [
        TopicFile(path, content)
        for path in paths
        if (content := parse_file(path)) is not None and content.topic == topic
    ]
    newest = max((file.content.generation for file in files), default=1)
    return [file for file in files if file.content.generation == newest]


def ends_of(files: Iterable[TopicFile]) -> dict[int, int]:
    """By partition: behind the last record."""
    ends: dict[int, int] = {}
    for file in files:
        content = file.content
        ends[content.partition] = max(ends.get(content.partition, 0), content.last_offset + 1)
    return ends


def starts_of(files: Iterable[TopicFile]) -> dict[int, int]:
    """By partition: the first record."""
    starts: dict[int, int] = {}
    for file in files:
        content = file.content
        known = starts.get(content.partition, content.first_offset)
        starts[content.partition] = min(known, content.first_offset)
    return starts


def overlapping(
    files: Iterable[TopicFile], starts: Mapping[int, int], ends: Mapping[int, int]
) -> list[TopicFile]:
    """The files that hold offsets of [starts, ends)."""
    return [
        file
        for file in files
        if file.content.partition in starts
        and file.content.first_offset < ends[file.content.partition]
        and file.content.last_offset >= starts[file.content.partition]
    ]
