"""What an output says of itself: numbered commits in its hidden folder `_archive`.

A commit is written once, as a whole, before its files become visible; from then on it holds. It
lists the files to rename out of the staging folder and those to remove, so `publish` can be
repeated after a crash until both are done. The newest commit says how far the archive is.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from typing import Final

from ..errors import JobError, StartRefused
from ..storage import Folder
from .layout import Positions, looks_typed, string_mark

STATE_FOLDER: Final = "_archive"
COMMITS: Final = f"{STATE_FOLDER}/commits"
STAGING: Final = f"{STATE_FOLDER}/staging"
KEPT_COMMITS: Final = 10
NO_BATCH: Final = -1
FORMAT: Final = 1

ATTEMPTS: Final = 20
WAIT_S: Final = 0.5
"""How often, and how long in between, `published_commit` looks."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that is written but not visible. staged, path: relative to the output."""

    staged: str
    path: str
    topic: str
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Staging:
    """Where and how a task writes. staged_in: folder relative to the output. rows_per_file: those
    of a file of target_file_bytes, which Spark counts; None if that is not known. origin: what is
    kept in each file's metadata (query, batch). decoder: of values, a `ValueDecoder` as text; empty
    for values that stay bytes. by_spark: Spark itself writes, see `spark_parquet`.
    """

    output: str
    staged_in: str
    layout: tuple[str, ...]
    generations: dict[str, int] = field(default_factory=dict)
    target_file_bytes: int = 128 * 1024 * 1024
    rows_per_file: int | None = None
    compression: str = "zstd"
    origin: dict[str, object] = field(default_factory=dict)
    decoder: str = ""
    by_spark: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """One step of an archive. positions: next offsets, as they are once the commit is published.

    checkpoint_id: of the checkpoint this output belongs to. query: number of the query below that
    checkpoint; batch_id: Spark's, NO_BATCH before its first. records, size_bytes: of the whole
    archive. topic_ids: text form, empty where the broker has none. generations: 2 and above for
    topics that were created again. removed: paths of files, or of a table conditions of SQL.
    """

    number: int
    checkpoint_id: str
    query: int
    batch_id: int
    layout: tuple[str, ...]
    positions: Positions
    topic_ids: dict[str, str] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    files: tuple[StagedFile, ...] = ()
    removed: tuple[str, ...] = ()
    records: int = 0
    size_bytes: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been archived, nor a position set by --resume-from."""
        return not self.records and self.batch_id == NO_BATCH and not self.positions

    def to_json(self) -> bytes:
        """The commit as a JSON document."""
        values: dict[str, object] = {
            "format": FORMAT,
            **{name: getattr(self, name) for name in _PLAIN},
            "files": [{name: getattr(file, name) for name in _FILE} for file in self.files],
        }
        return json.dumps(values, separators=(",", ":")).encode()


_PLAIN = (
    *("number", "checkpoint_id", "query", "batch_id", "layout", "positions", "topic_ids"),
    *("generations", "removed", "records", "size_bytes"),
)
_FILE = ("staged", "path", "topic", "records", "size_bytes")


def parse_commit(content: bytes, where: str) -> Commit:
    """A commit from its JSON. Raises JobError for anything else."""
    try:
        values = json.loads(content)
        if values["format"] != FORMAT:
            raise JobError(f"{where} was written by a newer version (format {values['format']})")
        plain = {name: values[name] for name in _PLAIN}
        plain["layout"] = tuple(plain["layout"])
        plain["removed"] = tuple(plain["removed"])
        plain["positions"] = integer_keys(plain["positions"])
        files = tuple(StagedFile(*(file[name] for name in _FILE)) for file in values["files"])
        return Commit(**plain, files=files)
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(f"{where} is damaged ({error!r}): bring it back from a copy") from error


def integer_keys(positions: dict[str, dict[str, int]]) -> Positions:
    """Positions as JSON has them: partitions to integers."""
    return {
        topic: {int(partition): offset for partition, offset in offsets.items()}
        for topic, offsets in positions.items()
    }


def newest_commit(output: Folder) -> Commit | None:
    """The newest commit of an output; None if it has none. Raises JobError if it is damaged."""
    names = [name for name in output.names(COMMITS) if name.endswith(".json")]
    if not names:
        return None
    name = f"{COMMITS}/{names[-1]}"
    content = output.read(name)
    return parse_commit(content or b"", f"{output}/{name}")


def published_commit(output: Folder) -> Commit | None:
    """The newest commit once its files are visible, for which a running archive needs a moment;
    None if the output has no commit. Raises JobError if they do not become visible, OSError.
    """
    for _ in range(ATTEMPTS):
        commit = newest_commit(output)
        if commit is None or not commit.files or not output.exists(staging_folder(commit.number)):
            return commit
        time.sleep(WAIT_S)
    raise JobError(
        f"{output}: files of its newest batch are not visible yet: start archive, which finishes "
        "what was cut off, or try again if it runs"
    )


def next_commit(
    previous: Commit,
    batch_id: int,
    ends: Positions,
    files: list[StagedFile],
    topic_ids: dict[str, str] | None = None,
) -> Commit:
    """The commit of a batch. ends: next offsets behind the batch; topics that are not in it keep
    their position. topic_ids: those that are known now.
    """
    positions = {topic: dict(offsets) for topic, offsets in previous.positions.items()}
    for topic, offsets in ends.items():
        positions.setdefault(topic, {}).update(offsets)
    return replace(
        previous,
        number=previous.number + 1,
        batch_id=batch_id,
        positions=positions,
        topic_ids={**previous.topic_ids, **(topic_ids or {})},
        files=tuple(files),
        removed=(),
        records=previous.records + sum(file.records for file in files),
        size_bytes=previous.size_bytes + sum(file.size_bytes for file in files),
    )


def not_shared(output: Folder) -> JobError:
    """The error of files that tasks wrote and the driver does not find."""
    return JobError(
        f"the executors wrote to a {output} that is not the driver's: on a cluster --output must "
        "be a place that all machines share"
    )


def add_commit(output: Folder, commit: Commit) -> None:
    """Make a commit hold. Raises StartRefused if another writer has one of that number."""
    name = f"{COMMITS}/{commit.number:020d}.json"
    if output.exists(name):
        raise StartRefused(
            f"another run writes to {output} (commit {commit.number} is there already): "
            "this one ends; nothing of its batch is visible"
        )
    output.write(name, commit.to_json())


def staging_folder(number: int) -> str:
    """Where the files of a commit are written; there until the commit is published."""
    return f"{STAGING}/{number:020d}"


def publish(output: Folder, commit: Commit) -> None:
    """Remove and rename what a commit lists; what is done already is left alone.

    A commit whose staging folder does not exist was published before. Raises JobError if a file is
    missing that should be in it.
    """
    for path in commit.removed:
        output.delete(path)
    if not commit.files or not output.exists(staging_folder(commit.number)):
        return
    if "topic" in commit.layout and any(looks_typed(file.topic) for file in commit.files):
        _mark_strings(output, commit.layout)
    for file in commit.files:
        try:
            output.move(file.staged, file.path)
        except FileNotFoundError:
            if not output.exists(file.path):
                raise JobError(
                    f"{output}/{file.staged}, a file of commit {commit.number}, is missing: "
                    "bring it back from a copy, or archive to another --output"
                ) from None


def clean_up(output: Folder, newest: Commit) -> None:
    """Remove the staging folders of commits up to the newest, and all but the newest KEPT_COMMITS.
    newest: is published. If this run was stopped and another has taken over, that one has staged
    files of later commits.
    """
    for name in output.names(STAGING):
        folder = f"{STAGING}/{name}"
        if folder <= staging_folder(newest.number):
            output.delete_folder(folder)
    for name in output.names(COMMITS)[:-KEPT_COMMITS]:
        output.delete(f"{COMMITS}/{name}")


def without_left_over(output: Folder, newest: Commit) -> Commit:
    """Remove what an ended run has staged for the commit after the newest; gives the commit that is
    the newest then. newest: is published.

    That run may only be stopped, just before it adds its commit. So a commit without files takes
    the number first. Raises StartRefused if the other run was faster.
    """
    if not output.exists(staging_folder(newest.number + 1)):
        return newest
    following = replace(newest, number=newest.number + 1, files=(), removed=())
    add_commit(output, following)
    clean_up(output, following)
    return following


def _mark_strings(output: Folder, layout: tuple[str, ...]) -> None:
    from .files import empty_file

    path = string_mark(layout)
    if not output.exists(path):
        output.write(path, empty_file(layout))
