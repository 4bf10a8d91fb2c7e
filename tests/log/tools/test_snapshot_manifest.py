"""The manifest of a topic snapshot: written, read, and refused when anything in it changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.tools.snapshot_manifest import (
    MANIFEST,
    PartitionSnapshot,
    SnapshotError,
    SnapshotFile,
    SnapshotManifest,
    _own_crc,
    read_manifest,
)

WRITTEN = SnapshotManifest(
    cluster_id="kbroker",
    topic="orders",
    topic_id="AAAAAAAAAAAAAAAAAAAAAQ",
    taken="offline",
    created_ms=1_700_000_000_000,
    configs={"retention.ms": "5", "cleanup.policy": "compact"},
    partitions=(
        PartitionSnapshot(0, 3, 20, 19, (SnapshotFile(0, 70, 0xFF), SnapshotFile(10, 9, 1))),
        PartitionSnapshot(1, 0, 0, 0, (SnapshotFile(0, 0, 0),)),
    ),
)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(WRITTEN.encode())
    assert read_manifest(tmp_path) == WRITTEN
    assert WRITTEN.size_bytes == 79
    listed = json.loads(WRITTEN.encode())["partitions"][0]["files"][1]
    assert listed["name"] == "orders-0/00000000000000000010.log"
    assert listed["crc32c"] == "00000001"


def test_a_directory_without_one_is_no_snapshot(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r"no topic snapshot: it has no snapshot\.json"):
        read_manifest(tmp_path)
    with pytest.raises(SnapshotError, match="no such directory"):
        read_manifest(tmp_path / "missing")


def test_any_changed_byte_is_noticed(tmp_path: Path) -> None:
    data = WRITTEN.encode()
    path = tmp_path / MANIFEST
    for at in range(0, len(data) - 2, 7):
        changed = bytearray(data)
        changed[at] ^= 1
        path.write_bytes(changed)
        try:
            found = read_manifest(tmp_path)
        except SnapshotError as error:
            assert str(error).startswith(str(path))
            assert "\n" not in str(error)
        else:
            assert found == WRITTEN  # a blank between two fields


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_cut_one_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / MANIFEST).write_bytes(WRITTEN.encode()[:size])
    with pytest.raises(SnapshotError, match=r"snapshot\.json"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topic": "../../etc"}, "no name of a topic"),
        ({"topic": ".."}, "no name of a topic"),
        ({"version": 2}, "version 2 of the format, understood is 1"),
        ({"format": "other"}, "not the manifest of a topic snapshot"),
        ({"partitions": []}, "not those from 0 on"),
        ({"partitions": [{}]}, "'partition' is missing"),
        ({"configs": 3}, "no attribute"),
    ],
)
def test_a_foreign_one_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """Also with a checksum that is right: another program may write the file."""
    fields = json.loads(WRITTEN.encode()) | change
    fields["crc32c"] = f"{_own_crc(fields):08x}"
    (tmp_path / MANIFEST).write_text(json.dumps(fields))
    with pytest.raises(SnapshotError, match=message):
        read_manifest(tmp_path)
