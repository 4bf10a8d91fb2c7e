from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from kbroker.log.manager import LogManager
from kbroker.log.storage import files, names
from kbroker.log.storage.checkpoint import read_offsets
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.validator import validate_replicated
from kbroker.model import StartupError, TopicPartition, random_uuid
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader
from tests.own_threads import own_threads

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=1000, segment_index_bytes=4096)
TOPIC_ID = random_uuid(Random(1))
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

Start = Callable[..., LogManager]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """start(): a loaded manager of two log directories, d1 and d2."""

    def start_manager(**options: object) -> LogManager:
        directories = f"{tmp_path / 'd1'},{tmp_path / 'd2'}"
        config = BrokerConfig.from_properties({"log.dirs": directories, "node.id": "1"})
        manager = LogManager(config, now_ms=lambda: NOW_MS, random=Random(1), threads=own_threads)
        manager.lock()
        manager.load(lambda topic: CONFIG, **options)  # type: ignore[arg-type]  # keywords of load
        return manager

    return start_manager


def batch_at(base_offset: int) -> bytearray:
    return build_batch([(NOW_MS, b"key", bytes(20), [])], base_offset=base_offset)


def fill(manager: LogManager, partition: TopicPartition, count: int = 20) -> None:
    log = manager.get_or_create(partition, TOPIC_ID, CONFIG)
    for _ in range(count):
        batch = build_batch([(NOW_MS, b"key", bytes(20), [])])
        append_as_leader(log, batch, leader_epoch=0, now_ms=NOW_MS)


def test_logs_are_spread_over_directories_and_found_again(start: Start, tmp_path: Path) -> None:
    manager = start()
    assert not manager.was_clean and manager.previous_broker_epoch == -1
    for partition in (A0, A1, B0):
        fill(manager, partition)
    assert sorted(path.name for path in (tmp_path / "d1").glob("*-[0-9]")) == ["a-0", "b-0"]
    assert sorted(path.name for path in (tmp_path / "d2").glob("*-[0-9]")) == ["a-1"]
    assert manager.directory_of(A1) == tmp_path / "d2"
    manager.close(broker_epoch=12)
    assert (tmp_path / "d1" / names.CLEAN_SHUTDOWN).read_text() == '{"version":0,"brokerEpoch":12}'
    assert not (tmp_path / "d1" / names.LOG_START_OFFSETS).read_text().endswith("a 0 20\n")
    assert read_offsets(tmp_path / "d1" / names.RECOVERY_POINTS) == {A0: 20, B0: 20}

    manager = start()
    assert manager.was_clean and manager.previous_broker_epoch == 12
    assert not (tmp_path / "d1" / names.CLEAN_SHUTDOWN).exists()
    assert {key: log.log_end_offset for key, log in manager.logs.items()} == {
        A0: 20,
        A1: 20,
        B0: 20,
    }
    assert manager.logs[A0].topic_id == TOPIC_ID
    manager.close(clean=False)
    assert start().previous_broker_epoch == -1


def test_a_fresh_directory_has_kafkas_files(start: Start, tmp_path: Path) -> None:
    start()
    assert sorted(os.listdir(tmp_path / "d1")) == sorted(
        [
            ".lock",
            "cleaner-offset-checkpoint",
            "log-start-offset-checkpoint",
            "recovery-point-offset-checkpoint",
            "replication-offset-checkpoint",
        ]
    )


def test_a_start_offset_inside_a_segment_survives(start: Start, tmp_path: Path) -> None:
    manager = start()
    fill(manager, A0)
    manager.logs[A0].delete_records_before(3)
    manager.checkpoints.write_start_offsets()
    assert read_offsets(tmp_path / "d1" / names.LOG_START_OFFSETS) == {A0: 3}
    manager.close(clean=False)
    manager = start()
    assert manager.logs[A0].log_start_offset == 3


def test_the_recovery_point_on_disk_stays_within_an_active_segment(
    start: Start, tmp_path: Path
) -> None:
    """A roll at the end must not find it at the base of the new segment already."""
    manager = start()
    fill(manager, A0)
    manager.close()
    path = tmp_path / "d1" / names.RECOVERY_POINTS
    assert read_offsets(path) == {A0: 20}
    manager = start()
    assert read_offsets(path) == {A0: 19}
    log = manager.logs[A0]
    log.roll(NOW_MS)
    manager.checkpoints.write_recovery_points()
    assert read_offsets(path) == {A0: 19}
    log.flush()
    manager.checkpoints.write_recovery_points()
    assert read_offsets(path) == {A0: 20}


def test_recovery_points_and_high_watermarks_are_checkpointed(start: Start, tmp_path: Path) -> None:
    manager = start()
    fill(manager, A0)
    fill(manager, A1)
    assert manager.logs_to_flush(NOW_MS) == [manager.logs[A0], manager.logs[A1]]
    manager.logs[A0].flush()
    assert manager.logs_to_flush(NOW_MS) == [manager.logs[A1]]
    manager.checkpoints.write_recovery_points()
    assert read_offsets(tmp_path / "d1" / names.RECOVERY_POINTS) == {A0: 19}
    assert read_offsets(tmp_path / "d2" / names.RECOVERY_POINTS) == {A1: 0}
    manager.checkpoints.write_high_watermarks({A0: 18, A1: 7, B0: 1})
    assert manager.checkpoints.read_high_watermarks() == {A0: 18, A1: 7}


def test_a_deleted_partition_is_renamed_then_removed(start: Start, tmp_path: Path) -> None:
    manager = start()
    fill(manager, A0)
    assert manager.delete(A0) is True
    assert manager.delete(A0) is False
    assert manager.get(A0) is None
    (folder,) = (tmp_path / "d1").glob("a-0.*-delete")
    fill(manager, A0, 3)  # made again under the same name while the old one waits
    assert manager.logs[A0].log_end_offset == 3
    assert manager.delete_due_files(NOW_MS + CONFIG.file_delete_delay_ms - 1) == 0
    manager.close(clean=False)
    manager = start()  # a folder left by the last broker goes as well
    assert set(manager.logs) == {A0}
    assert manager.delete_due_files(NOW_MS + CONFIG.file_delete_delay_ms) == 1
    assert not folder.exists()


def test_a_partition_that_the_metadata_does_not_know_is_set_aside(
    start: Start, tmp_path: Path
) -> None:
    manager = start()
    fill(manager, A0)
    fill(manager, A1)
    manager.close()
    manager = start(is_known=lambda partition, topic_id: partition == A1 and topic_id == TOPIC_ID)
    assert set(manager.logs) == {A1}
    assert len(list((tmp_path / "d1").glob("a-0.*-stray"))) == 1


def test_another_topic_of_the_same_name_is_refused(start: Start) -> None:
    manager = start()
    fill(manager, A0)
    with pytest.raises(KafkaError) as caught:
        manager.get_or_create(A0, random_uuid(Random(2)), CONFIG)
    assert caught.value.code is ErrorCode.INCONSISTENT_TOPIC_ID


def test_retention_runs_over_all_logs(start: Start) -> None:
    manager = start()
    for partition in (A0, A1):
        fill(manager, partition)
    assert sum(count for _, count in manager.retire(NOW_MS + 1000)) == 0
    assert sum(count for _, count in manager.retire(NOW_MS + CONFIG.retention_ms + 1000)) == 4
    assert all(log.size_bytes == 0 for log in manager.logs.values())


def test_a_failing_disk_takes_its_directory_offline_and_no_other(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    fill(manager, A0)
    fill(manager, A1)
    told: list[tuple[Path, list[TopicPartition]]] = []
    manager.on_offline = lambda path, partitions: told.append((path, partitions))
    log = manager.logs[A1]

    def fail(fd: int, data: bytes, position: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files.os, "pwrite", fail)
    with pytest.raises(LogDirectoryError) as caught:
        append_as_leader(log, build_batch([(0, None, b"", [])]), leader_epoch=0, now_ms=NOW_MS)
    monkeypatch.undo()
    assert manager.directory_failed(caught.value) == [A1]
    assert manager.directory_failed(caught.value) == []
    assert told == [(tmp_path / "d2", [A1])]
    assert set(manager.logs) == {A0} and manager.offline_partitions == {A1}
    assert list(manager.offline_directories) == [tmp_path / "d2"]
    assert manager.directories == [tmp_path / "d1"]
    with pytest.raises(KafkaError) as refused:
        manager.get_or_create(A1, TOPIC_ID, CONFIG)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    fill(manager, B0)  # new ones go where a disk works
    assert manager.directory_of(B0) == tmp_path / "d1"
    manager.close()
    assert (tmp_path / "d1" / names.CLEAN_SHUTDOWN).exists()
    assert not (tmp_path / "d2" / names.CLEAN_SHUTDOWN).exists()


def test_corrupt_checkpoints(start: Start, tmp_path: Path) -> None:
    manager = start()
    fill(manager, A0)
    manager.close()
    # costs only a recovery
    (tmp_path / "d1" / names.RECOVERY_POINTS).write_text("junk")
    manager = start()
    assert manager.logs[A0].log_end_offset == 20
    # are found again: by each leader of its followers
    (tmp_path / "d1" / names.HIGH_WATERMARKS).write_text("junk")
    assert manager.checkpoints.read_high_watermarks() == {}
    manager.close()
    # would cost history
    (tmp_path / "d1" / "a-0" / names.LEADER_EPOCHS).write_text("junk")
    manager = start()
    assert not manager.logs and manager.is_damaged(A0)
    manager.close()


def test_one_partition_in_two_directories_stops_the_start(start: Start, tmp_path: Path) -> None:
    manager = start()
    fill(manager, A0)
    manager.close()
    (tmp_path / "d2" / "a-0").mkdir()
    with pytest.raises(StartupError, match="two log directories"):
        start()


def test_no_usable_directory_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = BrokerConfig.from_properties({"log.dirs": str(tmp_path / "file"), "node.id": "1"})
    with pytest.raises(StartupError, match=r"none of log\.dirs can be used"):
        LogManager(config, now_ms=lambda: NOW_MS, random=Random(1), threads=own_threads).lock()


def test_a_log_that_ends_elsewhere_than_it_was_closed_at(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = start()
    fill(manager, A0)
    manager.close()
    path = max((tmp_path / "d1" / "a-0").glob("*.log"))
    sound = path.read_bytes()
    position, _ = list(iter_batches(sound))[-1]
    path.write_bytes(sound[: position + 5] + b"\x01" + sound[position + 6 :])
    manager = start()
    assert f"{path}: the log ends at offset 65556 and was closed at 20" in caplog.text
    assert manager.is_damaged(A0) and not manager.logs


def damage(start: Start, tmp_path: Path) -> tuple[Path, bytes]:
    """Three logs closed in order, two in d1; one of them lost its end. Returns its file, and what
    was in it.
    """
    manager = start()
    for partition in (A0, A1, B0):
        fill(manager, partition)
    manager.logs[A0].delete_records_before(3)
    manager.close()
    path = max((tmp_path / "d1" / "a-0").glob("*.log"))
    sound = path.read_bytes()
    path.write_bytes(sound[:-9])
    return path, sound


@pytest.mark.parametrize("ends", [[True], [False], [True, False, True], [False, True, False]])
def test_a_damaged_log_is_offline_until_it_is_mended(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture, ends: list[bool]
) -> None:
    path, sound = damage(start, tmp_path)
    files = {each: each.read_bytes() for each in path.parent.iterdir()}
    for clean in ends:
        caplog.clear()
        manager = start()
        assert set(manager.logs) == {A1, B0} and manager.offline_partitions == {A0}
        assert manager.is_damaged(A0) and not manager.offline_directories
        (line,) = [record for record in caplog.records if record.levelname != "INFO"]
        assert str(path) in line.getMessage() and "\n" not in line.getMessage()
        with pytest.raises(KafkaError, match="a-0 is damaged") as refused:
            manager.get_or_create(A0, TOPIC_ID, CONFIG, is_new=False)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        fill(manager, B0)
        manager.checkpoints.write_recovery_points()
        manager.checkpoints.write_start_offsets()
        manager.close(clean=clean)
        assert {each: each.read_bytes() for each in path.parent.iterdir()} == files
    path.write_bytes(sound)
    caplog.clear()
    manager = start()
    assert manager.logs[A0].log_end_offset == 20 and manager.logs[A0].log_start_offset == 3
    assert manager.logs[B0].log_end_offset == 20 * (1 + len(ends))
    assert not manager.offline_partitions
    assert not [record for record in caplog.records if record.levelname != "INFO"]
    assert not (tmp_path / "d1" / names.DAMAGED_LOGS).exists()
    fill(manager, A0)
    manager.close(clean=False)
    assert start().logs[A0].log_end_offset == 40  # a crash is a crash again


@pytest.mark.parametrize("is_made", [False, True])
def test_a_clean_stop_between_a_followers_roll_and_its_append(start: Start, is_made: bool) -> None:
    """The batch begins after records that compaction removed at the leader."""
    manager = start()
    fill(manager, A0, 1)
    log = manager.logs[A0]
    while not log.segments.active.should_roll(100, log.log_end_offset, NOW_MS, log.config, NOW_MS):
        log.append_as_follower(batch_at(log.log_end_offset), now_ms=NOW_MS)
    end = log.log_end_offset
    checked = validate_replicated(batch_at(end + 10), next_offset=end)
    due = log.append_replicated(checked, now_ms=NOW_MS, may_wait=True)
    assert due is not None
    if is_made:
        due.roll.work()
    manager.close()
    again = start()
    assert not again.offline_partitions
    assert again.logs[A0].log_end_offset == end


@pytest.mark.parametrize("clean", [True, False])
def test_going_on_without_what_is_lost(start: Start, tmp_path: Path, clean: bool) -> None:
    damage(start, tmp_path)
    start().close(clean=clean)
    (tmp_path / "d1" / names.DAMAGED_LOGS).unlink()
    manager = start()
    assert set(manager.logs) == {A0, A1, B0} and not manager.offline_partitions
    assert manager.logs[A0].log_end_offset == 19 and manager.logs[A0].log_start_offset == 3
    manager.close()
    assert start().was_clean


def test_a_damaged_log_of_a_deleted_topic(start: Start, tmp_path: Path) -> None:
    path, _ = damage(start, tmp_path)
    manager = start()
    assert manager.delete(A0) and not manager.delete(A0)
    assert not path.parent.exists() and not manager.offline_partitions
    assert list((tmp_path / "d1").glob("a-0.*-delete"))
    fill(manager, A0, 5)
    manager.close(clean=False)
    assert start().logs[A0].log_end_offset == 5


def test_a_damaged_log_that_the_metadata_does_not_know(start: Start, tmp_path: Path) -> None:
    path, _ = damage(start, tmp_path)
    manager = start(is_known=lambda key, topic_id: key != A0)
    assert set(manager.logs) == {A1, B0} and not manager.offline_partitions
    assert not path.parent.exists() and list((tmp_path / "d1").glob("a-0.*-stray"))


def test_a_damaged_log_after_a_crash_is_recovered_once_its_file_is_mended(
    start: Start, tmp_path: Path
) -> None:
    manager = start()
    fill(manager, A0)
    manager.close(clean=False)
    path = max((tmp_path / "d1" / "a-0").glob("*.log"))
    path.write_bytes(path.read_bytes()[:-9])
    index = path.with_suffix(".index")
    index.unlink()
    index.mkdir()
    manager = start()
    assert manager.is_damaged(A0)
    manager.close()
    index.rmdir()
    manager = start()  # the clean stop in between was not this log's
    assert manager.logs[A0].log_end_offset == 19
    manager.close()


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_damaged_future_log(
    start: Start, tmp_path: Path, is_alone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A future log is ignored beside the current one; alone, it becomes the log, and none is
    created.
    """
    manager = start()
    fill(manager, A0)
    manager.close()
    future = tmp_path / "d2" / f"a-0.{'f' * 32}-future"
    shutil.copytree(tmp_path / "d1" / "a-0", future)
    shutil.copy2(tmp_path / "d1" / names.RECOVERY_POINTS, tmp_path / "d2")
    if is_alone:
        shutil.rmtree(tmp_path / "d1" / "a-0")
    path = max(future.glob("*.log"))
    path.write_bytes(path.read_bytes()[:-9])
    manager = start()
    assert str(path) in caplog.text
    assert set(manager.logs) == (set() if is_alone else {A0})
    assert manager.offline_partitions == ({A0} if is_alone else set())
    assert future.is_dir() and not manager.moves.future_partitions()


def test_the_list_of_damaged_logs_is_damaged_itself(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = damage(start, tmp_path)
    start().close(clean=False)
    (tmp_path / "d1" / names.DAMAGED_LOGS).write_text("junk")
    content = path.read_bytes()
    caplog.clear()
    manager = start()
    assert set(manager.logs) == {A1} and list(manager.offline_directories) == [tmp_path / "d1"]
    (line,) = [record for record in caplog.records if record.levelname != "INFO"]
    assert names.DAMAGED_LOGS in line.getMessage()
    assert path.read_bytes() == content


def test_what_kafka_closed_cleanly_is_taken_without_a_word(
    unpack: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    data = unpack("data-clean")
    config = BrokerConfig.from_properties({"log.dirs": str(data), "node.id": "1"})
    manager = LogManager(config, now_ms=lambda: NOW_MS, random=Random(1), threads=own_threads)
    manager.lock()
    points = read_offsets(data / names.RECOVERY_POINTS)
    manager.load()
    assert manager.was_clean and len(points) > 10
    assert {key: manager.logs[key].log_end_offset for key in points} == points
    assert [record for record in caplog.records if record.levelname != "INFO"] == []
    manager.close()


def test_a_log_that_could_not_be_written_is_not_closed_cleanly(
    start: Start, tmp_path: Path
) -> None:
    manager = start()
    fill(manager, A0)
    fill(manager, B0)
    fault = OSError(errno.EIO, os.strerror(errno.EIO))
    manager.logs[A0].failure = LogDirectoryError(tmp_path / "d1" / "a-0", "fsync", fault)
    manager.close()
    assert not (tmp_path / "d1" / names.CLEAN_SHUTDOWN).exists()
    assert (tmp_path / "d2" / names.CLEAN_SHUTDOWN).exists()
    again = start()
    assert {key: log.log_end_offset for key, log in again.logs.items()} == {A0: 20, B0: 20}
