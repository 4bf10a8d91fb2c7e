"""The segments of a stopped log, checked batch by batch, and which of them a topic snapshot may
link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from kbroker.log.storage import names
from kbroker.log.storage.batch_reader import read_batches
from kbroker.log.storage.files import list_directory, written_bytes
from kbroker.log.tools.snapshot_manifest import PartitionSnapshot, SnapshotError
from kbroker.log.tools.snapshot_writer import PartitionWriter
from kbroker.protocol.batches.any_magic import check_any_crc
from kbroker.protocol.batches.batch_header import BatchHeader
from kbroker.protocol.batches.checksum import crc32c

Visit = Callable[[BatchHeader, memoryview], None]
"""Called with every valid batch, in order."""


class SegmentScan(NamedTuple):
    """The valid part of a segment. valid_bytes: size of its whole batches. next_offset: the offset
    after them. crc: CRC-32C of those bytes. problem: the fault after them, None if there is none.
    """

    valid_bytes: int
    next_offset: int
    crc: int
    problem: str | None


def scan_segment(
    path: Path, size_bytes: int, next_offset: int, visit: Visit | None = None
) -> SegmentScan:
    """Read a segment up to the first fault. next_offset: the smallest valid base offset. Raises
    LogDirectoryError.
    """
    position = crc = 0
    problem = None
    for header, batch in read_batches(str(path), 0, size_bytes):
        if not check_any_crc(batch, 0, header):
            problem = f"wrong CRC of the batch at position {position}"
            break
        if header.base_offset < next_offset:
            problem = f"offset {header.base_offset} at position {position} comes after a later one"
            break
        if visit is not None:
            visit(header, batch)
        crc = crc32c(batch, crc)
        position += header.size_bytes
        next_offset = header.next_offset
    if problem is None and position < size_bytes:
        problem = f"no whole batch at position {position} of {size_bytes}"
    return SegmentScan(position, next_offset, crc, problem)


class StoppedLog(NamedTuple):
    """A partition's folder of a node that is not running. log_start_offset, high_watermark: from
    the node's checkpoints, 0 where those have no entry. is_clean: the node was shut down cleanly.
    """

    folder: Path
    partition: int
    log_start_offset: int
    high_watermark: int
    is_clean: bool


def log_bytes(folder: Path) -> int:
    """Total size of the segments in bytes, for a progress bar."""
    return sum(size for _, _, size in _segments(folder))


def _segments(folder: Path) -> list[tuple[int, Path, int]]:
    """(base offset, path, size in bytes) in offset order. The size of a preallocated file without a
    batch is 0.
    """
    found = []
    for name, size, is_directory in list_directory(folder):
        parsed = names.parse_offset_name(name)
        if not is_directory and parsed is not None and parsed[1:] == (names.LOG, ""):
            found.append((parsed[0], folder / name, size))
    found.sort()
    if found:
        base, path, size = found[-1]
        found[-1] = (base, path, size if written_bytes(path) else 0)
    return found


def snapshot_log(
    log: StoppedLog, writer: PartitionWriter
) -> Iterator[int | str | PartitionSnapshot]:
    """Link or copy a log's segments. Yields how many bytes were read, notes for the user, and at
    the end the partition's entry in the manifest.

    A segment is linked if no broker writes to it again: it is followed by a segment that has
    records, and is below the high watermark, under which no log is truncated. Raises SnapshotError
    for a damaged log, LogDirectoryError.
    """
    segments = _segments(log.folder)
    if not segments:
        raise SnapshotError(f"{log.folder} has no segment")
    last_filled = max((at for at, each in enumerate(segments) if each[2]), default=-1)
    next_offset = segments[0][0]
    start = max(log.log_start_offset, next_offset)
    for at, (base, path, size) in enumerate(segments):
        if at < last_filled and segments[at + 1][0] <= log.log_start_offset:
            next_offset = segments[at + 1][0]
            continue  # deleted records; the file was not removed yet
        scan = scan_segment(path, size, max(base, next_offset))
        if scan.problem is not None and written_bytes(path) > scan.valid_bytes:
            if log.is_clean or at < last_filled:
                raise SnapshotError(
                    f"{path}: {scan.problem}; the log is damaged: kbroker dump-log --verify "
                    f"{log.folder}"
                )
            yield (
                f"{path}: {scan.problem}: left out, as the next start of the broker, which was "
                "killed, would cut it off"
            )
        is_full = at < last_filled and scan.problem is None
        if is_full and scan.next_offset <= log.high_watermark:
            writer.link(path, base, scan.valid_bytes, scan.crc)
        elif scan.valid_bytes or base > next_offset:  # an empty one may start after a gap
            writer.copy(path, base, scan.valid_bytes)
        next_offset = max(scan.next_offset, base)
        yield size
        if scan.problem is not None and at == last_filled:
            break
    files = writer.close(next_offset)
    yield PartitionSnapshot(
        partition=log.partition,
        log_start_offset=min(start, next_offset),
        log_end_offset=next_offset,
        high_watermark=min(log.high_watermark, next_offset),
        files=files,
    )
