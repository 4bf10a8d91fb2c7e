"""Moving a log to another directory: begun, dropped, promoted, failed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import read_offsets
from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import InvariantError, TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.broker import BrokerConfig
from tests.log.directories.manager import CONFIG, NOW_MS, fill, start
from tests.own_threads import own_threads
from tests.sim.disk import Crashed, SimDisk

A = TopicPartition("a", 0)


@pytest.fixture
def manager(tmp_path: Path) -> LogManager:
    """Partition a with three records from offset 1 on, in one of two directories."""
    manager = start(tmp_path)
    log = fill(manager, A)
    log.log_start_offset = 1
    return manager


def elsewhere(manager: LogManager) -> str:
    (other,) = [path for path in manager.directories if path != manager.directory_of(A)]
    return str(other)


def bytes_of(log: PartitionLog, offset: int = 0) -> bytes:
    """The batches from offset on."""
    records = log.read(offset, max_bytes=1 << 20).records
    return records if isinstance(records, bytes) else records.read()


def test_a_copy_begins_where_the_log_begins(manager: LogManager) -> None:
    assert manager.moves.create_future(A, elsewhere(manager))
    copy = manager.moves.future(A)
    assert copy is not None and copy is not manager.logs[A]
    assert (copy.log_start_offset, copy.log_end_offset) == (1, 1)
    assert copy.directory.name.endswith("-future")
    assert manager.moves.future_partitions() == [A]
    assert manager.moves.create_future(A, elsewhere(manager)), "it is under way"
    assert manager.moves.future(A) is copy


def test_a_log_that_is_there_already_does_not_move(manager: LogManager) -> None:
    here = str(manager.directory_of(A))
    assert not manager.moves.create_future(A, here)
    manager.moves.create_future(A, elsewhere(manager))
    assert not manager.moves.create_future(A, here), "which ends the other move"
    assert manager.moves.future(A) is None and manager.moves.future_directory_id(A) is None


def test_an_unknown_directory_is_refused_and_ends_no_move(manager: LogManager) -> None:
    manager.moves.create_future(A, elsewhere(manager))
    with pytest.raises(KafkaError) as caught:
        manager.moves.create_future(A, "/elsewhere")
    assert caught.value.code is ErrorCode.LOG_DIR_NOT_FOUND
    assert manager.moves.future(A) is not None


def test_a_copy_that_is_dropped_is_deleted_later(manager: LogManager) -> None:
    manager.moves.create_future(A, elsewhere(manager))
    manager.moves.drop_future(A)
    manager.moves.drop_future(A)
    assert manager.moves.future(A) is None
    assert [path.name[-7:] for path in Path(elsewhere(manager)).glob("a-0*")] == ["-delete"]


def test_a_copy_that_is_cut_has_its_checkpoints_lowered(manager: LogManager) -> None:
    target = elsewhere(manager)
    manager.moves.create_future(A, target)
    copy = manager.moves.future(A)
    assert copy is not None
    copy.append_as_follower(bytes_of(manager.logs[A], 1), now_ms=NOW_MS)
    copy.roll(NOW_MS)
    copy.flush()
    copy.log_start_offset = 3
    manager.checkpoints.write_recovery_points()
    manager.checkpoints.write_start_offsets()
    paths = [Path(target, name) for name in (names.RECOVERY_POINTS, names.LOG_START_OFFSETS)]
    assert [read_offsets(path)[A] for path in paths] == [3, 3]
    assert manager.truncate(copy, 2)
    assert (copy.log_start_offset, copy.log_end_offset) == (2, 2)
    assert [read_offsets(path)[A] for path in paths] == [1, 2]


def test_a_promoted_copy_is_the_log(manager: LogManager) -> None:
    target = elsewhere(manager)
    current = manager.logs[A]
    current.high_watermark = 2
    manager.moves.create_future(A, target)
    copy = manager.moves.future(A)
    assert copy is not None
    copy.append_as_follower(bytes_of(current, 1), now_ms=NOW_MS)
    log = manager.moves.promote_future(A)
    assert manager.logs[A] is log and str(manager.directory_of(A)) == target
    assert log.directory == Path(target, "a-0")
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (1, 3, 2)
    assert manager.moves.future(A) is None
    assert current.directory.name.endswith("-delete")


@pytest.mark.parametrize("seed", range(50))
def test_after_a_power_loss_at_the_swap_the_partition_is_in_one_directory(seed: int) -> None:
    disk = SimDisk(Random(seed))
    paths = [Path("/disk/d1"), Path("/disk/d2")]
    for path in paths:
        disk.make_root(str(path))
    properties = {"log.dirs": ",".join(map(str, paths)), "node.id": "1"}

    def begin() -> LogManager:
        manager = LogManager(
            BrokerConfig.from_properties(properties),
            now_ms=lambda: NOW_MS,
            random=Random(1),
            threads=own_threads,
        )
        manager.set_directory_ids({str(path): path.name.encode() for path in paths})
        manager.load(lambda topic: CONFIG, assigned=lambda key: b"d2")
        return manager

    with disk.installed():
        manager = begin()
        manager.moves.prefer(A, str(paths[0]))
        source = fill(manager, A)
        manager.moves.create_future(A, str(paths[1]))
        future = manager.moves.future(A)
        assert future is not None
        future.append_as_follower(bytes_of(source), now_ms=NOW_MS)
        for log in (source, future):
            log.flush()
        disk.crash_after = disk.random.choice((None, disk.random.randrange(20)))
        with suppress(Crashed):
            manager.moves.promote_future(A)
        manager.close(clean=False)
        disk.restart(power_loss=True)
        log = begin().logs[A]
        assert (log.log_start_offset, log.log_end_offset) == (0, 3)


def test_only_a_log_that_moves_is_promoted(manager: LogManager) -> None:
    with pytest.raises(InvariantError, match="no future log"):
        manager.moves.promote_future(A)


def test_a_target_that_fails_leaves_the_log_where_it_is(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = elsewhere(manager)

    def fail(folder: Path, *_: object) -> None:
        raise LogDirectoryError(folder, "create", OSError(5, "Input/output error"))

    monkeypatch.setattr(manager, "open_log", fail)
    with pytest.raises(KafkaError) as caught:
        manager.moves.create_future(A, target)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert [str(path) for path in manager.offline_directories] == [target]
    assert A in manager.logs


def test_a_directory_is_preferred_only_for_a_log_that_is_not_made(manager: LogManager) -> None:
    target, new = elsewhere(manager), TopicPartition("new", 0)
    manager.moves.prefer(A, target)
    assert manager.moves.preferred == {}
    for path in manager.directories:
        manager.moves.prefer(new, str(path))
    manager.get_or_create(new, None, CONFIG)
    assert manager.directory_of(new) == manager.directories[-1]
    with pytest.raises(KafkaError):
        manager.moves.prefer(TopicPartition("other", 0), "/elsewhere")
