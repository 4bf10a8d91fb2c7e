"""The directory of a topic snapshot: what is linked, copied, refused, and removed on errors."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kbroker.log.storage import files
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.tools.snapshot_manifest import (
    MANIFEST,
    SnapshotError,
    SnapshotFile,
    SnapshotManifest,
    read_manifest,
)
from kbroker.log.tools.snapshot_writer import PartitionWriter, SnapshotWriter
from kbroker.protocol.batches.checksum import crc32c

NAME = "00000000000000000007.log"


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.write_bytes(b"a segment")
    return path


def test_a_link_shares_the_bytes(tmp_path: Path, segment: Path) -> None:
    writer = PartitionWriter(tmp_path)
    (tmp_path / "linked").mkdir()
    writer.folder = tmp_path / "linked"
    writer.link(segment, 7, 9, crc32c(b"a segment"))
    assert (tmp_path / "linked" / NAME).samefile(segment)
    assert (writer.linked_bytes, writer.copied_bytes) == (9, 0)
    assert writer.close(8) == (SnapshotFile(7, 9, crc32c(b"a segment")),)


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_where_no_link_is_possible_it_is_a_copy(
    tmp_path: Path, segment: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "link", refuse)
    (tmp_path / "copied").mkdir()
    writer = PartitionWriter(tmp_path / "copied")
    writer.link(segment, 7, 9, crc32c(b"a segment"))
    copy = tmp_path / "copied" / NAME
    assert copy.read_bytes() == b"a segment"
    assert not copy.samefile(segment)
    assert (writer.linked_bytes, writer.copied_bytes) == (0, 9)


def test_a_full_disk_is_no_reason_to_copy(
    tmp_path: Path, segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "link", refuse)
    with pytest.raises(LogDirectoryError, match="No space left"):
        PartitionWriter(tmp_path).link(segment, 7, 9, 0)


def test_batches_fill_one_segment_after_the_other(tmp_path: Path) -> None:
    writer = PartitionWriter(tmp_path, segment_bytes=10)
    for offset, batch in ((5, b"12345"), (6, b"678"), (9, b"a longer batch"), (10, b"x")):
        writer.append(batch, offset)
    found = writer.close(11)
    assert [(each.base_offset, each.size_bytes) for each in found] == [(5, 8), (9, 14), (10, 1)]
    assert (tmp_path / found[0].name).read_bytes() == b"12345678"
    assert found[0].crc32c == crc32c(b"12345678")


def test_a_partition_without_records_has_an_empty_segment(tmp_path: Path) -> None:
    assert PartitionWriter(tmp_path).close(42) == (SnapshotFile(42, 0, 0),)
    assert (tmp_path / "00000000000000000042.log").read_bytes() == b""


def test_the_manifest_makes_it_a_snapshot(tmp_path: Path) -> None:
    output = tmp_path / "new" / "snapshot"
    with SnapshotWriter(output) as writer:
        writer.partition("t-0").close(0)
        assert not (output / MANIFEST).exists()
        manifest = SnapshotManifest("c", "t", "", "online", 0, {}, ())
        writer.finish(manifest)
    assert (output / MANIFEST).read_bytes() == manifest.encode()
    with pytest.raises(SnapshotError, match="is a topic snapshot already"), SnapshotWriter(output):
        pass
    assert (output / MANIFEST).exists()


@pytest.mark.parametrize("is_there", [True, False])
def test_an_error_leaves_nothing_behind(tmp_path: Path, is_there: bool) -> None:
    output = tmp_path / "snapshot"
    if is_there:
        output.mkdir()
    with pytest.raises(ZeroDivisionError), SnapshotWriter(output) as writer:
        writer.partition("t-0").append(b"batch", 0)
        raise ZeroDivisionError
    assert output.exists() == is_there
    assert not is_there or list(output.iterdir()) == []


def test_what_is_in_the_way_is_left_alone(tmp_path: Path, segment: Path) -> None:
    with pytest.raises(SnapshotError, match="not empty"), SnapshotWriter(tmp_path):
        pass
    with pytest.raises(SnapshotError, match="is no directory"), SnapshotWriter(segment):
        pass
    assert segment.read_bytes() == b"a segment"
    with pytest.raises(SnapshotError):
        read_manifest(tmp_path)


def test_a_segment_that_shrinks_is_noticed(tmp_path: Path, segment: Path) -> None:
    (tmp_path / "copied").mkdir()
    with pytest.raises(SnapshotError, match="became shorter"):
        PartitionWriter(tmp_path / "copied").copy(segment, 7, 10)
