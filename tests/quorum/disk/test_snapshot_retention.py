"""Which old snapshots a thread deletes, and how much it reads for that."""

from __future__ import annotations

import struct
from pathlib import Path
from unittest import mock

import pytest

from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.storage.files import read_file as real_read_file
from kbroker.model import StartupError
from kbroker.protocol.batches.batch_header import LENGTH_POSITION, iter_batches
from kbroker.quorum.disk import snapshot_retention, snapshots
from kbroker.quorum.disk.snapshot_retention import SnapshotRetention
from kbroker.quorum.disk.snapshots import (
    build_snapshot,
    read_last_contained_timestamp_ms,
    read_snapshot,
    write_snapshot,
)
from kbroker.quorum.raft.control import QuorumConfiguration
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.voters.voter_set import Voter, VoterEndpoint

NOW_MS = 1_800_000_000_000
VOTER = Voter(1, b"d" * 16, (VoterEndpoint("CONTROLLER", "localhost", 9093),))
OLDEST, MIDDLE, NEWEST = (SnapshotId(number, 1) for number in (1, 2, 3))


def write(folder: Path, snapshot_id: SnapshotId, timestamp_ms: int) -> Path:
    """A snapshot of some 100 KB."""
    path = folder / snapshot_id.file_name
    content = build_snapshot(
        QuorumConfiguration(1, (VOTER,)),
        [[bytes(1000)] * 100],
        epoch=1,
        last_contained_timestamp_ms=timestamp_ms,
        now_ms=NOW_MS,
    )
    write_snapshot(path, path.with_suffix(".part"), content)
    path.chmod(0o600)
    return path


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Of three snapshots, two minutes, one minute and no time old."""
    return [
        write(tmp_path, each, NOW_MS - age_ms)
        for each, age_ms in ((OLDEST, 120_000), (MIDDLE, 60_000), (NEWEST, 0))
    ]


def run(
    folder: Path, *, retention_bytes: int = -1, retention_ms: int = -1
) -> tuple[list[SnapshotId], list[str]]:
    """What is deleted, and the names that are left."""
    retention = SnapshotRetention(
        folder,
        [OLDEST, MIDDLE, NEWEST],
        log_bytes=1000,
        retention_bytes=retention_bytes,
        retention_ms=retention_ms,
        now_ms=NOW_MS,
    )
    retention.run()
    return retention.deleted, sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("retention_ms", "deleted"),
    [(-1, []), (120_000, []), (119_999, [OLDEST]), (60_000, [OLDEST]), (0, [OLDEST, MIDDLE])],
)
def test_by_age(
    tmp_path: Path, paths: list[Path], retention_ms: int, deleted: list[SnapshotId]
) -> None:
    kept = [path.name for path in paths[len(deleted) :]]
    assert run(tmp_path, retention_ms=retention_ms) == (deleted, kept)


@pytest.mark.parametrize(
    ("snapshots_within", "deleted"), [(3, []), (2, [OLDEST]), (1, [OLDEST, MIDDLE])]
)
def test_by_size(
    tmp_path: Path, paths: list[Path], snapshots_within: int, deleted: list[SnapshotId]
) -> None:
    limit = 1000 + snapshots_within * paths[0].stat().st_size
    assert run(tmp_path, retention_bytes=limit)[0] == deleted
    assert run(tmp_path, retention_bytes=0)[0][-1] == MIDDLE, "the newest is kept"


def test_only_the_first_batch_is_read(
    tmp_path: Path, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def read_file(path: Path, limit: int = -1) -> bytes | None:
        data = real_read_file(path, limit)
        counts.append(len(data or b""))
        return data

    monkeypatch.setattr(snapshots, "read_file", read_file)
    assert run(tmp_path, retention_ms=60_000)[0] == [OLDEST]
    assert sum(counts) < 2_000, "of 200 KB"


def test_a_snapshot_that_is_damaged_behind_its_header_has_its_age(
    tmp_path: Path, paths: list[Path]
) -> None:
    data = bytearray(paths[0].read_bytes())
    data[-1] ^= 1
    paths[0].write_bytes(data)
    assert run(tmp_path, retention_ms=120_000)[0] == []
    assert run(tmp_path, retention_ms=119_999)[0] == [OLDEST]


@pytest.mark.parametrize("damage", ["missing", "empty", "cut short", "flipped"])
def test_a_damaged_header_keeps_no_other_from_being_deleted(
    tmp_path: Path, paths: list[Path], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = bytearray(paths[0].read_bytes())
    data[100] ^= 1
    match damage:
        case "missing":
            paths[0].unlink()
        case "empty":
            paths[0].write_bytes(b"")
        case "cut short":
            paths[0].write_bytes(data[:100])
        case _:
            paths[0].write_bytes(data)
    assert run(tmp_path, retention_ms=3_600_000) == ([OLDEST], [each.name for each in paths[1:]])
    assert "treating it as older than the retention time" in caplog.text


def test_a_header_is_checked_as_a_whole_snapshot_is(tmp_path: Path) -> None:
    """Each byte of the first batch, changed."""
    path = write(tmp_path, OLDEST, 77)
    content = path.read_bytes()
    size_bytes = next(header.size_bytes for _, header in iter_batches(content))

    def outcome(whole: bool) -> int | str:
        try:
            if whole:
                return read_snapshot(path).last_contained_timestamp_ms
            return read_last_contained_timestamp_ms(path)
        except StartupError as error:
            return str(error)

    assert outcome(False) == 77
    outcomes = set()
    for position in range(size_bytes):
        data = bytearray(content)
        data[position] ^= 0x81
        path.write_bytes(data)
        found = outcome(False)
        outcomes.add(isinstance(found, str))
        assert isinstance(found, str) == isinstance(outcome(True), str), position
        assert isinstance(found, str) or found == 77, position
    assert outcomes == {False, True}, "offset and epoch are outside of the CRC"


@pytest.mark.parametrize("length", [(1 << 31) - 1, 1 << 20, 1, 0, -1, -(1 << 31)])
def test_nothing_is_read_for_a_length_that_is_not_there(
    tmp_path: Path, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, OLDEST, 77)
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, LENGTH_POSITION, length)
    path.write_bytes(data)
    limits: list[int] = []

    def read_file(path: Path, limit: int = -1) -> bytes | None:
        limits.append(limit)
        return real_read_file(path, limit)

    monkeypatch.setattr(snapshots, "read_file", read_file)
    with pytest.raises(StartupError, match="is damaged"):
        read_last_contained_timestamp_ms(path)
    assert limits == [61]


def test_what_was_deleted_before_a_fault_is_known(tmp_path: Path, paths: list[Path]) -> None:
    retention = SnapshotRetention(
        tmp_path,
        [OLDEST, MIDDLE, NEWEST],
        log_bytes=0,
        retention_bytes=0,
        retention_ms=-1,
        now_ms=NOW_MS,
    )
    real = snapshot_retention.unlink

    def unlink(path: Path) -> None:
        if path == paths[1]:
            raise LogDirectoryError(path, "delete", OSError(5, "Input/output error"))
        real(path)

    with mock.patch.object(snapshot_retention, "unlink", unlink), pytest.raises(LogDirectoryError):
        retention.run()
    assert retention.deleted == [OLDEST] and paths[1].exists()
