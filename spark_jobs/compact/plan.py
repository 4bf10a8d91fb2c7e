"""Which files of a folder are merged. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..archive.layout import FileRange


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file of an archive. path: relative to the archive. is_fixed: it stays as it is. columns:
    tell files apart whose values are data of other schemas.
    """

    path: str
    content: FileRange
    size_bytes: int
    is_fixed: bool = False
    columns: str = ""

    @property
    def name(self) -> str:
        """In its folder."""
        return self.path.rpartition("/")[2]


Run = tuple[ArchiveFile, ...]


def runs(files: Iterable[ArchiveFile], target_bytes: int, min_files: int) -> list[Run]:
    """The runs of files that become one file each, in the order of their offsets.

    files: of one folder. Only neighbours of one partition and generation are merged, so no file's
    range has another file in it, and only those with the same columns. A run has min_files at
    least, and target_bytes at most.
    """
    found: list[Run] = []

    def key(file: ArchiveFile) -> tuple[str, int, int]:
        return file.content.topic, file.content.partition, file.content.generation

    for _, group in groupby(sorted(files, key=lambda f: (key(f), f.content.first_offset)), key):
        run: list[ArchiveFile] = []
        for file in group:
            is_other = bool(run) and run[-1].columns != file.columns
            if file.is_fixed or is_other or _size(run) + file.size_bytes > target_bytes:
                found.append(tuple(run))
                run = []
            if not file.is_fixed:
                run.append(file)
        found.append(tuple(run))
    return [run for run in found if len(run) >= min_files]


def merged_range(run: Run) -> FileRange:
    """What the merged file of a run holds."""
    first, last = run[0].content, run[-1].content
    return FileRange(
        first.topic, first.partition, first.first_offset, last.last_offset, first.generation
    )


def _size(run: Sequence[ArchiveFile]) -> int:
    return sum(file.size_bytes for file in run)
