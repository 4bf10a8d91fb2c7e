"""The quorum-state file, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.model import ZERO_UUID, StartupError
from kbroker.quorum.disk.quorum_state_file import read_state, write_state
from kbroker.quorum.raft.election_state import ElectionState

DYNAMIC = (
    b'{"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA",'
    b'"data_version":1}'
)
STATIC = (
    b'{"clusterId":"","leaderId":1,"leaderEpoch":1,"votedId":-1,"appliedOffset":0,'
    b'"currentVoters":[{"voterId":1}],"data_version":0}'
)


def test_dynamic(tmp_path: Path) -> None:
    state = ElectionState(epoch=2, leader_id=1)
    write_state(tmp_path, state, kraft_version=1, voter_ids=(1,))
    assert (tmp_path / "quorum-state").read_bytes() == DYNAMIC
    assert read_state(tmp_path) == state
    assert [path.name for path in tmp_path.iterdir()] == ["quorum-state"]


def test_static(tmp_path: Path) -> None:
    write_state(tmp_path, ElectionState(epoch=1, leader_id=1), kraft_version=0, voter_ids=(1,))
    assert (tmp_path / "quorum-state").read_bytes() == STATIC
    assert read_state(tmp_path) == ElectionState(1, 1, -1, ZERO_UUID)


def test_a_vote(tmp_path: Path) -> None:
    state = ElectionState(epoch=7, voted_id=3, voted_directory_id=b"v" * 16)
    write_state(tmp_path, state, kraft_version=1, voter_ids=(1, 3))
    assert read_state(tmp_path) == state


def test_none(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        DYNAMIC[:-5],
        DYNAMIC.replace(b'"data_version":1', b'"data_version":9'),
        DYNAMIC.replace(b'"leaderEpoch":2', b'"leaderEpoch":-2'),
        DYNAMIC.replace(b'"leaderEpoch":2', b'"leaderEpoch":"x"'),
        DYNAMIC.replace(b'"leaderEpoch":2,', b""),
        DYNAMIC.replace(b"AAAAAAAAAAAAAAAAAAAAAA", b"AAAA"),
    ],
)
def test_corrupt(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "quorum-state").write_bytes(data)
    with pytest.raises(StartupError, match="quorum-state is corrupt") as caught:
        read_state(tmp_path)
    assert "\n" not in str(caught.value)
