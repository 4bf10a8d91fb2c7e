"""Which damage of the metadata log is a torn tail, which recovery truncates, and which makes the
start fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.log.storage import names
from kbroker.model import StartupError
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.records import Record
from kbroker.quorum.disk.log_check import check_metadata_log, first_gap


def batch(base_offset: int, count: int = 1, size: int = 20) -> bytes:
    records = [Record(base_offset + i, 0, None, b"v" * size, []) for i in range(count)]
    return bytes(build_batch(records, base_offset=base_offset, partition_leader_epoch=1))


def flip(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


class World:
    """A metadata directory inside a log directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "__cluster_metadata-0"
        self.directory.mkdir()

    def write(self, base: int, *batches: bytes) -> None:
        path = self.directory / names.offset_name(base, names.LOG)
        path.write_bytes(b"".join(batches))
        os.utime(path, (1_000, 1_000))

    def touch(self, base: int, suffix: str) -> None:
        (self.directory / names.offset_name(base, suffix)).touch()

    def close_cleanly(self, at_s: int = 2_000) -> None:
        marker = self.root / names.CLEAN_SHUTDOWN
        marker.touch()
        os.utime(marker, (at_s, at_s))

    def check(self, recovery_point: int = 0) -> str | None:
        """Why the log is rejected; None if recovery may continue."""
        try:
            check_metadata_log(self.directory, recovery_point)
        except StartupError as error:
            assert "\n" not in str(error) and "restore this directory from a backup" in str(error)
            return str(error)
        return None


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_empty_directory_and_an_empty_log(world: World) -> None:
    assert world.check() is None
    world.write(0)
    assert world.check() is None


def test_a_whole_log(world: World) -> None:
    world.write(0, batch(0, 3), batch(3))
    world.write(4, batch(4))
    world.close_cleanly()
    assert world.check() is None


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(batch(3)[:-1], id="cut"),
        pytest.param(batch(3)[:5], id="cut inside the offset"),
        pytest.param(flip(batch(3), 70), id="wrong CRC"),
        pytest.param(bytes(500), id="zeros"),
        pytest.param(b"\x02" * 500, id="magic bytes everywhere"),
    ],
)
def test_a_torn_tail_is_left_to_recovery_unless_the_stop_was_clean(
    world: World, tail: bytes
) -> None:
    world.write(0, batch(0, 3), tail)
    assert world.check() is None
    world.close_cleanly(at_s=999)
    assert world.check() is None, "the log was written to after the marker"
    world.close_cleanly()
    found = world.check()
    assert found is not None
    assert f"no sound batch at position {len(batch(0, 3))}, where offset 3 is due" in found


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(flip(batch(3), 70), id="wrong CRC"),
        pytest.param(bytes(200), id="zeros"),
        pytest.param(flip(batch(3), 11), id="a length that is off by one"),
        pytest.param(b"\0" * 8 + b"\x7f" * 8 + batch(3)[16:], id="a length beyond the file"),
    ],
)
def test_damage_before_a_sound_batch_costs_committed_records(world: World, damaged: bytes) -> None:
    world.write(0, batch(0, 3), damaged, batch(4))
    found = world.check()
    assert found is not None and "where offset 3 is due" in found


def test_a_gap_between_offsets_is_no_damage(world: World) -> None:
    world.write(0, batch(0, 3), batch(5))
    world.close_cleanly()
    assert world.check() is None


def test_an_old_batch_behind_damage_does_not_count(world: World) -> None:
    """Offsets only increase: this is old data of a disk block that was reused for this file."""
    world.write(0, batch(0, 3), bytes(100), batch(1))
    assert world.check() is None


def test_a_batch_far_ahead_is_none(world: World) -> None:
    world.write(0, batch(0, 3), bytes(100), batch(3 + (1 << 31)))
    assert world.check() is None
    world.write(0, batch(0, 3), bytes(100), batch(2 + (1 << 31)))
    assert world.check() is not None


def test_damage_in_a_segment_that_has_a_successor(world: World) -> None:
    world.write(0, batch(0, 3), batch(3)[:-1])
    world.write(4, batch(4))
    found = world.check()
    assert found is not None and "00000000000000000000.log" in found


def test_segments_join(world: World) -> None:
    world.write(0, batch(0, 3))
    world.write(4, batch(4))
    found = world.check()
    assert found is not None
    assert "it ends at offset 3, the next segment begins at 4" in found


def test_segments_before_the_recovery_point_are_not_read(world: World) -> None:
    world.write(0, flip(batch(0, 3), 70))
    world.write(3, batch(3))
    for recovery_point, is_read in ((0, True), (2, True), (3, False), (4, False)):
        assert (world.check(recovery_point) is not None) is is_read, recovery_point


def test_a_log_that_is_missing_beside_its_index(world: World) -> None:
    world.write(0, batch(0, 3))
    world.touch(3, names.INDEX)
    found = world.check()
    assert found is not None and "it is missing" in found
    world.touch(3, names.LOG + names.DELETED)
    assert world.check() is None, "it was being deleted"


def test_an_end_before_the_one_at_the_clean_stop(world: World) -> None:
    world.write(0, batch(0, 3))
    world.touch(4, names.SNAPSHOT)
    assert world.check() is None, "a crash after a roll"
    world.close_cleanly()
    found = world.check()
    assert found is not None and "it ends at offset 3 and was closed at 4" in found
    world.write(0, batch(0, 4))
    assert world.check() is None


def test_other_files_do_not_matter(world: World) -> None:
    world.write(0, batch(0, 3))
    for name in ("quorum-state", "partition.metadata", "leader-epoch-checkpoint", "x.log"):
        (world.directory / name).write_bytes(b"?")
    (world.directory / names.offset_name(9, names.LOG)).mkdir()
    assert world.check() is None


def test_kafkas_own_logs_are_sound(kafka_directory: Callable[[str], Path]) -> None:
    for name in ("data-clean", "data-unclean"):
        check_metadata_log(kafka_directory(name) / "__cluster_metadata-0", 0)


def test_a_gap_between_two_segments(world: World) -> None:
    world.write(0, batch(0, 3), batch(3))
    world.write(4, batch(4))
    assert first_gap(world.directory, 0) is None
    world.write(7, batch(7))
    world.write(9, batch(9))
    assert first_gap(world.directory, 0) == 5
    assert first_gap(world.directory, 7) == 8
    assert first_gap(world.directory, 9) is None


@pytest.mark.parametrize("kept", [0, 10, len(batch(5)) - 1])
def test_a_torn_segment_before_another_one_is_a_gap(world: World, kept: int) -> None:
    world.write(0, batch(0, 5), batch(5)[:kept])
    world.write(6, batch(6))
    assert first_gap(world.directory, 0) == 5
