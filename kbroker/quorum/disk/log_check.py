"""Checks the metadata log before recovery truncates it: is it damaged in a way that no crash
causes?

Committed records were synced. So invalid bytes are a torn write only if they are the last ones, no
valid batch follows them, and the last stop was not clean. For any other damage, truncating the log
there would lose committed metadata, and the partitions in it: the start fails instead. (Kafka
truncates.) A broker syncs nothing: its log is truncated at the first gap and fetched again.
Neighbour: `storage`, which opens the log.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from itertools import pairwise
from pathlib import Path
from typing import Final

from kbroker.log.storage import names
from kbroker.log.storage.files import exists, list_directory, modified_ms, read_file
from kbroker.model import StartupError
from kbroker.protocol.batches.batch_header import (
    BATCH_OVERHEAD,
    MAGIC_POSITION,
    BatchHeader,
    check_crc,
    read_batch_header,
)
from kbroker.protocol.errors import KafkaError

_MAGIC_BYTE: Final = b"\x02"
_MAX_GAP: Final = 1 << 31
"""The largest distance of a batch's offset: a larger one shows that the bytes are no batch."""


def check_metadata_log(directory: Path, recovery_point: int) -> None:
    """Check the segments from the one that contains recovery_point on. Raises StartupError for such
    damage.
    """
    found = {name for name, _, is_directory in list_directory(directory) if not is_directory}
    bases, closed_at = [], 0
    for name in sorted(found):
        parsed = names.parse_offset_name(name)
        if parsed is None or parsed[2]:
            continue
        if parsed[1] == names.SNAPSHOT:
            closed_at = parsed[
                0
            ]  # a producer snapshot is written at each roll, and at the log end at a clean stop
        log = names.offset_name(parsed[0], names.LOG)
        if parsed[1] == names.LOG:
            bases.append(parsed[0])
        elif parsed[1] == names.INDEX and not found & {log, log + names.DELETED}:
            raise _damaged(directory / log, f"it is missing, its {name} is there")
    first = max(bisect_right(bases, recovery_point) - 1, 0)
    for index, base in enumerate(bases[first:], first):
        is_last = index == len(bases) - 1
        following = None if is_last else bases[index + 1]
        end = _check_segment(directory, base, following)
        path = directory / names.offset_name(base, names.LOG)
        if is_last and end < closed_at and _was_closed(path):
            raise _damaged(path, f"it ends at offset {end} and was closed at {closed_at}")


def first_gap(directory: Path, recovery_point: int) -> int | None:
    """The offset at which the valid batches of a segment end before the next segment begins; a
    power loss can cause such a gap in a log that is not synced. None without a gap. Checks the
    segments from the one that contains recovery_point on.
    """
    parsed = (names.parse_offset_name(name) for name, _, _ in list_directory(directory))
    bases = sorted(each[0] for each in parsed if each and each[1:] == (names.LOG, ""))
    first = max(bisect_right(bases, recovery_point) - 1, 0)
    for base, following in pairwise(bases[first:]):
        data = read_file(directory / names.offset_name(base, names.LOG)) or b""
        _, end = _sound_part(data, base)
        if end < following:
            return end
    return None


def _check_segment(directory: Path, base: int, following: int | None) -> int:
    """Check a segment. Returns its end offset."""
    path = directory / names.offset_name(base, names.LOG)
    data = read_file(path) or b""
    position, end = _sound_part(data, base)
    if position < len(data) and (
        following is not None or _was_closed(path) or _goes_on(data, position + 1, end)
    ):
        raise _damaged(path, f"no sound batch at position {position}, where offset {end} is due")
    if following is not None and end < following:
        raise _damaged(path, f"it ends at offset {end}, the next segment begins at {following}")
    return end


def _sound_part(data: bytes, base: int) -> tuple[int, int]:
    """The position and the offset at which the valid batches of a segment end."""
    position, end = 0, base
    while position < len(data):
        header = _sound_batch(data, position, end)
        if header is None:
            break
        position += header.size_bytes
        end = header.next_offset
    return position, end


def _sound_batch(data: bytes, position: int, offset: int) -> BatchHeader | None:
    """The header of the whole batch at position, if its CRC is valid and its base offset is not
    below offset.
    """
    try:
        header = read_batch_header(data, position)
    except KafkaError:
        return None
    is_near = offset <= header.base_offset < offset + _MAX_GAP
    return header if is_near and check_crc(data, position, header) else None


def _goes_on(data: bytes, position: int, offset: int) -> bool:
    """Whether a valid batch begins anywhere from position on."""
    at = data.find(_MAGIC_BYTE, position + MAGIC_POSITION)
    while 0 <= at <= len(data) - (BATCH_OVERHEAD - MAGIC_POSITION):
        if _sound_batch(data, at - MAGIC_POSITION, offset) is not None:
            return True
        at = data.find(_MAGIC_BYTE, at + 1)
    return False


def _was_closed(path: Path) -> bool:
    """Whether the last stop was clean and the log is unchanged since: the marker is written after
    the last append.
    """
    marker = path.parent.parent / names.CLEAN_SHUTDOWN
    return exists(marker) and modified_ms(os.fspath(marker)) >= modified_ms(os.fspath(path))


def _damaged(path: Path, why: str) -> StartupError:
    return StartupError(
        f"metadata log {path} is damaged: {why}; restore this directory from a backup"
    )
