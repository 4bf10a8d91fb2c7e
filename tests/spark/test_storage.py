"""Folders through pyarrow: whole writes, renames, what readers do not see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.errors import JobError
from spark_jobs.storage import Folder, absolute, display, is_hidden, is_local


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(absolute(str(tmp_path / "a folder")))


@pytest.mark.parametrize(
    ("location", "local"),
    [("out", True), ("/out", True), ("./a:b", True), ("file:/o", True), ("s3a://b/o", False)],
)
def test_local_paths(location: str, local: bool) -> None:
    assert is_local(location) is local


def test_uris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("a b/") == f"file://{tmp_path}/a%20b"
    assert absolute(f"file://{tmp_path}/c") == f"file://{tmp_path}/c"
    assert display(absolute("a b")) == f"{tmp_path}/a b"
    assert absolute("s3a://bucket/x/") == display("s3a://bucket/x") == "s3a://bucket/x"


def test_spark_takes_the_name_of_a_local_folder_as_it_is() -> None:
    assert Folder(absolute("/data/a lake")).spark_uri == "file:///data/a lake"
    assert Folder("s3://bucket/lake?region=x").spark_uri == "s3://bucket/lake"


def test_files_come_whole(folder: Folder) -> None:
    assert folder.read("x/y") is None
    assert not folder.exists() and folder.names() == [] and folder.files() == []
    folder.write("x/y", b"1")
    folder.write("x/y", b"22")
    assert folder.read("x/y") == b"22"
    assert folder.names("x") == ["y"]
    assert folder.exists("x") and folder.exists("x/y") and not folder.exists("y")


def test_moving_replaces(folder: Folder) -> None:
    folder.write("a", b"new")
    folder.write("deep/b", b"old")
    folder.move("a", "deep/b")
    assert (folder.read("a"), folder.read("deep/b")) == (None, b"new")
    with pytest.raises(FileNotFoundError):
        folder.move("a", "c")


class Killed(BaseException):
    """The process ends here."""


class Hdfs:
    """Local files whose rename refuses an existing target, as HDFS does. before_change: called
    before each change of a name.
    """

    def __init__(self) -> None:
        from pyarrow.fs import LocalFileSystem

        self.files = LocalFileSystem()
        self.before_change: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.files, name)

    def delete_file(self, path: str) -> None:
        self.before_change()
        self.files.delete_file(path)

    def move(self, source: str, target: str) -> None:
        self.before_change()
        if Path(source).exists() and Path(target).exists():
            raise OSError(5, "HDFS rename failed")
        self.files.move(source, target)


@pytest.fixture
def hdfs(monkeypatch: pytest.MonkeyPatch) -> Hdfs:
    system, local = Hdfs(), Folder.open
    monkeypatch.setattr(Folder, "open", lambda folder: (system, local(folder)[1]))
    return system


def test_a_file_is_never_missing_where_renames_do_not_replace(folder: Folder, hdfs: Hdfs) -> None:
    """Readers look between any two changes; the writer is killed before any of them."""
    folder.write("x/y", b"0")
    for kills_at in range(100):
        old, new = b"%d" % kills_at, b"%d" % (kills_at + 1)
        left = kills_at

        def change(old: bytes = old, new: bytes = new) -> None:
            nonlocal left
            hdfs.before_change = lambda: None  # not those of the readers
            assert folder.read("x/y") in (old, new)
            if left == 0:
                raise Killed
            left -= 1
            hdfs.before_change = change

        hdfs.before_change = change
        try:
            folder.write("x/y", new)
        except Killed:
            folder.write("x/y", new)  # of the next process
        hdfs.before_change = lambda: None
        assert folder.read("x/y") == new
        if left:
            break
    assert 3 < kills_at < 99
    folder.delete("x/y")
    assert folder.read("x/y") is None


def test_a_file_that_was_deleted_stays_away(folder: Folder, hdfs: Hdfs) -> None:
    """Also where a writer was killed before it renamed the successor: the next one finds no file
    and leaves the successor.
    """
    folder.write("x/.y.new", b"1")
    assert folder.read("x/y") == b"1"
    folder.write("x/y", b"2")
    assert folder.read("x/y") == b"2"
    folder.delete("x/y")
    assert folder.read("x/y") is None


def test_deleting_what_is_missing_is_no_error(folder: Folder) -> None:
    folder.write("x/y", b"")
    for _ in range(2):
        folder.delete("x/y")
        folder.delete_folder("x")
    assert folder.names() == []


def test_visible_files(folder: Folder) -> None:
    for name in ("_archive/commits/1", ".hidden", "topic=_t/p.parquet", "p.parquet", "a/_b"):
        folder.write(name, b"")
    assert folder.files() == ["p.parquet", "topic=_t/p.parquet"]
    assert is_hidden("a/.b") and not is_hidden("_topic=a/b")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match=r"--output .*file/out cannot be written: "):
        Folder(absolute(str(tmp_path / "file/out"))).check_writable("--output")
    writable = Folder(absolute(str(tmp_path / "new")))
    writable.check_writable("--output")
    assert writable.names() == []


def test_an_unknown_file_system() -> None:
    with pytest.raises(JobError, match="pyarrow has no such file system"):
        Folder("ftp://host/x").read("y")
