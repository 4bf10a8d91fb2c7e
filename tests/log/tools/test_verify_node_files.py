"""Small files of a node: each mistake in them is one finding that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbroker.log.tools.findings import Finding, Problem, Progress
from kbroker.log.tools.verify_node_files import verify_metadata_snapshot, verify_node_files
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.control_records import ControlType

META = "version=1\nnode.id=1\ncluster.id=c\ndirectory.id=AAAAAAAAAAAAAAAAAAAAZA\n"
VOTE = {"leaderId": 1, "leaderEpoch": 2, "votedId": -1, "data_version": 0}
NOW_MS = 1_700_000_000_000


def findings(folder: Path, name: str, content: str | bytes) -> list[Finding]:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = list(verify_node_files(folder, [name]))
    assert all(item.path == path for item in found)
    return found


def problems(found: list[Finding]) -> list[str]:
    return [item.what for item in found if isinstance(item, Problem)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(META, None, id="sound"),
        pytest.param(META.replace("version=1", "version=2"), "expected 1", id="version"),
        pytest.param(META.replace("node.id=1", "node.id=x"), "'x'", id="node.id"),
        pytest.param(META.replace("cluster.id=c", "cluster.id="), "empty", id="cluster.id"),
        pytest.param(META.replace("AAAA", "*"), "", id="directory.id"),
        pytest.param(META.replace("node.id=1\n", ""), "'node.id' is missing", id="without"),
        pytest.param("", "'version' is missing", id="empty"),
        pytest.param(b"\xff\xfe", "utf-8", id="no text"),
    ],
)
def test_meta_properties(tmp_path: Path, content: str | bytes, expected: str | None) -> None:
    found = problems(findings(tmp_path, "meta.properties", content))
    assert len(found) == (expected is not None)
    assert all((expected or "") in what for what in found)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(VOTE, None, id="version 0"),
        pytest.param(
            VOTE | {"data_version": 1, "votedDirectoryId": "AAAAAAAAAAAAAAAAAAAAZA"},
            None,
            id="version 1",
        ),
        pytest.param(VOTE | {"data_version": 1}, "'votedDirectoryId' is missing", id="id missing"),
        pytest.param(
            {key: value for key, value in VOTE.items() if key != "leaderEpoch"},
            "'leaderEpoch' is missing",
            id="without",
        ),
        pytest.param(VOTE | {"leaderId": None}, "int", id="null"),
        pytest.param([1], "indices", id="a list"),
    ],
)
def test_quorum_state(tmp_path: Path, values: object, expected: str | None) -> None:
    found = problems(findings(tmp_path, "quorum-state", json.dumps(values)))
    assert len(found) == (expected is not None)
    assert all((expected or "") in what for what in found)


@pytest.mark.parametrize(
    ("content", "count"),
    [("", 0), ('{"version": 0, "brokerEpoch": 5}', 0), ("{", 1), ("[]", 1)],
)
def test_the_marker_of_a_clean_stop(tmp_path: Path, content: str, count: int) -> None:
    assert len(problems(findings(tmp_path, ".kafka_cleanshutdown", content))) == count


def test_a_file_that_is_not_listed_is_not_missed(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").touch()
    assert list(verify_node_files(tmp_path, [])) == []


# -- snapshots of the metadata --------------------------------------------------------------------


def control(kind: ControlType, offset: int) -> bytes:
    key = b"\x00\x00" + kind.to_bytes(2, "big")
    return bytes(build_batch([(NOW_MS, key, b"\x00\x00", [])], base_offset=offset, is_control=True))


HEAD = control(ControlType.SNAPSHOT_HEADER, 0)
DATA = bytes(build_batch([(NOW_MS, None, b"v", [])], base_offset=1))
FOOT = control(ControlType.SNAPSHOT_FOOTER, 2)
SNAPSHOT = "00000000000000000007-0000000001.checkpoint"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        pytest.param(SNAPSHOT, HEAD + DATA + FOOT, [], id="sound"),
        pytest.param(SNAPSHOT, DATA + FOOT, ["not begin"], id="no header"),
        pytest.param(SNAPSHOT, HEAD + DATA, ["not end"], id="no footer"),
        pytest.param(SNAPSHOT, DATA, ["not begin", "not end"], id="neither"),
        pytest.param(SNAPSHOT, b"", ["not begin", "not end"], id="empty"),
        pytest.param("bootstrap.checkpoint", DATA, [], id="Kafka's bootstrap has neither"),
        pytest.param("bootstrap.checkpoint", HEAD + DATA, ["not end"], id="a bootstrap cut"),
    ],
)
def test_a_snapshot_goes_from_its_header_to_its_footer(
    tmp_path: Path, name: str, content: bytes, expected: list[str]
) -> None:
    found = findings(tmp_path, name, content)
    assert len(problems(found)) == len(expected)
    for what, part in zip(problems(found), expected, strict=True):
        assert part in what
    assert found[-1] == Progress(tmp_path / name, len(content))


def test_damage_of_a_snapshot_is_named_with_its_position(tmp_path: Path) -> None:
    path = tmp_path / SNAPSHOT
    content = bytearray(HEAD + DATA + FOOT)
    content[len(HEAD) + 62] ^= 1
    assert [position for position, _ in iter_batches(content)][1] == len(HEAD)
    path.write_bytes(content)
    (problem,) = verify_metadata_snapshot(path)
    assert isinstance(problem, Problem) and problem.what == f"position {len(HEAD)}: wrong CRC"
    path.write_bytes(content[:-1])
    found = list(verify_metadata_snapshot(path))
    assert any(isinstance(item, Problem) for item in found)
    assert all(str(path) not in item.what for item in found if isinstance(item, Problem))
    missing = list(verify_metadata_snapshot(tmp_path / "missing.checkpoint"))
    assert len(missing) == 1 and isinstance(missing[0], Problem)
