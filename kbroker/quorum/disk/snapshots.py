"""Snapshots of the metadata log, as files: `<end offset>-<epoch>.checkpoint` (KIP-630).

A snapshot contains the state of all records below its end offset (exclusive). The file is record
batches: a control batch (header; with kraft.version 1 also that version and the voters), data
batches, a control batch (footer); offsets inside begin at 0. It is written under a `.part` name,
synced, made read-only and renamed, so a file with the final name is complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kbroker.log.storage.files import (
    LogFile,
    file_size,
    list_directory,
    make_read_only,
    read_file,
    rename,
    sync_directory,
    unlink,
    write_read_only,
)
from kbroker.model import StartupError
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import (
    BATCH_OVERHEAD,
    BatchHeader,
    check_crc,
    iter_batches,
    read_batch_header,
)
from kbroker.protocol.batches.control_records import ControlType
from kbroker.protocol.batches.records import Record, iter_records
from kbroker.protocol.errors import KafkaError
from kbroker.quorum.raft.control import (
    QuorumConfiguration,
    control_batch,
    control_kind,
    control_records,
    snapshot_footer,
    snapshot_header,
)
from kbroker.quorum.raft.offsets import SnapshotId

BOOTSTRAP: Final = "bootstrap.checkpoint"

_NAME: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_PART_NAME: Final = re.compile(r"\d{20}-\d{10}-\d+\.checkpoint\.part")


class Snapshot(NamedTuple):
    """A snapshot's content. records: the framed metadata records."""

    configuration: QuorumConfiguration
    last_contained_timestamp_ms: int
    records: list[bytes]


def list_snapshots(directory: Path) -> list[SnapshotId]:
    """Completed snapshots, oldest first."""
    names = (
        _NAME.fullmatch(name)
        for name, _, is_directory in list_directory(directory)
        if not is_directory
    )
    return sorted(SnapshotId(int(match[1]), int(match[2])) for match in names if match is not None)


def remove_parts(directory: Path) -> list[str]:
    """Delete the half-written files of a crash. Returns their names."""
    names = [name for name, _, _ in list_directory(directory) if _PART_NAME.fullmatch(name)]
    for name in names:
        unlink(directory / name)
    return names


def build_snapshot(
    configuration: QuorumConfiguration,
    chunks: Iterable[Sequence[bytes]],
    *,
    epoch: int,
    last_contained_timestamp_ms: int,
    now_ms: int,
) -> Iterator[bytes]:
    """The batches of a snapshot's file, one by one; one data batch per chunk."""
    head = [snapshot_header(last_contained_timestamp_ms), *configuration.records()]
    yield bytes(control_batch(head, base_offset=0, epoch=epoch, timestamp_ms=now_ms))
    offset = len(head)
    for chunk in chunks:
        if chunk:
            rows = [(now_ms, None, record, ()) for record in chunk]
            yield bytes(build_batch(rows, base_offset=offset, partition_leader_epoch=epoch))
            offset += len(chunk)
    yield bytes(
        control_batch([snapshot_footer()], base_offset=offset, epoch=epoch, timestamp_ms=now_ms)
    )


def write_snapshot(path: Path, part_path: Path, batches: Iterable[bytes]) -> None:
    """Write a snapshot's file through part_path. Blocks. Raises LogDirectoryError."""
    write_read_only(part_path, batches)
    rename(part_path, path)
    sync_directory(path.parent)


class FetchedSnapshot:
    """A snapshot that a follower fetches from its leader, part by part."""

    __slots__ = ("_file", "_part_path", "_path")

    def __init__(self, part_path: Path, path: Path) -> None:
        unlink(part_path)
        self._part_path = part_path
        self._path = path
        self._file = LogFile(os.fspath(part_path), create=True)

    def write(self, data: bytes, position: int) -> None:
        """Write bytes of the file, not synced. Raises LogDirectoryError."""
        self._file.write_at(data, position)

    def finish(self) -> Snapshot:
        """Sync the file, check it and rename it to its final name. Blocks; may run in a thread.
        Returns the content. Raises StartupError if the file is damaged (it is then deleted),
        LogDirectoryError.
        """
        data = self._file.read_at(0, self._file.size())
        try:
            snapshot = parse_snapshot(data, self._path)
        except StartupError:
            unlink(self._part_path)
            raise
        self._file.sync()
        make_read_only(self._part_path)
        rename(self._part_path, self._path)
        sync_directory(self._path.parent)
        return snapshot

    def discard(self) -> None:
        """Delete the part that was fetched."""
        unlink(self._part_path)


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot's file. Raises StartupError for a missing, damaged or incomplete file."""
    data = read_file(path)
    if data is None:
        raise StartupError(f"{path} is missing")
    return parse_snapshot(data, path)


def read_last_contained_timestamp_ms(path: Path) -> int:
    """That of a snapshot's file; 0 if its header is missing. Reads only the first batch: damage
    behind it is found where the whole file is read. Raises StartupError for a missing file or a
    damaged first batch.
    """
    head = read_file(path, BATCH_OVERHEAD)
    if head is None:
        raise StartupError(f"{path} is missing")
    try:
        header = read_batch_header(head)
        size_bytes, left = header.size_bytes, file_size(os.fspath(path))
        if size_bytes > left:  # the length may be damaged: nothing is allocated for it
            raise StartupError(_damaged(path, f"a batch of {size_bytes} bytes, {left} left"))
        batch = _checked(read_file(path, size_bytes) or b"", 0, header, path)
        controls = control_records(batch) if header.is_control else []
        QuorumConfiguration().after(controls)  # raises for damaged voters or kraft.version
    except KafkaError as error:
        raise StartupError(_damaged(path, error.message)) from error
    return _last_contained_timestamp_ms(controls) or 0


def parse_snapshot(data: bytes, path: Path) -> Snapshot:
    """The content of a snapshot's file. path: for the error messages. Raises as `read_snapshot`."""
    configuration = QuorumConfiguration()
    timestamp_ms = 0
    records: list[bytes] = []
    finished = False
    try:
        for position, header in iter_batches(data):
            batch = _checked(data, position, header, path)
            if not header.is_control:
                records += [record.value or b"" for record in iter_records(batch, header)]
                continue
            controls = control_records(batch)
            configuration = configuration.after(controls)
            found_ms = _last_contained_timestamp_ms(controls)
            timestamp_ms = timestamp_ms if found_ms is None else found_ms
            kinds = map(control_kind, controls)
            finished = finished or ControlType.SNAPSHOT_FOOTER in kinds
    except KafkaError as error:
        raise StartupError(_damaged(path, error.message)) from error
    if not finished:
        raise StartupError(_damaged(path, "it ends without a footer"))
    return Snapshot(configuration, timestamp_ms, records)


def _last_contained_timestamp_ms(controls: Sequence[Record]) -> int | None:
    """That of the snapshot's header; None if it is not among these records."""
    for record in controls:
        if control_kind(record) is ControlType.SNAPSHOT_HEADER and record.value is not None:
            return int.from_bytes(record.value[2:10], "big", signed=True)
    return None


def _checked(data: bytes, position: int, header: BatchHeader, path: Path) -> memoryview:
    if not check_crc(data, position, header):
        raise StartupError(_damaged(path, f"wrong CRC of the batch at byte {position}"))
    return memoryview(data)[position : position + header.size_bytes]


def _damaged(path: Path, why: str) -> str:
    return f"metadata snapshot {path} is damaged: {why}; restore it from a backup of this directory"
