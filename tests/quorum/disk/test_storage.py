"""The metadata log's directory: what an open finds, what is written, and what retention deletes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.model import ZERO_UUID, InvariantError, StartupError
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.records import Record
from kbroker.quorum.disk.storage import (
    NEVER,
    QuorumStorage,
    StoredBatch,
    metadata_log_config,
    storage_from_config,
)
from kbroker.quorum.raft.control import QuorumConfiguration, control_batch
from kbroker.quorum.raft.election_state import ElectionState
from kbroker.quorum.raft.offsets import BOOTSTRAP_ID, SnapshotId
from kbroker.quorum.raft.voters.voter_set import Voter, VoterEndpoint
from kbroker.settings.broker import BrokerConfig

NOW_MS = 1_800_000_000_000
ID, OTHER_ID = b"d" * 16, b"e" * 16
ME = Voter(1, ID, (VoterEndpoint("CONTROLLER", "localhost", 9093),))


def config(**properties: str) -> BrokerConfig:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return BrokerConfig.from_properties({"node.id": "1", **named})


class World:
    """One directory, opened as often as a test likes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "__cluster_metadata-0"
        self.opened: list[QuorumStorage] = []

    def make(
        self,
        *,
        static_voters: Sequence[int] = (),
        retention_bytes: int = -1,
        retention_ms: int = -1,
        directory_id: bytes = ID,
    ) -> QuorumStorage:
        return QuorumStorage(
            self.root,
            node_id=1,
            directory_id=directory_id,
            log_config=metadata_log_config(config()),
            static_voters=[Voter(each, ZERO_UUID) for each in static_voters],
            retention_bytes=retention_bytes,
            retention_ms=retention_ms,
            lock=False,
        )

    def open(self, **options: int) -> QuorumStorage:
        self.close()
        storage = self.make(**options)  # type: ignore[arg-type]  # of the tests below
        storage.open(NOW_MS)
        self.opened.append(storage)
        return storage

    def close(self) -> None:
        while self.opened:
            self.opened.pop().close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def append(
    storage: QuorumStorage, *values: bytes, epoch: int = 1, timestamp_ms: int = NOW_MS
) -> None:
    base = storage.log.log_end_offset
    records = [Record(base + i, timestamp_ms, None, value, []) for i, value in enumerate(values)]
    batch = build_batch(records, base_offset=base, partition_leader_epoch=epoch)
    storage.write(batch, now_ms=NOW_MS)


def configuration_of(storage: QuorumStorage) -> QuorumConfiguration:
    return storage.control.configuration_at(storage.log.log_end_offset)


def snapshot(
    storage: QuorumStorage, end_offset: int, *records: bytes, timestamp_ms: int = NOW_MS
) -> None:
    snapshot_id = SnapshotId(end_offset, 1)
    storage.write_snapshot(
        snapshot_id,
        [records],
        configuration=storage.control.configuration_at(end_offset - 1),
        timestamp_ms=timestamp_ms,
        now_ms=NOW_MS,
    )
    storage.snapshot_written(snapshot_id)


def test_a_new_directory_is_empty(world: World) -> None:
    storage = world.make()
    assert storage.open(NOW_MS) is None
    world.opened.append(storage)
    assert storage.state == ElectionState()
    assert storage.raft_log().end == (0, 0)
    assert list(storage.read(0, 0)) == []
    assert storage.last_timestamp_ms(0) == 0


def test_what_was_written_is_read_after_a_restart(world: World) -> None:
    storage = world.open()
    storage.write_state(ElectionState(epoch=4, leader_id=1), kraft_version=1, voter_ids=(1,))
    append(storage, b"a", b"b", epoch=3)
    append(storage, b"c", epoch=4, timestamp_ms=NOW_MS + 5)
    storage = world.open()
    assert storage.state == ElectionState(epoch=4, leader_id=1)
    assert storage.raft_log().end == (3, 4)
    assert list(storage.read(0, 3)) == [
        StoredBatch(0, 2, 3, [b"a", b"b"]),
        StoredBatch(2, 3, 4, [b"c"]),
    ]
    assert list(storage.read(2, 3)) == [StoredBatch(2, 3, 4, [b"c"])]
    assert [storage.last_timestamp_ms(end) for end in (2, 3)] == [NOW_MS, NOW_MS + 5]


def test_a_read_beyond_the_log_breaks_an_invariant(world: World) -> None:
    storage = world.open()
    append(storage, b"a")
    with pytest.raises(InvariantError):
        list(storage.read(0, 2))


def test_control_batches_are_taken_into_the_configuration(world: World) -> None:
    storage = world.open()
    records = QuorumConfiguration(1, (ME,)).records()
    storage.write(control_batch(records, base_offset=0, epoch=1, timestamp_ms=NOW_MS), now_ms=0)
    assert configuration_of(storage) == QuorumConfiguration()
    assert list(storage.read(0, 2)) == [StoredBatch(0, 2, 1, [])]
    assert configuration_of(storage) == QuorumConfiguration(1, (ME,))


def test_the_newest_snapshot_is_what_a_start_begins_with(world: World) -> None:
    storage = world.open()
    append(storage, b"a", b"b", b"c")
    storage.control.load_snapshot(BOOTSTRAP_ID, QuorumConfiguration(1, (ME,)))
    snapshot(storage, 2, b"old")
    snapshot(storage, 3, b"x", b"y", timestamp_ms=7)
    snapshot(storage, 3, b"x", b"y", timestamp_ms=7)
    assert storage.snapshots == [SnapshotId(2, 1), SnapshotId(3, 1)]
    world.close()
    storage = world.make()
    found = storage.open(NOW_MS)
    world.opened.append(storage)
    assert found is not None
    assert (found.records, found.last_contained_timestamp_ms) == ([b"x", b"y"], 7)
    assert configuration_of(storage) == QuorumConfiguration(1, (ME,))
    assert storage.raft_log().end == (3, 1)


def test_a_log_that_lost_nothing_is_left_alone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    storage = world.open()
    snapshot(storage, 0, b"x")
    with caplog.at_level("INFO"):
        storage = world.open()
        append(storage, b"a")
        snapshot(storage, 1, b"y")
        storage = world.open()
    assert (storage.log.log_start_offset, storage.log.log_end_offset) == (0, 1)
    assert "truncated" not in caplog.text


def test_a_log_behind_its_newest_snapshot_is_begun_anew(world: World) -> None:
    storage = world.open()
    append(storage, b"a", b"b")
    snapshot(storage, 5, b"x")
    storage = world.open()
    assert (storage.log.log_start_offset, storage.log.log_end_offset) == (5, 5)
    assert storage.raft_log().end == (5, 1)


@pytest.mark.parametrize("kept_bytes", [0, 70])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_log_begins_behind_records_that_a_loss_of_power_took(
    world: World, kept_bytes: int, goes_on: bool
) -> None:
    """Below the newest snapshot no record is missing: a leader would answer fetches of such a
    record with no records for ever.
    """
    storage = world.open()
    append(storage, b"a")
    append(storage, b"b")
    storage.log.roll(NOW_MS)
    append(storage, b"c")
    snapshot(storage, 3, b"x")
    storage.log.roll(NOW_MS)
    if goes_on:
        append(storage, b"d")
    folder = storage.directory
    world.close()
    with (folder / "00000000000000000000.log").open("r+b") as file:
        file.truncate(kept_bytes)
    if not goes_on:
        (folder / "00000000000000000002.log").write_bytes(b"")
    storage = world.open()
    log = storage.log
    if goes_on:
        assert (log.log_start_offset, log.log_end_offset) == (2, 4)
        for offset in (2, 3):
            batches = storage.batches_of(storage.read_batches(offset, max_bytes=1 << 20))
            assert [each.next_offset for each in batches] == [offset + 1]
    else:
        assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    assert storage.raft_log().end == (log.log_end_offset, 1)


def test_a_log_that_contradicts_its_newest_snapshot_is_begun_anew(world: World) -> None:
    storage = world.open()
    append(storage, *[b"uncommitted"] * 7, epoch=0)
    snapshot(storage, 5, b"x")  # fetched; the process ended before the snapshot replaced the log
    storage = world.open()
    assert (storage.log.log_start_offset, storage.log.log_end_offset) == (5, 5)
    assert storage.raft_log().end == (5, 1)


def test_a_log_that_begins_after_its_snapshot_is_refused(world: World) -> None:
    storage = world.open()
    storage.log.truncate_fully(1, now_ms=NOW_MS)
    world.close()
    with pytest.raises(StartupError, match="no snapshot holds what was before"):
        world.open()


@pytest.mark.parametrize(
    ("configuration", "static", "voters"),
    [
        pytest.param(QuorumConfiguration(), (), (), id="nothing said"),
        pytest.param(QuorumConfiguration(), (3, 2), (2, 3), id="static"),
        pytest.param(QuorumConfiguration(1, (ME,)), (3, 2), (1,), id="the log's own hold"),
    ],
)
def test_voters(
    world: World, configuration: QuorumConfiguration, static: Sequence[int], voters: Sequence[int]
) -> None:
    storage = world.make(static_voters=static)
    storage.control.load_snapshot(BOOTSTRAP_ID, configuration)
    assert storage.voters.ids == voters


@pytest.mark.parametrize(
    ("configuration", "static", "refused"),
    [
        pytest.param(QuorumConfiguration(), (), None, id="an observer"),
        pytest.param(QuorumConfiguration(), (1,), None, id="alone in a static quorum"),
        pytest.param(QuorumConfiguration(1, (ME,)), (), None, id="alone with its directory"),
        pytest.param(
            QuorumConfiguration(1, (Voter(1, bytes(16)),)),
            (),
            None,
            id="directory unknown",
        ),
        pytest.param(QuorumConfiguration(), (1, 2), None, id="one of two"),
        pytest.param(QuorumConfiguration(), (2,), None, id="another's"),
        pytest.param(
            QuorumConfiguration(1, (Voter(1, OTHER_ID), Voter(2, OTHER_ID))),
            (),
            None,
            id="with an empty disk, the other voters can do without it",
        ),
        pytest.param(
            QuorumConfiguration(1, (Voter(1, OTHER_ID),)),
            (),
            "another directory.id",
            id="another copy of this node",
        ),
    ],
)
def test_a_start_refuses_a_vote_that_no_node_can_give(
    world: World, configuration: QuorumConfiguration, static: Sequence[int], refused: str | None
) -> None:
    storage = world.make(static_voters=static)
    storage.control.load_snapshot(BOOTSTRAP_ID, configuration)
    if refused is None:
        storage.check_own_vote()
    else:
        with pytest.raises(StartupError, match=refused):
            storage.check_own_vote()


def with_three_snapshots(storage: QuorumStorage) -> None:
    """At the offsets 1, 2 and 3; each is a minute older than the next, the last is of now."""
    for number in range(1, 4):
        age_ms = (3 - number) * 60_000
        append(storage, b"v", timestamp_ms=NOW_MS - age_ms)
        snapshot(storage, number, b"x" * 100, timestamp_ms=NOW_MS - age_ms)


def clean(storage: QuorumStorage) -> None:
    """The steps of retention, in one thread."""
    retention = storage.begin_retention(NOW_MS)
    retention.run()
    storage.retire(retention.deleted, NOW_MS)
    storage.log.jobs.settle()


@pytest.mark.parametrize(
    ("retention_ms", "kept"),
    [(-1, [1, 2, 3]), (120_000, [1, 2, 3]), (119_999, [2, 3]), (60_000, [2, 3]), (0, [3])],
)
def test_snapshots_are_deleted_by_age(world: World, retention_ms: int, kept: list[int]) -> None:
    storage = world.open(retention_ms=retention_ms)
    with_three_snapshots(storage)
    clean(storage)
    assert [each.end_offset for each in storage.snapshots] == kept
    files = sorted(path.name for path in world.directory.glob("*.checkpoint"))
    assert files == [each.file_name for each in storage.snapshots]
    assert storage.log.log_start_offset == (0 if kept[0] == 1 else kept[0])


def test_snapshots_are_deleted_by_size_and_the_newest_stays(world: World) -> None:
    storage = world.open(retention_bytes=0)
    with_three_snapshots(storage)
    clean(storage)
    assert [each.end_offset for each in storage.snapshots] == [3]
    storage = world.open(retention_bytes=1 << 30)
    snapshot(storage, 4, b"x")
    clean(storage)
    assert [each.end_offset for each in storage.snapshots] == [3, 4]


def test_what_a_crash_left_is_removed(world: World) -> None:
    world.open()
    world.close()
    for name in ("00000000000000000003-0000000001-17.checkpoint.part", "quorum-state.tmp"):
        (world.directory / name).write_bytes(b"half")
    world.open()
    assert not list(world.directory.glob("*.part")) and not list(world.directory.glob("*.tmp"))


def test_the_log_is_kept_whatever_topics_are_told() -> None:
    found = metadata_log_config(
        config(
            log_cleanup_policy="compact",
            log_retention_ms="1",
            log_flush_interval_messages="1",
            log_preallocate="true",
            message_max_bytes="100",
            metadata_log_segment_bytes="9000000",
        )
    )
    assert found.cleanup_policy == {"delete"}
    assert (found.retention_ms, found.retention_bytes) == (-1, -1)
    assert (found.flush_messages, found.flush_ms) == (NEVER, NEVER)
    assert (found.segment_bytes, found.preallocate) == (9_000_000, False)
    assert found.max_message_bytes == (1 << 31) - 1


@pytest.mark.parametrize(
    ("settings", "static", "voters"),
    [
        pytest.param({}, (), (1,), id="a node that knows of no other one"),
        pytest.param({}, (2, 3), (2, 3), id="controller.quorum.voters"),
        pytest.param(
            {
                "process_roles": "controller",
                "listeners": "CONTROLLER://localhost:9093",
                "controller_listener_names": "CONTROLLER",
                "controller_quorum_bootstrap_servers": "h:1",
            },
            (),
            (),
            id="bootstrap servers",
        ),
    ],
)
def test_voters_of_a_configuration(
    tmp_path: Path, settings: Mapping[str, str], static: Sequence[int], voters: Sequence[int]
) -> None:
    storage = storage_from_config(
        config(log_dirs=str(tmp_path), **settings),
        directory_id=ID,
        static_voters=[Voter(each, ZERO_UUID) for each in static],
    )
    assert storage.voters.ids == voters


def test_a_truncated_log_goes_on_where_it_was_cut(world: World) -> None:
    storage = world.open()
    for value in (b"a", b"b", b"c"):
        append(storage, value)
    storage.truncate(1, now_ms=NOW_MS)
    append(storage, b"d", epoch=2)
    storage = world.open()
    assert [each.records for each in storage.read(0, 2)] == [[b"a"], [b"d"]]
    assert storage.raft_log().end == (2, 2)


def test_read_batches_are_the_bytes_of_the_log(world: World) -> None:
    storage = world.open()
    for value in (b"a", b"b", b"c"):
        append(storage, value)
    whole = storage.read_batches(0, max_bytes=1 << 20)
    assert whole == (world.directory / f"{0:020d}.log").read_bytes()
    first = storage.read_batches(0, max_bytes=1)
    assert [each.records for each in storage.batches_of(first)] == [[b"a"]]
    assert storage.batches_of(whole) == list(storage.read(0, 3))
    assert storage.read_batches(3, max_bytes=100) == b""


def test_an_installed_snapshot_replaces_log_and_older_snapshots(world: World) -> None:
    storage = world.open()
    append(storage, b"a")
    snapshot(storage, 1, b"old")
    storage.write_snapshot(
        SnapshotId(10, 3), [[b"new"]], configuration=QuorumConfiguration(), timestamp_ms=7, now_ms=8
    )
    storage.install(SnapshotId(10, 3), now_ms=NOW_MS)
    assert (storage.raft_log().start_offset, storage.raft_log().end) == (10, (10, 3))
    assert storage.snapshots == [SnapshotId(10, 3)]
    assert len(list(world.directory.glob("*.checkpoint"))) == 1
    whole = storage.read_snapshot_part(SnapshotId(10, 3), 0, max_bytes=1 << 20)
    assert whole == (world.directory / SnapshotId(10, 3).file_name).read_bytes()
    assert storage.read_snapshot_part(SnapshotId(10, 3), 5, max_bytes=4) == whole[5:9]
    assert storage.read_snapshot_part(SnapshotId(1, 1), 0, max_bytes=9) is None
    append(storage, b"b", epoch=3)
    assert [each.base_offset for each in storage.read(10, 11)] == [10]


def test_a_fetched_snapshot_of_a_later_epoch_voids_a_longer_log(world: World) -> None:
    """A crash between the last part of a snapshot and its installation."""
    storage = world.open()
    for value in (b"a", b"b", b"c"):
        append(storage, value, epoch=1)
    storage.write_snapshot(
        SnapshotId(2, 5), [[b"x"]], configuration=QuorumConfiguration(), timestamp_ms=7, now_ms=8
    )
    storage = world.open()
    assert (storage.raft_log().start_offset, storage.raft_log().end) == (2, (2, 5))


def test_a_write_that_fills_several_segments_leaves_no_gap_behind_a_crash(tmp_path: Path) -> None:
    """All but the last segment are on disk before the next one is there."""
    segment = replace(metadata_log_config(config()), segment_bytes=220)
    storage = QuorumStorage(tmp_path, node_id=1, directory_id=ID, log_config=segment)
    storage.open(NOW_MS)
    batches = [
        bytes(build_batch([Record(base, 0, None, b"v" * 40, [])], base_offset=base))
        for base in range(5)
    ]
    storage.write(b"".join(batches), now_ms=NOW_MS)
    assert storage.log.log_end_offset == 5
    assert [len(each) for each in map(_bytes_of, _segments(storage))] == [
        2 * len(batches[0]),
        2 * len(batches[0]),
        len(batches[0]),
    ]
    assert storage.log.recovery_point == 3  # the indexes of what was rolled are not synced
    storage.close()


@pytest.mark.parametrize("may_vote", [True, False])
def test_a_broker_cuts_its_log_where_a_crash_took_records_between_segments(
    tmp_path: Path, *, may_vote: bool
) -> None:
    """It syncs nothing, so they are fetched again; of a voter they may have been committed."""
    segment = replace(metadata_log_config(config()), segment_bytes=220)

    def make() -> QuorumStorage:
        return QuorumStorage(
            tmp_path, node_id=1, directory_id=ID, log_config=segment, may_vote=may_vote, lock=False
        )

    storage = make()
    storage.open(NOW_MS)
    batches = [
        bytes(build_batch([Record(base, 0, None, b"v" * 40, [])], base_offset=base))
        for base in range(5)
    ]
    storage.write(b"".join(batches), now_ms=NOW_MS)
    storage.log.release()
    os.truncate(_segments(storage)[1], len(batches[2]))
    again = make()
    if may_vote:
        with pytest.raises(StartupError, match="it ends at offset 3, the next segment begins at 4"):
            again.open(NOW_MS)
        return
    again.open(NOW_MS)
    assert again.log.log_end_offset == 3
    assert [each.base_offset for each in again.read(0, 3)] == [0, 1, 2]
    again.close()


def _segments(storage: QuorumStorage) -> list[Path]:
    return sorted(storage.directory.glob("*.log"))


def _bytes_of(path: Path) -> bytes:
    return path.read_bytes()
