"""Checks a topic snapshot against its manifest, and reads the records that a consumer would see.

A snapshot holds the batches as they were stored, including transaction markers. Visible are the
records that a `read_committed` consumer gets: not those of aborted transactions, nor of
transactions whose marker is not in the snapshot.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kbroker.log.storage.batch_reader import read_batches
from kbroker.log.storage.files import LogDirectoryError, exists, file_size
from kbroker.log.tools.snapshot_manifest import PartitionSnapshot, SnapshotError, SnapshotManifest
from kbroker.log.tools.snapshot_segments import scan_segment
from kbroker.protocol.batches.any_magic import iter_any_records
from kbroker.protocol.batches.batch_header import BatchHeader
from kbroker.protocol.batches.control_records import ControlType, control_type
from kbroker.protocol.batches.records import Record, iter_records
from kbroker.protocol.errors import KafkaError

NEVER: Final = (1 << 63) - 1


@dataclass(slots=True)
class PartitionContent:
    """The result of checking a partition. hidden: offset ranges [first, end) of each producer id
    whose transactions are not visible, in order. open_transactions: those of them without a marker.
    """

    hidden: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    open_transactions: int = 0
    _begun: dict[int, int] = field(default_factory=dict)

    def take(self, header: BatchHeader, batch: memoryview) -> None:
        """Process the next batch of the partition."""
        if header.is_control:
            for record in iter_records(batch, header):
                first = self._begun.pop(header.producer_id, None)
                if first is not None and control_type(record) is ControlType.ABORT:
                    self._hide(header.producer_id, first, header.base_offset)
        elif header.is_transactional:
            self._begun.setdefault(header.producer_id, header.base_offset)

    def end(self) -> None:
        """Called after the last batch."""
        self.open_transactions = len(self._begun)
        for producer_id, first in self._begun.items():
            self._hide(producer_id, first, NEVER)
        self._begun.clear()

    def _hide(self, producer_id: int, first: int, end: int) -> None:
        self.hidden.setdefault(producer_id, []).append((first, end))

    def shows(self, header: BatchHeader) -> bool:
        """Whether the records of a batch are visible."""
        if header.is_control:
            return False
        ranges = self.hidden.get(header.producer_id) if header.is_transactional else None
        if not ranges:
            return True
        at = bisect_right(ranges, (header.base_offset, NEVER)) - 1
        return at < 0 or header.base_offset >= ranges[at][1]


def check_partition(
    directory: Path, manifest: SnapshotManifest, partition: PartitionSnapshot
) -> Iterator[int | PartitionContent]:
    """Read and check all files of a partition: sizes, CRC-32C of files and batches, order of
    offsets. Yields the size of each file in bytes, and at the end the content. Raises
    SnapshotError.
    """
    content = PartitionContent()
    next_offset = 0
    for file in partition.files:
        path = directory / manifest.folder(partition.partition) / file.name
        try:
            if not exists(path):
                raise SnapshotError(f"{path} is missing: the snapshot is damaged")
            size = file_size(str(path))
            if size != file.size_bytes:
                raise SnapshotError(
                    f"{path} has {size:,} bytes, its manifest says {file.size_bytes:,}: the "
                    "snapshot is damaged"
                )
            scan = scan_segment(path, size, max(next_offset, file.base_offset), content.take)
        except LogDirectoryError as error:
            raise SnapshotError(str(error)) from error
        except KafkaError as error:
            raise SnapshotError(f"{path}: {error.message}: the snapshot is damaged") from error
        if scan.problem is not None:
            raise SnapshotError(f"{path}: {scan.problem}: the snapshot is damaged")
        if scan.crc != file.crc32c:
            raise SnapshotError(
                f"{path} has CRC-32C {scan.crc:08x}, its manifest says {file.crc32c:08x}: the "
                "snapshot is damaged"
            )
        next_offset = max(scan.next_offset, file.base_offset)
        yield size
    if next_offset > partition.log_end_offset:  # below it compaction may have left a gap
        raise SnapshotError(
            f"{directory / manifest.folder(partition.partition)} ends at offset {next_offset}, its "
            f"manifest says {partition.log_end_offset}: the snapshot is damaged"
        )
    content.end()
    yield content


def visible_records(
    directory: Path,
    manifest: SnapshotManifest,
    partition: PartitionSnapshot,
    content: PartitionContent,
) -> Iterator[list[Record]]:
    """The visible records of a partition in offset order, batch by batch. content: the result of
    `check_partition`. Raises SnapshotError, LogDirectoryError.
    """
    for file in partition.files:
        path = directory / manifest.folder(partition.partition) / file.name
        for header, batch in read_batches(str(path), 0, file.size_bytes):
            if header.next_offset <= partition.log_start_offset or not content.shows(header):
                continue
            try:
                records = list(iter_any_records(batch, header))
            except KafkaError as error:
                raise SnapshotError(f"{path}: offset {header.base_offset}: {error}") from error
            yield [each for each in records if each.offset >= partition.log_start_offset]
