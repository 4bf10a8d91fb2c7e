"""A compacted log that is cleaned before, during and after a move to another directory."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.log.storage.files import LogDirectoryError
from kbroker.replication import mover
from kbroker.replication.partition import Partition
from tests.log.cleaner.cleaning import DAY_MS, TOPIC, TOPIC_ID, Bench, batch, view
from tests.replication.world import NODE_ID
from tests.sim.offload import HeldOffload


class MovedTable:
    """A compacted log in one of two directories, with a mover; a chunk is one batch or two."""

    def __init__(self, folder: Path) -> None:
        self.dirs = (folder / "d1", folder / "d2")
        self.bench = Bench(folder, properties={"log.dirs": ",".join(map(str, self.dirs))})
        self.work = HeldOffload()
        self.mover = self.make_mover()

    def make_mover(self) -> mover.LogMover:
        bench = self.bench
        partition = Partition(TOPIC, TOPIC_ID, NODE_ID, bench.log)
        made = mover.LogMover(
            bench.logs, bench.timers, offload=self.work, find=lambda key: partition
        )
        made.start()
        return made

    def begin(self) -> None:
        """Begin a move and copy the first chunk."""
        (target,) = (path for path in self.dirs if path != self.bench.logs.directory_of(TOPIC))
        assert self.bench.logs.moves.create_future(TOPIC, str(target))
        self.mover.begin(TOPIC)
        self.step()

    def step(self) -> None:
        self.bench.timers.advance(1)
        if self.work.held:
            self.work.run_one()

    def finish(self) -> None:
        while self.bench.logs.moves.future(TOPIC) is not None:
            self.step()
        log = self.bench.logs.get(TOPIC)
        assert log is not None and log is not self.bench.log
        self.bench.log = log

    def clean(self, rounds: int) -> None:
        """Rounds of compaction, days apart: tombstones go."""
        for number in range(rounds):
            self.bench.append(batch(("r", str(number))))
            self.bench.roll()
            self.bench.append(batch(("s", str(number))))
            self.bench.clean()
            self.bench.timers.wall_jump_ms += 2 * DAY_MS

    def live_keys(self) -> set[str]:
        return {key for _, key, _ in view(self.bench)}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MovedTable]:
    """The key `a` is set at first and deleted at the end."""
    monkeypatch.setattr(mover, "CHUNK_BYTES", 200)
    made = MovedTable(tmp_path)
    made.bench.append(batch(("a", "1")))
    for number in range(10):
        made.bench.append(batch(("fill", str(number))))
    made.bench.append(batch(("a", None)))
    yield made
    made.bench.stop()


@pytest.mark.parametrize("rounds", range(4))
def test_a_deleted_key_stays_deleted_if_the_cleaner_looks_during_a_move(
    table: MovedTable, rounds: int
) -> None:
    table.begin()
    table.clean(rounds)
    table.finish()
    table.clean(4)
    assert table.live_keys() == {"fill", "r", "s"}


def test_cleaning_goes_on_after_a_move_that_was_cancelled(table: MovedTable) -> None:
    table.begin()
    table.clean(2)
    assert "a" in table.live_keys()
    table.bench.logs.moves.drop_future(TOPIC)
    table.clean(3)
    assert table.live_keys() == {"fill", "r", "s"}


def test_cleaning_goes_on_after_a_move_whose_directory_failed(table: MovedTable) -> None:
    table.begin()
    future = table.bench.logs.moves.future(TOPIC)
    assert future is not None
    error = LogDirectoryError(future.directory, "write", OSError(errno.EIO, "EIO"))
    table.bench.logs.directory_failed(error)
    table.clean(4)
    assert table.live_keys() == {"fill", "r", "s"}
