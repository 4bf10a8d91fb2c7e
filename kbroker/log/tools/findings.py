"""The findings that `verify` reports."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Problem(NamedTuple):
    """A problem that was found. path: the file or folder."""

    path: Path
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


class Progress(NamedTuple):
    """A file of that many bytes was checked."""

    path: Path
    size_bytes: int


Finding = Problem | Progress
