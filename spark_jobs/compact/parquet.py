"""An archive of files of Parquet: small ones into few, those with old records away.

Runs beside `archive`: a compaction has a lease of its own, leaves the files of the newest commit
alone, and finds what is added meanwhile (see `archive.steps`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ..archive.commits import Commit, newest_commit
from ..archive.files import dead_files
from ..archive.layout import file_name, parse_file
from ..archive.steps import (
    WORKSPACES,
    CannotExchange,
    Deletion,
    Exchange,
    Ledger,
    exchange,
    local_path,
    read_ledger,
    take_step,
    without_compaction,
)
from ..archive.tables import form_of
from ..errors import JobError, StartRefused
from ..storage import Folder
from .merging import columns_of, merge, newest_time_ms
from .options import CompactOptions
from .plan import ArchiveFile, Run, merged_range, runs


@dataclass
class Done:
    """What a run has done. files: merged ones; into: how many they became. not_merged: why no files
    were merged where that was not all that was asked for; empty otherwise.
    """

    files: int = 0
    into: int = 0
    deleted_files: int = 0
    deleted_records: int = 0
    not_merged: str = ""


def planned(options: CompactOptions, now_ms: int) -> Done:
    """What a run would do; nothing is changed. Raises JobError."""
    archive, done = Folder(options.output_uri), Done()
    with _merging(options, done):
        for files in _by_folder(archive, options, now_ms):
            found = runs(files, options.target_file_bytes, options.min_files)
            done.files += sum(map(len, found))
            done.into += len(found)
    return done


def compact_parquet(options: CompactOptions, now_ms: int) -> Done:
    """Compact an archive. Raises JobError, or StartRefused while another compaction runs and if one
    takes over the archive, which the lease allows when this process was stopped for long.
    """
    archive = Folder(options.output_uri)
    done = Done()
    _commit(archive)
    archive.check_writable("--output")
    with without_compaction(archive) as lease_id:
        commit = _commit(archive)
        if commit.removed and any(archive.exists(path) for path in commit.removed):
            raise StartRefused(f"a --resume-from of {archive} was cut off: start archive first")
        if not commit.layout and options.retention_ms is None:
            raise JobError(
                f"{archive} has --layout none: files are merged within folders, and it has none"
            )
        if options.retention_ms is not None:
            _delete_old(archive, lease_id, now_ms - options.retention_ms, done)
        with _merging(options, done):
            for files in _by_folder(archive, options, now_ms):
                found = runs(files, options.target_file_bytes, options.min_files)
                if found:
                    _check_exchange(archive)
                    _compact_folder(archive, lease_id, commit.layout, found, done)
    return done


@contextmanager
def _merging(options: CompactOptions, done: Done) -> Iterator[None]:
    """Files are merged in this block; with --retention, whose deletions are done then, only where
    that is possible. Raises CannotExchange.
    """
    try:
        yield
    except CannotExchange as error:
        if options.retention_ms is None:
            raise
        done.not_merged = f"no files are merged: {error}"


def _commit(archive: Folder) -> Commit:
    commit = newest_commit(archive)
    if commit is None:
        raise JobError(f"{archive} is no archive and no table: name the --output of `archive`")
    return commit


def _files(archive: Folder) -> tuple[list[str], set[str]]:
    """The archive's files, those with dead letters too, and those of them that stay: what the
    newest commit names may be made visible again by a start of `archive`.
    """
    found = [*archive.files(), *dead_files(archive)]
    paths = [path for path in found if parse_file(path) is not None]
    return paths, {file.path for file in _commit(archive).files}  # read behind the listing


def _by_folder(
    archive: Folder, options: CompactOptions, now_ms: int
) -> Iterator[list[ArchiveFile]]:
    """The files of each folder whose turn it is. Raises CannotExchange for one elsewhere."""
    if not _commit(archive).layout:
        return  # the output itself is the folder, which has more than the files in it
    local_path(archive, "")  # before all files of an object store are listed
    listed, newest = _files(archive)
    is_decoded = form_of(archive) != "none"
    folders: dict[str, list[str]] = {}
    for path in listed:
        folders.setdefault(path.rpartition("/")[0], []).append(path)
    for paths in folders.values():
        found = []
        touched_ms = 0.0
        for path in paths:
            content = parse_file(path)
            if content is None:
                continue
            place = local_path(archive, path)
            try:
                facts = os.stat(place)
                columns = columns_of(place) if is_decoded else ""
            except FileNotFoundError:  # a --resume-from has removed it
                continue
            touched_ms = max(touched_ms, facts.st_mtime * 1000)
            found.append(ArchiveFile(path, content, facts.st_size, path in newest, columns))
        if found and now_ms - touched_ms >= options.untouched_ms:
            yield found


def _compact_folder(
    archive: Folder, lease_id: str, layout: tuple[str, ...], found: list[Run], done: Done
) -> None:
    """Exchange a folder for one with the merged files, and links to those that stay."""
    folder = found[0][0].path.rpartition("/")[0]
    workspace = f"{WORKSPACES}/{uuid.uuid4().hex}"
    source, target = local_path(archive, folder), local_path(archive, workspace)
    merged = {file.name for run in found for file in run}
    if any(path.is_dir() for path in source.iterdir()):
        return
    target.mkdir(parents=True)
    known = []
    for path in sorted(source.iterdir()):
        known.append(path.name)
        if path.name not in merged:
            os.link(path, target / path.name)
    ledger = read_ledger(archive)
    names = [_merge(layout, run, source, target) for run in found]
    before = sum(file.size_bytes for run in found for file in run)
    after = sum((target / name).stat().st_size for name in names)
    step = Exchange(folder, workspace, tuple(known), names[0])
    following = replace(ledger, size_delta=ledger.size_delta + after - before, step=step)
    take_step(archive, following, lease_id)
    done.files += len(merged)
    done.into += len(found)


def _merge(layout: tuple[str, ...], run: Run, source: Path, target: Path) -> str:
    content = merged_range(run)
    described: dict[str, object] = {
        "topic": content.topic,
        "partition": content.partition,
        "first_offset": content.first_offset,
        "last_offset": content.last_offset,
        "generation": content.generation,
        "merged_files": len(run),
    }
    name = file_name(layout, content)
    merge([source / file.name for file in run], target / name, described)
    return name


def _delete_old(archive: Folder, lease_id: str, before_ms: int, done: Done) -> None:
    """Delete the files of which every record is older. Raises JobError for a damaged file."""
    if before_ms <= 0:  # no record has such a time, and Python no date behind year 1
        return
    listed, newest = _files(archive)
    day = datetime.fromtimestamp(before_ms / 1000, UTC).date()
    deleted: list[str] = []
    records = 0
    for path in listed:
        if path in newest:
            continue
        values = dict(part.partition("=")[::2] for part in path.split("/")[:-1])
        if "date" in values and values["date"] > f"{day + timedelta(days=1):%Y-%m-%d}":
            continue
        time_ms, count = newest_time_ms(archive, path)
        if time_ms is not None and time_ms < before_ms:
            deleted.append(path)
            records += count
    if not deleted:
        return
    ledger = read_ledger(archive)
    step = Deletion(tuple(deleted))
    following = Ledger(ledger.removed_records + records, ledger.size_delta, step)
    take_step(archive, following, lease_id)
    done.deleted_files, done.deleted_records = len(deleted), records


def _check_exchange(archive: Folder) -> None:
    """Raises CannotExchange where folders cannot be exchanged at once."""
    folders = [local_path(archive, f"{WORKSPACES}/{uuid.uuid4().hex}") for _ in range(2)]
    try:
        for folder in folders:
            folder.mkdir(parents=True)
        exchange(*folders)
    except OSError as error:
        raise CannotExchange(
            f"{archive}: its file system cannot exchange two folders at once "
            f"({error.strerror or error}), without which readers would miss records or see them "
            "twice; ext4, xfs, btrfs and tmpfs of Linux can. --retention works anywhere"
        ) from error
    finally:
        for folder in folders:
            if folder.is_dir():
                folder.rmdir()
