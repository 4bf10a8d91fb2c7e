"""The small text files of a log directory: offset checkpoints, partition.metadata, the
clean-shutdown marker.

All are replaced through `<name>.tmp`. A file that cannot be read (a tool changed it, or the disk
damaged it) raises CheckpointError; the manager turns that into a StartupError, so that the user can
repair it, or, as Kafka does, ignores the file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from kbroker.log.storage import names
from kbroker.log.storage.files import atomic_write, read_file
from kbroker.model import TopicPartition, Uuid, uuid_from_string, uuid_to_string

logger = logging.getLogger(__name__)


class CheckpointError(Exception):
    """A checkpoint that does not have Kafka's format; the message has the file, the line and what
    was expected.
    """


def read_entries(path: Path, field_count: int) -> Iterator[list[str]]:
    """The entries of a Kafka checkpoint (`0`, number of entries, one per line); no entries if the
    file is missing or empty.
    """
    data = read_file(path)
    if not data:
        return
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not text: {error}") from error
    if lines[0].strip() != "0":
        raise CheckpointError(f"{path}: line 1: version {lines[0]!r}, expected 0")
    try:
        count = int(lines[1])
    except (IndexError, ValueError):
        raise CheckpointError(f"{path}: line 2: expected the number of entries") from None
    entries = [line for line in lines[2:] if line.strip()]
    if count != len(entries):
        raise CheckpointError(f"{path}: {count} entries announced, {len(entries)} found")
    for number, line in enumerate(entries, 3):
        fields = line.split()
        if len(fields) != field_count:
            raise CheckpointError(f"{path}: line {number}: {line!r}, expected {field_count} fields")
        yield fields


def format_entries(entries: Iterable[str]) -> bytes:
    """The text of a checkpoint."""
    lines = list(entries)
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def parse_number(path: Path, text: str) -> int:
    """A decimal number of a checkpoint. Raises CheckpointError."""
    try:
        return int(text)
    except ValueError:
        raise CheckpointError(f"{path}: {text!r} is no number") from None


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """A `topic partition offset` file; empty if missing. Raises CheckpointError."""
    return {
        TopicPartition(topic, parse_number(path, partition)): parse_number(path, offset)
        for topic, partition, offset in read_entries(path, 3)
    }


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int], *, sync: bool = True) -> None:
    """Replace a `topic partition offset` file."""
    entries = (f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())
    atomic_write(path, format_entries(entries), sync=sync)


class CheckpointFile:
    """A `topic partition offset` file that several threads write: one thread at a time, and newer
    content is never replaced by older.
    """

    __slots__ = ("_lock", "_prepared", "_written", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        self._prepared = 0
        self._written = 0

    def prepare(self, offsets: Mapping[TopicPartition, int]) -> Checkpoint:
        """Prepare the content of the file; called on the loop."""
        self._prepared += 1
        return Checkpoint(self, offsets, self._prepared)

    def write(self, checkpoint: Checkpoint) -> None:
        """See `Checkpoint.write`."""
        with self._lock:
            if checkpoint.number > self._written:
                write_offsets(self.path, checkpoint.offsets)
                self._written = checkpoint.number


class Checkpoint(NamedTuple):
    """The content of a checkpoint: a copy that any thread may write. number: the sequence number of
    the content.
    """

    file: CheckpointFile
    offsets: Mapping[TopicPartition, int]
    number: int

    @property
    def path(self) -> Path:
        return self.file.path

    def write(self) -> None:
        """Replace the file and sync it, unless it has newer content. Blocks. Raises
        LogDirectoryError.
        """
        self.file.write(self)


def read_topic_id_after_stop(directory: Path, *, clean_shutdown: bool) -> Uuid | None:
    """The topic id in partition.metadata. After a crash of the machine an unsynced file may hold
    anything; None then, and the file is written again with the id from the metadata log.
    """
    try:
        return read_topic_id(directory)
    except CheckpointError as error:
        if clean_shutdown:
            raise
        logger.warning("%s; rewriting it once the topic is in the metadata", error)
        return None


def read_topic_id(directory: Path) -> Uuid | None:
    """The topic id of a partition's folder, None without partition.metadata. Raises
    CheckpointError.
    """
    path = directory / names.PARTITION_METADATA
    data = read_file(path)
    if data is None:
        return None
    fields = dict(
        line.partition(":")[::2]
        for line in data.decode("utf-8", "replace").splitlines()
        if line.strip()
    )
    version = fields.get("version", "").strip()
    if version != "0":
        raise CheckpointError(f"{path}: version {version!r}, expected 0")
    try:
        return uuid_from_string(fields.get("topic_id", "").strip())
    except ValueError as error:
        raise CheckpointError(f"{path}: topic_id: {error}") from error


def write_topic_id(directory: Path, topic_id: Uuid) -> None:
    """Write partition.metadata: no newline at its end."""
    text = f"version: 0\ntopic_id: {uuid_to_string(topic_id)}"
    atomic_write(directory / names.PARTITION_METADATA, text.encode(), sync=False)


def read_clean_shutdown(log_directory: Path) -> int | None:
    """The broker epoch in the clean-shutdown marker; -1 in a marker without one (Kafka before 3.7);
    None: not clean.
    """
    data = read_file(log_directory / names.CLEAN_SHUTDOWN)
    if data is None:
        return None
    try:
        fields = json.loads(data) if data.strip() else {}
        return int(fields.get("brokerEpoch", -1))
    except (ValueError, TypeError, AttributeError):
        return -1


def write_clean_shutdown(log_directory: Path, broker_epoch: int) -> None:
    """Say that everything was flushed and closed. Written last."""
    text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    atomic_write(log_directory / names.CLEAN_SHUTDOWN, text.encode())
