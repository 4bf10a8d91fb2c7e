"""A crash at every file operation of the quorum other than those on its log: a snapshot,
`quorum-state`, the files of a new directory. The next start finds the old content or the new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random

import pytest

from kbroker.log.storage.directory_lock import DirectoryLock
from kbroker.model import StartupError
from kbroker.quorum.disk import storage as storage_module
from kbroker.quorum.disk.quorum_state_file import read_state, write_state
from kbroker.quorum.disk.snapshots import (
    Snapshot,
    build_snapshot,
    list_snapshots,
    read_snapshot,
    remove_parts,
    write_snapshot,
)
from kbroker.quorum.disk.storage import QuorumStorage, metadata_log_config, storage_from_config
from kbroker.quorum.formatting.format import ensure_formatted
from kbroker.quorum.raft.control import QuorumConfiguration, control_batch, leader_change
from kbroker.quorum.raft.election_state import ElectionState
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.voters.voter_set import Voter, VoterEndpoint
from kbroker.settings.broker import BrokerConfig
from tests.sim.disk import Crashed, SimDisk

ROOT = Path("/sim/metadata")
NOW_MS = 1_800_000_000_000
VOTER = Voter(1, b"d" * 16, (VoterEndpoint("CONTROLLER", "localhost", 9093),))
CONFIGURATION = QuorumConfiguration(1, (VOTER,))
OLD, NEW = SnapshotId(10, 1), SnapshotId(20, 2)

power = pytest.mark.parametrize("power_loss", [False, True], ids=["kill", "power loss"])


@pytest.fixture
def disks() -> Iterator[Callable[[int], SimDisk]]:
    """A new simulated disk per seed, with an empty directory ROOT."""

    def make(seed: int) -> SimDisk:
        disk = SimDisk(Random(seed))
        disk.make_root(str(ROOT))
        return disk

    yield make


@pytest.fixture(autouse=True)
def small_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash at each operation needs no 20 MB of zeros, the log's preallocated indexes, in each of
    hundreds of disks in memory: the operations are the same.
    """
    monkeypatch.setattr(storage_module, "INDEX_BYTES", 4096)


def write(snapshot_id: SnapshotId, *chunks: list[bytes]) -> None:
    path = ROOT / snapshot_id.file_name
    content = build_snapshot(
        CONFIGURATION, chunks, epoch=snapshot_id.epoch, last_contained_timestamp_ms=7, now_ms=9
    )
    write_snapshot(path, path.with_name(f"{path.stem}-1.checkpoint.part"), content)


def crashes(disk: SimDisk, work: Callable[[], object], after: int) -> bool:
    """Run work up to its operation number `after`. Returns whether it got that far."""
    disk.crash_after = after
    try:
        work()
    except Crashed:
        return True
    disk.crash_after = None
    return False


def each_crash(
    disks: Callable[[int], SimDisk],
    prepare: Callable[[], object],
    work: Callable[[], object],
    *,
    power_loss: bool,
    seeds: Iterable[int] = range(12),
) -> Iterator[bool]:
    """Prepare a disk, do work on it up to one of its operations, restart: for every operation and
    seed. Yields whether the work was complete; the restarted disk is installed then.
    """
    for seed in seeds:
        after, is_crash = 0, True
        while is_crash:
            disk = disks(seed)
            with disk.installed():
                prepare()
                is_crash = crashes(disk, work, after)
                disk.restart(power_loss=power_loss)
                yield not is_crash
            after += 1
        assert after > 3, "the work has operations"


@power
def test_a_snapshot_is_there_as_a_whole_or_not_at_all(
    disks: Callable[[int], SimDisk], power_loss: bool
) -> None:
    old = Snapshot(CONFIGURATION, 7, [b"old"])
    new = Snapshot(CONFIGURATION, 7, [b"a" * 300, b"b" * 300, b"c"])
    found = set()
    for is_complete in each_crash(
        disks,
        lambda: write(OLD, [b"old"]),
        lambda: write(NEW, [b"a" * 300, b"b" * 300], [b"c"]),
        power_loss=power_loss,
    ):
        remove_parts(ROOT)
        snapshots = list_snapshots(ROOT)
        assert snapshots in ([OLD], [OLD, NEW])
        assert read_snapshot(ROOT / OLD.file_name) == old
        if snapshots[-1] == NEW:
            assert read_snapshot(ROOT / NEW.file_name) == new
        assert snapshots[-1] == NEW or not is_complete
        found.add(snapshots[-1])
        write(SnapshotId(30, 2), [b"later"])  # with any part file that the crash left
    assert found == {OLD, NEW}


@power
def test_a_snapshot_that_is_written_again_stays_whole(
    disks: Callable[[int], SimDisk], power_loss: bool
) -> None:
    """A start after a crash may write a snapshot with the id of one that is there."""
    found = set()
    for is_complete in each_crash(
        disks,
        lambda: write(NEW, [b"first" * 40]),
        lambda: write(NEW, [b"second" * 40]),
        power_loss=power_loss,
    ):
        (record,) = read_snapshot(ROOT / NEW.file_name).records
        assert record in (b"first" * 40, b"second" * 40)
        assert record == b"second" * 40 or not is_complete
        found.add(record)
    assert len(found) == 2


@power
def test_quorum_state_is_the_old_one_or_the_new_one(
    disks: Callable[[int], SimDisk], power_loss: bool
) -> None:
    old, new = ElectionState(epoch=3, leader_id=1), ElectionState(epoch=4, voted_id=2)

    def write_one(state: ElectionState) -> None:
        write_state(ROOT, state, kraft_version=1, voter_ids=(1,))

    found = set()
    for is_complete in each_crash(
        disks, lambda: write_one(old), lambda: write_one(new), power_loss=power_loss
    ):
        state = read_state(ROOT)
        assert state in (old, new)
        assert state == new or not is_complete, "a vote that was given must not be given again"
        found.add(state)
    assert found == {old, new}


def config() -> BrokerConfig:
    return BrokerConfig.from_properties({"log.dirs": str(ROOT / "data"), "node.id": "1"})


def storage() -> QuorumStorage:
    properties = ensure_formatted(config(), Random(2))
    directory_id = properties.directory_ids[config().metadata_log_dir]
    return storage_from_config(config(), directory_id=directory_id, static_voters=())


def test_the_vote_that_a_start_has_read_outlives_a_loss_of_power(
    disks: Callable[[int], SimDisk],
) -> None:
    """The process before may have been killed between the rename of quorum-state and its sync. The
    recovery of the log, which every start does, syncs the directory they share.
    """
    old, new = ElectionState(epoch=3, leader_id=1), ElectionState(epoch=4, voted_id=2)
    directory = []

    def write_one(state: ElectionState) -> None:
        write_state(directory[-1], state, kraft_version=1, voter_ids=(1,))

    def prepare() -> None:
        made = storage()
        made.open(NOW_MS)
        directory.append(made.directory)
        write_one(old)

    found = set()
    disk_of = []

    def make(seed: int) -> SimDisk:
        disk_of.append(disks(seed))
        return disk_of[-1]

    for _ in each_crash(make, prepare, lambda: write_one(new), power_loss=False):
        again = storage()
        again.open(NOW_MS)
        read = again.state
        found.add(read)
        disk_of[-1].restart(power_loss=True)
        assert read_state(directory[-1]) == read
    assert found == {old, new}


def test_the_first_vote_of_a_new_directory_outlives_a_loss_of_power(
    disks: Callable[[int], SimDisk],
) -> None:
    """`format` made no metadata folder: the quorum is static, or the node is to join one. The start
    makes it, and syncs its name before a vote is in it.
    """
    vote = ElectionState(epoch=4, voted_id=2)
    for seed in range(12):
        disk = disks(seed)
        with disk.installed():
            node = QuorumStorage(
                ROOT, node_id=1, directory_id=b"d" * 16, log_config=metadata_log_config(config())
            )
            node.open(NOW_MS)
            node.write_state(vote, kraft_version=0, voter_ids=(1, 2))
            disk.restart(power_loss=True)
            assert read_state(node.directory) == vote
            node.log.release()


@power
def test_a_directory_whose_format_was_broken_off_is_formatted_by_the_next_start(
    disks: Callable[[int], SimDisk], power_loss: bool
) -> None:
    formatted = []

    def first_start() -> None:
        formatted.append(ensure_formatted(config(), Random(1)))

    for is_complete in each_crash(
        disks, lambda: None, first_start, power_loss=power_loss, seeds=range(2)
    ):
        properties = ensure_formatted(config(), Random(2))
        assert not is_complete or properties == formatted[-1]
        opened = storage_from_config(
            config(),
            directory_id=properties.directory_ids[config().metadata_log_dir],
            static_voters=(),
        )
        opened.open(NOW_MS)
        opened.check_own_vote()
        opened.close()


@power
def test_a_start_replays_the_newest_snapshot_and_the_log_behind_it(
    disks: Callable[[int], SimDisk], power_loss: bool
) -> None:
    """The log is synced before a snapshot of it is written. At no operation do its records get
    lost.
    """
    opened: list[QuorumStorage] = []

    def start() -> QuorumStorage:
        made = storage()
        made.open(NOW_MS)
        opened.append(made)
        return made

    def prepare() -> None:
        node = start()
        batch = control_batch(
            [leader_change(1, (1,), (1,)), *node.control.configuration_at(-1).records()],
            base_offset=0,
            epoch=1,
            timestamp_ms=NOW_MS,
        )
        node.write(batch, now_ms=NOW_MS)
        flush = node.begin_flush()
        for file in flush.files:
            file.sync()
        flush.finish()

    def work() -> None:
        node = opened[-1]
        snapshot_id = SnapshotId(node.log.log_end_offset, 1)
        node.write_snapshot(
            snapshot_id,
            [[b"x" * 200]],
            configuration=node.control.configuration_at(snapshot_id.end_offset - 1),
            timestamp_ms=NOW_MS,
            now_ms=NOW_MS,
        )
        node.snapshot_written(snapshot_id)

    found = set()
    for is_complete in each_crash(disks, prepare, work, power_loss=power_loss, seeds=range(4)):
        opened[-1].log.release()
        end_offset = opened[-1].log.log_end_offset
        node = storage()
        snapshot = node.open(NOW_MS)
        assert node.log.log_end_offset == end_offset
        assert snapshot is not None or not is_complete
        if snapshot is None:
            assert [each.next_offset for each in node.read(0, end_offset)] == [end_offset]
        else:
            assert snapshot.records == [b"x" * 200]
        node.check_own_vote()
        found.add(snapshot is None)
        node.log.release()
    assert found == {False, True}


def test_a_lock_keeps_the_second_broker_out_and_ends_with_its_process(
    disks: Callable[[int], SimDisk],
) -> None:
    disk = disks(1)
    with disk.installed():
        first = DirectoryLock(ROOT)
        first.acquire()
        with pytest.raises(StartupError, match="is locked by another broker"):
            DirectoryLock(ROOT).acquire()
        disk.restart(power_loss=False)
        second = DirectoryLock(ROOT)
        second.acquire()
        second.release()
        DirectoryLock(ROOT).acquire()
