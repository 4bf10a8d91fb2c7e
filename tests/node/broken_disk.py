"""A disk that fails while a node starts: the metadata log can be written a few times only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kbroker.log.state.flush import Syncable
from kbroker.log.storage.files import LogDirectoryError


def break_metadata_log(patch: pytest.MonkeyPatch, folder: Path, *, after: int) -> None:
    """Every fsync of the metadata log fails, except the first ones, `after` in number."""
    left = after

    def sync_all(files: Sequence[Syncable]) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise LogDirectoryError(folder, "fsync", OSError(5, "Input/output error"))
        for file in files:
            file.sync()

    patch.setattr("kbroker.quorum.log_effects._sync_all", sync_all)
