"""`snapshot.json`: the manifest of a topic snapshot.

A topic snapshot is a directory with a folder per partition, named and filled as in a log directory
(`orders-0/00000000000000000000.log`), and this file, which is written last: a directory without it
is no snapshot. `snapshot_writer` writes snapshots, `snapshot_reader` checks and reads them. They
are not related to metadata snapshots and producer snapshots.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kbroker.log.storage.files import LogDirectoryError, is_directory, read_file
from kbroker.log.storage.names import LOG, offset_name
from kbroker.model import StartupError
from kbroker.protocol.batches.checksum import crc32c

MANIFEST: Final = "snapshot.json"
FORMAT: Final = "kbroker-topic-snapshot"
VERSION: Final = 1
MAX_MANIFEST_BYTES: Final = 256 * 1024 * 1024
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class SnapshotError(StartupError):
    """A directory that is no topic snapshot, or a damaged one; one line with directory and
    reason.
    """


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A segment. base_offset: from its name. crc32c: of the whole file."""

    base_offset: int
    size_bytes: int
    crc32c: int

    @property
    def name(self) -> str:
        """The file's name in the partition's folder."""
        return offset_name(self.base_offset, LOG)


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """One partition; files in the order of their offsets. log_start_offset: records below it were
    deleted. log_end_offset: exclusive. high_watermark: as it was when the snapshot was taken.
    """

    partition: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    files: tuple[SnapshotFile, ...]


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """taken: "online" or "offline". configs: the topic's own overrides."""

    cluster_id: str
    topic: str
    topic_id: str
    taken: str
    created_ms: int
    configs: Mapping[str, str]
    partitions: tuple[PartitionSnapshot, ...]

    @property
    def size_bytes(self) -> int:
        """Total size of all files."""
        return sum(file.size_bytes for each in self.partitions for file in each.files)

    def folder(self, partition: int) -> str:
        """The name of a partition's folder."""
        return f"{self.topic}-{partition}"

    def encode(self) -> bytes:
        """The content of `snapshot.json`."""
        fields: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "cluster_id": self.cluster_id,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "taken": self.taken,
            "created_ms": self.created_ms,
            "configs": dict(sorted(self.configs.items())),
            "partitions": [
                {
                    "partition": each.partition,
                    "log_start_offset": each.log_start_offset,
                    "log_end_offset": each.log_end_offset,
                    "high_watermark": each.high_watermark,
                    "files": [
                        {
                            "base_offset": file.base_offset,
                            "name": f"{self.folder(each.partition)}/{file.name}",
                            "size_bytes": file.size_bytes,
                            "crc32c": f"{file.crc32c:08x}",
                        }
                        for file in each.files
                    ],
                }
                for each in self.partitions
            ],
        }
        fields["crc32c"] = f"{_own_crc(fields):08x}"
        return (json.dumps(fields, indent=1, ensure_ascii=False) + "\n").encode()


def _own_crc(fields: Mapping[str, Any]) -> int:
    """CRC-32C of all fields except the checksum itself."""
    content = {key: value for key, value in fields.items() if key != "crc32c"}
    return crc32c(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def read_manifest(directory: Path) -> SnapshotManifest:
    """Raises SnapshotError for a directory that is no topic snapshot, or whose manifest is damaged
    or of a later version.
    """
    path = directory / MANIFEST
    if not is_directory(directory):
        raise SnapshotError(f"{directory}: no such directory")
    try:
        data = read_file(path, MAX_MANIFEST_BYTES)
    except LogDirectoryError as error:
        raise SnapshotError(str(error)) from error
    if data is None:
        raise SnapshotError(
            f"{directory} is no topic snapshot: it has no {MANIFEST}, which is written last; "
            "a snapshot that was interrupted has none"
        )
    try:
        return _decode(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise SnapshotError(f"{path}: {why}") from None


def _decode(fields: Mapping[str, Any]) -> SnapshotManifest:
    """Raises the error of any malformed field; ValueError with a sentence for inconsistent
    values.
    """
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ValueError("not the manifest of a topic snapshot")
    if fields["version"] != VERSION:
        raise ValueError(f"version {fields['version']} of the format, understood is {VERSION}")
    if fields["crc32c"] != f"{_own_crc(fields):08x}":
        raise ValueError("its checksum is wrong: the file is damaged or was edited")
    topic = str(fields["topic"])
    # the file names are derived from it
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise ValueError(f"{topic!r} is no name of a topic")
    partitions = tuple(map(_partition, fields["partitions"]))
    if not partitions or [each.partition for each in partitions] != list(range(len(partitions))):
        raise ValueError("its partitions are not those from 0 on")
    return SnapshotManifest(
        cluster_id=str(fields["cluster_id"]),
        topic=topic,
        topic_id=str(fields["topic_id"]),
        taken=str(fields["taken"]),
        created_ms=int(fields["created_ms"]),
        configs={str(key): str(value) for key, value in fields["configs"].items()},
        partitions=partitions,
    )


def _partition(fields: Mapping[str, Any]) -> PartitionSnapshot:
    return PartitionSnapshot(
        partition=int(fields["partition"]),
        log_start_offset=int(fields["log_start_offset"]),
        log_end_offset=int(fields["log_end_offset"]),
        high_watermark=int(fields["high_watermark"]),
        files=_files(fields["files"]),
    )


def _files(listed: Sequence[Mapping[str, Any]]) -> tuple[SnapshotFile, ...]:
    return tuple(
        SnapshotFile(
            base_offset=int(fields["base_offset"]),
            size_bytes=int(fields["size_bytes"]),
            crc32c=int(fields["crc32c"], 16),
        )
        for fields in listed
    )
