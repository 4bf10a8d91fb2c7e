"""Temporary files that a crash leaves in a log's folder: `.deleted`, `.cleaned` and `.swap`."""

from __future__ import annotations

import errno
import os

from kbroker.log.storage import names
from kbroker.log.storage.batch_reader import read_batches
from kbroker.log.storage.files import (
    LogDirectoryError,
    list_directory,
    rename,
    unlink,
)


def settle_temporary_files(directory: str) -> dict[tuple[int, str], int]:
    """Delete or complete what a crash left unfinished. Returns (offset, kind) -> size of the
    remaining files.

    `.deleted` and `.cleaned` files are deleted. `.swap` files are a completed compaction: they
    replace the segments that they cover, unless a `.cleaned` file beside them shows that their
    group was incomplete.
    """
    found: dict[tuple[int, str], int] = {}
    swaps: dict[tuple[int, str], int] = {}
    cleaned: list[int] = []
    for name, size, is_directory in list_directory(directory):
        parsed = parse_name(name)
        if parsed is None:
            continue
        offset, kind, suffix = parsed
        if is_directory:
            cause = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            raise LogDirectoryError(os.path.join(directory, name), "open", cause)
        if suffix == names.SWAP:
            swaps[offset, kind] = size
        elif suffix in (names.DELETED, names.CLEANED):
            if suffix == names.CLEANED:
                cleaned.append(offset)
            unlink(os.path.join(directory, name))
        elif not suffix:
            found[offset, kind] = size
    if swaps:
        _finish_swaps(directory, found, swaps, min(cleaned, default=None))
    return found


def parse_name(name: str) -> tuple[int, str, str] | None:
    """names.parse_offset_name, limited to the kinds of files in a partition's folder."""
    parsed = names.parse_offset_name(name)
    kinds = (names.LOG, names.INDEX, names.TIME_INDEX, names.TRANSACTION_INDEX, names.SNAPSHOT)
    return parsed if parsed is not None and parsed[1] in kinds else None


def _finish_swaps(
    directory: str,
    found: dict[tuple[int, str], int],
    swaps: dict[tuple[int, str], int],
    min_cleaned: int | None,
) -> None:
    def path(offset: int, kind: str) -> str:
        return os.path.join(directory, names.offset_name(offset, kind))

    covered: list[tuple[int, int]] = []
    for (offset, kind), size in sorted(swaps.items()):
        if min_cleaned is not None and offset >= min_cleaned:
            unlink(path(offset, kind) + names.SWAP)
        elif kind == names.LOG:
            last = offset
            for header, _ in read_batches(path(offset, kind) + names.SWAP, 0, size):
                last = header.last_offset
            covered.append((offset, last))
    for first, last in covered:
        for offset, kind in [
            key for key in found if key[1] != names.SNAPSHOT and first <= key[0] <= last
        ]:
            unlink(path(offset, kind))
            del found[offset, kind]
    for (offset, kind), size in swaps.items():
        if min_cleaned is None or offset < min_cleaned:
            rename(path(offset, kind) + names.SWAP, path(offset, kind))
            found[offset, kind] = size
