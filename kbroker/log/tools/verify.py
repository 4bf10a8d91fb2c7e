"""`kbroker dump-log --verify`: checks all files in a data folder and reports the invalid ones.

Reads only. The logs are the source of truth: batches are checked by themselves (CRC, order, segment
bounds), then all derived files (indexes, aborted transactions, producer snapshots, leader epochs,
checkpoints) are compared with a replay of the logs. Folders marked `-delete` and temporary files
(`.deleted`, `.cleaned`, `.swap`, `.tmp`) are skipped. Repairing damaged files is the task of
recovery.

A folder without a clean-shutdown marker is in use, or its broker was killed. There the state that a
start would recover is no problem: leader epochs that are not in their checkpoint yet, index entries
for batches after the checked ones, files that were deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import (
    CheckpointError,
    read_offsets,
)
from kbroker.log.storage.files import LogDirectoryError, exists, list_directory, written_bytes
from kbroker.log.tools.findings import Finding, Problem
from kbroker.log.tools.verify_node_files import (
    CHECKPOINT,
    IS_A_FOLDER,
    META_PROPERTIES,
    verify_node_files,
    without_path,
)
from kbroker.log.tools.verify_partition import PartitionCheck
from kbroker.model import TopicPartition

_OFFSET_CHECKPOINTS: Final = (
    names.RECOVERY_POINTS,
    names.LOG_START_OFFSETS,
    names.HIGH_WATERMARKS,
    names.CLEANER_OFFSETS,
    names.DAMAGED_LOGS,
)


def data_bytes(folder: Path) -> int:
    """Approximate size of the batches that `verify_folder` will check, for a progress bar."""
    total = 0
    for name, _, is_directory in list_directory(folder):
        if is_directory:
            with suppress(LogDirectoryError):  # deleted meanwhile
                total += data_bytes(folder / name)
        elif name.endswith((names.LOG, CHECKPOINT)):
            total += written_bytes(folder / name)
    return total


def verify_folder(folder: Path, *, records: bool = False) -> Iterator[Finding]:
    """Check a log directory with all its partitions, or one partition's folder.

    records: also decode every record. Raises LogDirectoryError if the folder cannot be listed.
    """
    entries = list_directory(folder)
    is_partition = any(names.parse_offset_name(name) for name, _, _ in entries)
    if is_partition:
        beside = _offsets_or_none(folder.parent / names.CLEANER_OFFSETS)
        parsed = names.parse_directory_name(folder.name)
        topic_partition = parsed[0] if parsed else TopicPartition(folder.name, 0)
        synced = _offsets_or_none(folder.parent / names.RECOVERY_POINTS)
        yield from PartitionCheck(
            folder,
            log_start_offset=0,
            records=records,
            was_cleaned=topic_partition in beside,
            synced_offset=_synced_offset(folder.parent, synced, topic_partition),
        ).run()
        return
    yield from verify_node_files(folder, [name for name, _, is_dir in entries if not is_dir])
    for name, _, is_directory in entries:
        if is_directory and name in (META_PROPERTIES, names.CLEAN_SHUTDOWN):
            yield Problem(folder / name, IS_A_FOLDER)
    checkpoints: dict[str, Mapping[TopicPartition, int]] = {}
    for name in _OFFSET_CHECKPOINTS:
        try:
            checkpoints[name] = read_offsets(folder / name)
        except CheckpointError as error:
            yield Problem(folder / name, without_path(error, folder / name))
        except LogDirectoryError as error:
            yield Problem(folder / name, str(error))
    starts = checkpoints.get(names.LOG_START_OFFSETS, {})
    for name, _, is_directory in entries:
        parsed = names.parse_directory_name(name) if is_directory else None
        if parsed is None or parsed[1] == names.DELETE_SUFFIX:
            continue
        topic_partition, suffix = parsed
        check = PartitionCheck(
            folder / name,
            log_start_offset=0 if suffix else starts.get(topic_partition, 0),
            records=records,
            was_cleaned=topic_partition in checkpoints.get(names.CLEANER_OFFSETS, {}),
            synced_offset=_synced_offset(
                folder, checkpoints.get(names.RECOVERY_POINTS, {}), topic_partition
            ),
        )
        yield from check.run()
        if not suffix:
            yield from _verify_offsets(folder, topic_partition, check, checkpoints)


def _synced_offset(
    data_folder: Path, recovery_points: Mapping[TopicPartition, int], place: TopicPartition
) -> int | None:
    """The offset up to which the files of a partition must be consistent; None for the whole
    log.
    """
    if exists(data_folder / names.CLEAN_SHUTDOWN):
        return None
    return recovery_points.get(place, 0)


def _offsets_or_none(path: Path) -> Mapping[TopicPartition, int]:
    try:
        return read_offsets(path)
    except (CheckpointError, LogDirectoryError):
        return {}


def _verify_offsets(
    folder: Path,
    topic_partition: TopicPartition,
    check: PartitionCheck,
    checkpoints: Mapping[str, Mapping[TopicPartition, int]],
) -> Iterator[Problem]:
    """Compare the broker's checkpoints with the end of one log."""
    for name, offsets in checkpoints.items():
        offset = offsets.get(topic_partition, 0)
        if check.has_segments and not 0 <= offset <= check.log_end_offset:
            yield Problem(
                folder / name,
                f"{topic_partition} {offset}: the log ends at {check.log_end_offset}",
            )


# -- the node's files -----------------------------------------------------------------------------


# -- a partition ----------------------------------------------------------------------------------
