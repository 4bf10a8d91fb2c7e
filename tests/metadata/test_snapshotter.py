"""The snapshotter: when a snapshot is due, on timers that the test moves."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.metadata.image import MetadataImage
from kbroker.metadata.snapshotter import SNAPSHOT_CHUNK_RECORDS, Snapshotter
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.sim.timers import SimTimers

INTERVAL_MS = 5_000
MAX_BYTES = 1_000


class HeldStore:
    def __init__(self) -> None:
        self.written: list[tuple[int, int, list[int]]] = []
        self.answers: list[Deferred[None]] = []

    def write(
        self, *, end_offset: int, epoch: int, chunks: Sequence[Sequence[bytes]]
    ) -> Deferred[None]:
        self.written.append((end_offset, epoch, [len(chunk) for chunk in chunks]))
        self.answers.append(Deferred())
        return self.answers[-1]


class World:
    def __init__(self, *, interval_ms: int = INTERVAL_MS, active: bool = True) -> None:
        self.timers = SimTimers()
        self.store = HeldStore()
        self.image = MetadataImage(features={"metadata.version": 30})
        self.snapshotter = Snapshotter(
            self.store,
            self.timers,
            lambda: self.image,
            max_bytes=MAX_BYTES,
            max_interval_ms=interval_ms,
            node_id=1,
        )
        if active:
            self.snapshotter.activate()

    def commit(self, offset: int, size_bytes: int, features: int = 1) -> None:
        levels = {"metadata.version": 30} | {f"f{i:05}": 1 for i in range(1, features)}
        self.image = MetadataImage(offset=offset, epoch=2, features=levels)
        self.snapshotter.committed(size_bytes)
        self.timers.advance(0)


def test_due_by_size() -> None:
    world = World()
    world.commit(5, MAX_BYTES - 1)
    assert world.store.written == []
    world.commit(6, 1)
    assert world.store.written == [(7, 2, [1])]
    world.store.answers[0].resolve(None)
    world.commit(7, MAX_BYTES - 1)
    assert len(world.store.written) == 1


def test_due_by_time() -> None:
    world = World()
    world.commit(5, 1)
    world.timers.advance(INTERVAL_MS)
    assert world.store.written == []  # an idle log needs no snapshot
    world.commit(6, 0)  # a control batch
    assert world.store.written == []
    world.commit(7, 1)
    assert world.store.written == [(8, 2, [1])]


def test_an_interval_of_zero_is_no_limit() -> None:
    world = World(interval_ms=0)
    world.commit(5, 1)
    world.timers.advance(1_000_000)
    world.commit(6, 1)
    assert world.store.written == []


def test_one_at_a_time() -> None:
    world = World()
    world.commit(5, MAX_BYTES)
    first = world.snapshotter.write()
    world.commit(6, MAX_BYTES)
    assert len(world.store.written) == 1
    world.store.answers[0].resolve(None)
    assert first.done
    world.commit(7, 1)
    assert [written[0] for written in world.store.written] == [6, 8]


def test_what_is_committed_meanwhile_needs_no_later_record() -> None:
    world = World()
    world.commit(5, MAX_BYTES)
    world.commit(6, MAX_BYTES)
    world.store.answers[0].resolve(None)
    world.timers.advance(0)
    assert [end_offset for end_offset, _, _ in world.store.written] == [6, 7]
    world.store.answers[1].resolve(None)
    world.timers.advance(0)
    assert len(world.store.written) == 2


def test_the_image_is_encoded_in_several_turns() -> None:
    world = World()
    chunk = SNAPSHOT_CHUNK_RECORDS
    world.image = MetadataImage(
        offset=3, features={"metadata.version": 30} | {f"f{i}": 1 for i in range(2 * chunk)}
    )
    world.snapshotter.write()
    assert world.store.written == []
    world.timers.advance(0)
    assert world.store.written == [(4, 0, [chunk, chunk, 1])]


def test_nothing_new_nothing_written() -> None:
    world = World()
    world.snapshotter.snapshot_read(7)
    world.image = MetadataImage(offset=6)
    assert world.snapshotter.write().done
    assert world.store.written == []


def test_nothing_is_written_while_the_log_is_read() -> None:
    world = World(active=False)
    world.commit(5, MAX_BYTES)
    assert world.store.written == []
    world.snapshotter.activate()
    world.commit(6, 1)
    assert world.store.written == [(7, 2, [1])]


def test_a_failure_is_tried_again_when_the_next_one_is_due() -> None:
    world = World()
    world.commit(5, MAX_BYTES)
    world.store.answers[0].fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    assert world.snapshotter.idle().done
    world.commit(6, MAX_BYTES)
    assert [written[0] for written in world.store.written] == [6, 7]


def test_close_drops_a_snapshot_that_is_being_encoded() -> None:
    world = World()
    world.image = MetadataImage(offset=3, features={"metadata.version": 30})
    written = world.snapshotter.write()
    world.snapshotter.close()
    assert written.error is not None
    world.timers.advance(0)
    assert world.store.written == []
