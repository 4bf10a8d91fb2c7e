"""Commits of an output: whole, in order, published once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_jobs.archive.commits import (
    COMMITS,
    KEPT_COMMITS,
    NO_BATCH,
    STAGING,
    Commit,
    StagedFile,
    add_commit,
    clean_up,
    newest_commit,
    next_commit,
    publish,
    staging_folder,
    without_left_over,
)
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.storage import Folder, absolute

FIRST = Commit(1, "c", 1, NO_BATCH, ("topic", "date"), {"t": {0: 3}}, {"t": "id"})


@pytest.fixture
def output(tmp_path: Path) -> Folder:
    return Folder(absolute(str(tmp_path)))


def staged(output: Folder, commit: Commit, *names: str, topic: str = "t") -> list[StagedFile]:
    files = []
    for name in names:
        file = StagedFile(f"{staging_folder(commit.number + 1)}/{name}.tmp", name, topic, 10, 100)
        output.write(file.staged, name.encode())
        files.append(file)
    return files


def test_the_newest_commit_is_read(output: Folder) -> None:
    assert newest_commit(output) is None
    add_commit(output, FIRST)
    files = staged(output, FIRST, "a", "b")
    second = next_commit(FIRST, 4, {"t": {0: 9, 10: 1}, "u": {0: 5}}, files)
    add_commit(output, replace(second, generations={"t": 2}, removed=("x",)))
    read = newest_commit(output)
    assert read == replace(second, generations={"t": 2}, removed=("x",))
    assert second.positions == {"t": {0: 9, 10: 1}, "u": {0: 5}}
    assert (second.number, second.batch_id, second.records, second.size_bytes) == (2, 4, 20, 200)


def test_publishing_is_repeated_until_it_is_done(output: Folder) -> None:
    commit = next_commit(FIRST, 0, {}, staged(output, FIRST, "a", "x/b"))
    output.move(commit.files[0].staged, "a")  # cut off here
    publish(output, commit)
    publish(output, commit)
    assert output.files() == ["a", "x/b"]
    clean_up(output, commit)
    output.delete("a")  # by the user, later
    publish(output, commit)
    assert output.files() == ["x/b"]


def test_what_a_commit_removes(output: Folder) -> None:
    output.write("old", b"")
    publish(output, replace(FIRST, removed=("old", "older")))
    assert output.files() == []


def test_a_replay_replaces(output: Folder) -> None:
    output.write("a", b"cut off")
    publish(output, next_commit(FIRST, 0, {}, staged(output, FIRST, "a")))
    assert output.read("a") == b"a"


def test_a_staged_file_that_is_missing(output: Folder) -> None:
    commit = next_commit(FIRST, 0, {}, staged(output, FIRST, "a", "b"))
    output.delete(commit.files[1].staged)
    with pytest.raises(JobError, match=r"b\.tmp, a file of commit 2, is missing"):
        publish(output, commit)


def test_two_writers_do_not_commit_one_number(output: Folder) -> None:
    add_commit(output, FIRST)
    with pytest.raises(StartRefused, match="another run writes to"):
        add_commit(output, FIRST)


def test_old_commits_go(output: Folder) -> None:
    commit = FIRST
    for number in range(1, 16):
        commit = replace(FIRST, number=number)
        add_commit(output, commit)
    for number in (3, 15, 16):
        output.write(f"{staging_folder(number)}/file", b"")
    clean_up(output, commit)
    names = output.names(COMMITS)
    assert len(names) == KEPT_COMMITS and names[-1].endswith("15.json")
    left = [number for number in range(1, 20) if output.exists(staging_folder(number))]
    assert left == [16]  # of a run that has taken over, and writes the next batch


def test_what_an_ended_run_has_staged_goes(output: Folder) -> None:
    commit = next_commit(FIRST, 0, {"t": {0: 9}}, staged(output, FIRST, "a"))
    add_commit(output, commit)
    publish(output, commit)
    clean_up(output, commit)
    assert without_left_over(output, commit) == commit
    files = staged(output, commit, "b")
    behind = without_left_over(output, commit)
    assert behind == replace(commit, number=3, files=()) == newest_commit(output)
    assert output.names(STAGING) == []
    with pytest.raises(StartRefused, match="commit 3 is there already"):  # it was only stopped
        add_commit(output, next_commit(commit, 1, {}, files))
    staged(output, behind, "c")
    add_commit(output, next_commit(behind, 1, {}, []))  # by another run, just now
    with pytest.raises(StartRefused, match="commit 4 is there already"):
        without_left_over(output, behind)
    assert output.exists(staging_folder(4))


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"format": 9}'])
def test_a_damaged_commit(output: Folder, content: bytes) -> None:
    output.write(f"{COMMITS}/{1:020d}.json", content)
    with pytest.raises(JobError, match=r"is damaged|newer version"):
        newest_commit(output)


def test_topics_that_look_like_numbers_are_marked(output: Folder, tmp_path: Path) -> None:
    path = "topic=20240101/date=2026-05-01/p.parquet"
    commit = next_commit(FIRST, 0, {}, staged(output, FIRST, path, topic="20240101"))
    publish(output, commit)
    mark = "topic=~string/date=1970-01-01/no-records.parquet"
    assert output.files() == [path, mark]
    assert pq.read_table(tmp_path / mark).num_rows == 0
    other = next_commit(FIRST, 0, {}, staged(output, FIRST, "topic=t/p.parquet"))
    output.delete(mark)
    publish(output, other)
    assert not output.exists(mark)
