"""Snapshot files: Kafka's, ours, and damaged ones."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.model import StartupError, uuid_to_string
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.quorum.disk.snapshots import (
    Snapshot,
    build_snapshot,
    list_snapshots,
    read_snapshot,
    remove_parts,
    write_snapshot,
)
from kbroker.quorum.raft.control import QuorumConfiguration
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.voters.voter_set import Voter, VoterEndpoint

VOTER = Voter(1, b"d" * 16, (VoterEndpoint("CONTROLLER", "localhost", 9093),))
CONFIGURATION = QuorumConfiguration(1, (VOTER,))


def write(path: Path, *chunks: list[bytes]) -> bytes:
    content = build_snapshot(
        CONFIGURATION, chunks, epoch=3, last_contained_timestamp_ms=77, now_ms=99
    )
    write_snapshot(path, path.with_suffix(".checkpoint.part"), content)
    return path.read_bytes()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / SnapshotId(100, 3).file_name
    data = write(path, [b"a", b"b"], [], [b"c"])
    assert path.name == "00000000000000000100-0000000003.checkpoint"
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert read_snapshot(path) == Snapshot(CONFIGURATION, 77, [b"a", b"b", b"c"])
    headers = [header for _, header in iter_batches(data)]
    assert [(h.base_offset, h.record_count, h.is_control) for h in headers] == [
        (0, 3, True),
        (3, 2, False),
        (5, 1, False),
        (6, 1, True),
    ]
    assert {h.partition_leader_epoch for h in headers} == {3}


def test_kafkas_first_snapshot_is_rebuilt_byte_for_byte(
    kafka_directory: Callable[[str], Path],
) -> None:
    folder = kafka_directory("data-clean") / "__cluster_metadata-0"
    path = folder / SnapshotId(0, 0).file_name
    golden = path.read_bytes()
    snapshot = read_snapshot(path)
    (voter,) = snapshot.configuration.voters
    assert uuid_to_string(voter.directory_id) == "imeMtvJjT-mRm2meW9xqpA"
    assert voter.endpoints == (VoterEndpoint("CONTROLLER", "localhost", 39093),)
    times = [header.base_timestamp for _, header in iter_batches(golden)]
    rebuilt = [
        b"".join(
            build_snapshot(
                snapshot.configuration,
                (),
                epoch=0,
                last_contained_timestamp_ms=snapshot.last_contained_timestamp_ms,
                now_ms=now_ms,
            )
        )
        for now_ms in times
    ]
    head = next(header.size_bytes for _, header in iter_batches(golden))
    assert rebuilt[0][:head] == golden[:head]
    assert rebuilt[1][head:] == golden[head:]


def test_listing_and_left_overs(tmp_path: Path) -> None:
    for name in (
        "00000000000000000010-0000000002.checkpoint",
        "00000000000000000009-0000000001.checkpoint",
        "00000000000000000011-0000000002-123.checkpoint.part",
        "00000000000000000000.log",
        "x.checkpoint",
    ):
        (tmp_path / name).touch()
    assert list_snapshots(tmp_path) == [SnapshotId(9, 1), SnapshotId(10, 2)]
    assert remove_parts(tmp_path) == ["00000000000000000011-0000000002-123.checkpoint.part"]


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="is missing"):
        read_snapshot(tmp_path / "none")


@pytest.mark.parametrize("kept", [0, 10, 61, 200, -1])
def test_cut_short(tmp_path: Path, kept: int) -> None:
    path = tmp_path / SnapshotId(1, 1).file_name
    data = write(path, [b"a" * 100])
    path.chmod(0o600)
    path.write_bytes(data[:kept])
    with pytest.raises(StartupError, match="is damaged"):
        read_snapshot(path)


def test_a_flipped_bit(tmp_path: Path) -> None:
    path = tmp_path / SnapshotId(1, 1).file_name
    data = bytearray(write(path, [b"a" * 100]))
    data[250] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(StartupError, match="wrong CRC"):
        read_snapshot(path)
