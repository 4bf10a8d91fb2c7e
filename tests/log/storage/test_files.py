from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kbroker.log.storage import files
from kbroker.log.storage.files import (
    ZEROS_CHUNK_BYTES,
    FileSlice,
    LogDirectoryError,
    LogFile,
    atomic_write,
    create_file,
    list_directory,
    read_file,
    remove_tree,
    resize_file,
    sync_directory,
    unlink,
    write_range,
    written_bytes,
)


@pytest.mark.parametrize("size", [0, 1, 3 * ZEROS_CHUNK_BYTES + 1])
@pytest.mark.parametrize("content", [b"", b"x", b"\0x", b"x\0\0", b"x" * 5000])
@pytest.mark.parametrize("is_sparse", [True, False])
def test_where_the_zeros_of_a_file_begin(
    tmp_path: Path, size: int, content: bytes, is_sparse: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content + (b"" if is_sparse else bytes(size)))
    os.truncate(path, len(content) + size)
    assert written_bytes(path) == len(content.rstrip(b"\0"))


def test_a_file_that_is_not_there_has_no_bytes(tmp_path: Path) -> None:
    assert written_bytes(tmp_path / "nothing") == 0


def test_a_slice_reads_its_own_bytes_after_deletion_and_reuse_of_the_name(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    file = LogFile(path, create=True)
    file.write_at(b"0123456789", 0)
    part = FileSlice(file, 2, 5)
    del file
    unlink(path)
    Path(path).write_bytes(b"other bytes")
    assert part.read() == b"23456"
    assert part.read(3) == b"56"
    assert part.read(1, 2) == b"34"
    assert part.read(5) == b""
    assert (len(part), part.size) == (5, 5)


def test_the_descriptor_closes_with_the_last_reference(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "log"), create=True)
    part = FileSlice(file, 0, 0)
    fd = part.fileno()
    del file
    os.fstat(fd)
    del part
    with pytest.raises(OSError):
        os.fstat(fd)


def test_cached_bytes_are_read_without_waiting_or_not_at_all(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "log"), create=True)
    file.write_at(b"abc", 0)
    assert FileSlice(file, 0, 3).read_cached() in (b"abc", None)
    assert FileSlice(file, 0, 0).read_cached() == b""


def test_a_short_read_goes_on_until_the_end_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LogFile(str(tmp_path / "log"), create=True)
    file.write_at(bytes(range(100)), 0)
    real = os.pread
    monkeypatch.setattr(
        files.os, "pread", lambda fd, count, position: real(fd, min(count, 7), position)
    )
    assert file.read_at(10, 50) == bytes(range(10, 60))
    assert file.read_at(90, 50) == bytes(range(90, 100))


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "nothing"
    with pytest.raises(LogDirectoryError) as caught:
        LogFile(str(path))
    assert caught.value.errno == errno.ENOENT
    assert str(caught.value) == f"cannot open {path}: No such file or directory"
    assert isinstance(caught.value, OSError)
    assert read_file(path) is None
    unlink(path)


def test_atomic_write_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    atomic_write(path, b"one")
    atomic_write(path, b"two", sync=False)
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_failed_replacement_keeps_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    atomic_write(path, b"one")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "write", full)
    with pytest.raises(LogDirectoryError, match=r"cannot write .*checkpoint: No space left"):
        atomic_write(path, b"two")
    assert path.read_bytes() == b"one"


def test_write_range_leaves_zeros_behind_the_data(tmp_path: Path) -> None:
    path = str(tmp_path / "index")
    create_file(path, 4)
    write_range(path, b"abcdef", 0)
    write_range(path, b"XY", 2, size=8)
    assert read_file(path) == b"abXY\0\0\0\0"
    write_range(path, b"Z", 4, size=5)
    assert read_file(path) == b"abXYZ"
    resize_file(path, 2)
    assert read_file(path) == b"ab"
    assert read_file(path, 1) == b"a"


def test_a_folder_is_listed_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "topic-0"
    (folder / "inner").mkdir(parents=True)
    (folder / "b").write_bytes(b"xx")
    (folder / "inner" / "a").write_bytes(b"")
    assert list_directory(folder) == [("b", 2, False), ("inner", 0, True)]
    sync_directory(folder)
    remove_tree(folder)
    remove_tree(folder)
    assert not folder.exists()


@pytest.mark.skipif(not hasattr(os, "O_NOATIME"), reason="Linux only")
def test_reading_a_log_writes_nothing(tmp_path: Path) -> None:
    """Updating the access time would be a write, after each append."""
    path = tmp_path / "a.log"
    file = LogFile(str(path), create=True)
    os.utime(path, ns=(1, 2))
    assert file.read_at(0, 10) == b""
    file.write_at(b"abc", 0)
    assert file.read_at(0, 10) == b"abc"
    assert read_file(path) == b"abc"
    assert path.stat().st_atime_ns == 1


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_file_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_readable: bool
) -> None:
    """Only a file's owner may use O_NOATIME."""
    path = tmp_path / "a.log"
    path.write_bytes(b"abc")
    real = os.open

    def of_another(name: str, flags: int, *mode: int) -> int:
        if flags & getattr(os, "O_NOATIME", 0) or not is_readable:
            raise PermissionError(errno.EPERM, "not the owner")
        return real(name, flags, *mode)

    monkeypatch.setattr(os, "open", of_another)
    if is_readable:
        assert LogFile(str(path)).read_at(0, 10) == read_file(path) == b"abc"
    else:
        with pytest.raises(LogDirectoryError):
            LogFile(str(path))
        with pytest.raises(LogDirectoryError):
            read_file(path)
