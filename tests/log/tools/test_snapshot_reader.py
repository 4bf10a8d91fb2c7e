"""A snapshot is checked whole, and only what a consumer would see is read from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.tools.snapshot_manifest import (
    PartitionSnapshot,
    SnapshotError,
    SnapshotManifest,
)
from kbroker.log.tools.snapshot_reader import PartitionContent, check_partition, visible_records
from kbroker.log.tools.snapshot_writer import SnapshotWriter
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.control_records import build_end_transaction_marker

PLAIN = -1


def batch(offset: int, producer_id: int = PLAIN, count: int = 1) -> bytes:
    """Values are the offsets. With a producer id it is of a transaction."""
    records = [(1000, None, str(offset + at).encode(), ()) for at in range(count)]
    if producer_id == PLAIN:
        return bytes(build_batch(records, base_offset=offset))
    return bytes(
        build_batch(
            records,
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=offset,
            is_transactional=True,
        )
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    return bytes(
        build_end_transaction_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=1000,
            base_offset=offset,
        )
    )


def snapshot(output: Path, stored: list[tuple[int, bytes]], end: int, start: int = 0) -> Manifested:
    with SnapshotWriter(output) as writer:
        folder = writer.partition("t-0")
        for offset, data in stored:
            folder.append(data, offset)
        entry = PartitionSnapshot(0, start, end, end, folder.close(end))
        manifest = SnapshotManifest("c", "t", "", "online", 0, {}, (entry,))
        writer.finish(manifest)
    return output, manifest, entry


Manifested = tuple[Path, SnapshotManifest, PartitionSnapshot]


def checked(made: Manifested) -> PartitionContent:
    *_, content = check_partition(*made)
    assert isinstance(content, PartitionContent)
    return content


def offsets(made: Manifested) -> list[int]:
    content = checked(made)
    found = [record for records in visible_records(*made, content) for record in records]
    assert [record.value for record in found] == [str(record.offset).encode() for record in found]
    return [record.offset for record in found]


def test_records_of_committed_transactions_only(tmp_path: Path) -> None:
    made = snapshot(
        tmp_path / "s",
        [
            (0, batch(0, 7)),
            (1, batch(1)),
            (2, batch(2, 8)),
            (3, marker(3, 7, commit=True)),
            (4, batch(4, 7)),  # another transaction of the same producer
            (5, marker(5, 8, commit=False)),
            (6, batch(6, 8)),
            (7, marker(7, 7, commit=False)),
            (8, marker(8, 8, commit=True)),
            (9, batch(9, 7)),  # without an end
            (10, batch(10)),
        ],
        11,
    )
    assert offsets(made) == [0, 1, 6, 10]
    assert checked(made).open_transactions == 1


def test_deleted_records_of_a_batch_are_left_out(tmp_path: Path) -> None:
    stored = [(0, batch(0, count=5)), (5, batch(5, count=2))]
    assert offsets(snapshot(tmp_path / "s", stored, 7, start=3)) == [3, 4, 5, 6]


def test_gaps_of_compaction_are_kept(tmp_path: Path) -> None:
    stored = [(3, batch(3)), (8, batch(8)), (20, batch(20))]
    assert offsets(snapshot(tmp_path / "s", stored, 25)) == [3, 8, 20]


def test_a_partition_without_records(tmp_path: Path) -> None:
    assert offsets(snapshot(tmp_path / "s", [], 42, start=42)) == []


@pytest.fixture
def good(tmp_path: Path) -> Manifested:
    return snapshot(tmp_path / "s", [(offset, batch(offset)) for offset in range(5)], 5)


def damage(good: Manifested, change: str) -> None:
    path = good[0] / "t-0" / good[2].files[0].name
    content = bytearray(path.read_bytes())
    match change:
        case "missing":
            path.unlink()
            return
        case "cut":
            del content[-1]
        case "flipped":
            content[40] ^= 1
        case "epoch":  # bytes that no CRC of a batch covers
            content[15] ^= 1
        case "longer":
            content += b"\0"
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "is missing"),
        ("cut", "its manifest says"),
        ("longer", "its manifest says"),
        ("flipped", "wrong CRC of the batch"),
        ("epoch", "has CRC-32C"),
    ],
)
def test_damage_is_one_line(good: Manifested, change: str, message: str) -> None:
    damage(good, change)
    with pytest.raises(SnapshotError, match=message) as caught:
        checked(good)
    assert "the snapshot is damaged" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_end_that_is_not_the_manifests(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="ends at offset 2, its manifest says 1"):
        checked(snapshot(tmp_path / "s", [(0, batch(0, count=2))], 1))
