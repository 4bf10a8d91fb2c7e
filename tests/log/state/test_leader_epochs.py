from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.state.leader_epochs import LeaderEpochCache
from kbroker.log.storage.checkpoint import CheckpointError
from tests.decisions import Case, cases


@pytest.fixture
def epochs(tmp_path: Path) -> LeaderEpochCache:
    cache = LeaderEpochCache(tmp_path)
    for epoch, start in ((0, 0), (2, 10), (5, 40)):
        cache.assign(epoch, start)
    return cache


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        pytest.param(-1, (-1, -1), id="undefined"),
        pytest.param(0, (0, 10), id="first"),
        pytest.param(1, (0, 10), id="between"),
        pytest.param(2, (2, 40), id="middle"),
        pytest.param(4, (2, 40), id="between, later"),
        pytest.param(5, (5, 100), id="latest"),
        pytest.param(6, (-1, -1), id="unknown to come"),
    ],
)
def test_end_offset_for(epochs: LeaderEpochCache, asked: int, answer: tuple[int, int]) -> None:
    assert epochs.end_offset_for(asked, 100) == answer


def test_an_epoch_before_the_first_ends_where_that_begins(epochs: LeaderEpochCache) -> None:
    epochs.truncate_from_start(15)
    assert epochs.entries == [(2, 15), (5, 40)]
    assert epochs.end_offset_for(1, 100) == (1, 15)
    assert (epochs.epoch_for_offset(39), epochs.epoch_for_offset(14)) == (2, None)
    assert (epochs.latest_epoch, epochs.previous_epoch()) == (5, 2)


def test_a_new_entry_replaces_those_it_contradicts(epochs: LeaderEpochCache) -> None:
    assert epochs.assign(6, 40) is True
    assert epochs.entries == [(0, 0), (2, 10), (6, 40)]
    assert epochs.assign(6, 50) is False
    assert epochs.assign(-1, 50) is False
    assert epochs.assign(7, 5) is True
    assert epochs.entries == [(0, 0), (7, 5)]


def test_truncation_from_the_end_forgets_epochs_that_begin_there(epochs: LeaderEpochCache) -> None:
    epochs.truncate_from_end(40)
    assert epochs.entries == [(0, 0), (2, 10)]
    epochs.truncate_from_end(11)
    assert epochs.entries == [(0, 0), (2, 10)]
    epochs.truncate_from_start(0)
    assert epochs.entries == [(0, 0), (2, 10)]
    epochs.clear()
    assert (epochs.entries, epochs.latest_epoch) == ([], None)
    assert epochs.end_offset_for(0, 100) == (-1, -1)


def test_the_checkpoint_is_kafkas(epochs: LeaderEpochCache, tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    epochs.write()
    assert path.read_text() == "0\n3\n0 0\n2 10\n5 40\n"
    assert LeaderEpochCache(tmp_path).entries == epochs.entries
    path.write_text("0\n1\nx 0\n")
    with pytest.raises(CheckpointError, match="leader-epoch-checkpoint"):
        LeaderEpochCache(tmp_path)


def test_the_checkpoint_is_written_when_a_flush_passes_the_change(tmp_path: Path) -> None:
    def said() -> list[tuple[int, int]]:
        return LeaderEpochCache(tmp_path).entries

    epochs = LeaderEpochCache(tmp_path)

    def flush(up_to: int) -> None:
        pending = epochs.pending(up_to)
        for each in pending:
            each.sync()
        if pending:
            epochs.synced(epochs.change)

    epochs.assign(0, 0)
    flush(0)  # an epoch without records
    assert (said(), epochs.needs_flush(0)) == ([], False)
    flush(10)
    assert (said(), epochs.needs_flush(10)) == ([(0, 0)], False)
    epochs.assign(3, 10)
    assert (epochs.needs_flush(10), epochs.needs_flush(11)) == (False, True)
    flush(10)
    assert said() == [(0, 0)]
    epochs.assign(4, 10)
    flush(11)
    assert said() == [(0, 0), (4, 10)]
    epochs.truncate_from_end(10)
    flush(10)
    assert said() == [(0, 0), (4, 10)]  # dropped at the next start, since it is at the log end
    flush(11)
    assert said() == [(0, 0)]
    epochs.truncate_from_start(5)
    flush(11)
    assert said() == [(0, 5)]


def test_what_changes_while_it_is_flushed_is_flushed_again(tmp_path: Path) -> None:
    epochs = LeaderEpochCache(tmp_path)
    epochs.assign(0, 0)
    for change in (lambda: epochs.assign(1, 10), epochs.write, lambda: epochs.assign(2, 30)):
        pending, before = epochs.pending(20), epochs.change
        change()
        for each in pending:
            each.sync()
        epochs.synced(before)
        assert epochs.needs_flush(20)
    pending = epochs.pending(20)
    for each in pending:
        each.sync()
    epochs.synced(epochs.change)
    assert not epochs.needs_flush(40)
    assert LeaderEpochCache(tmp_path).entries == [(0, 0), (1, 10), (2, 30)]


def test_a_flush_writes_nothing_over_what_is_newer(tmp_path: Path) -> None:
    epochs = LeaderEpochCache(tmp_path)
    epochs.assign(0, 0)
    epochs.assign(1, 10)
    late = epochs.pending(20)
    epochs.truncate_from_end(10)
    epochs.write()  # the log was truncated
    for each in late:
        each.sync()
    assert LeaderEpochCache(tmp_path).entries == [(0, 0)]


def test_every_line_is_kafkas(tmp_path: Path) -> None:
    """What Kafka's own LeaderEpochFileCache answered (tests/data/decisions)."""
    wrong, count = [], 0
    for number, case in cases("leader-epochs"):
        count += 1
        cache = LeaderEpochCache(tmp_path / str(number))
        for step in case["steps"]:
            outcome = take_step(cache, step)
            outcome["entries"] = [list(each) for each in cache.entries]
            if outcome != {key: step[key] for key in outcome}:
                wrong.append((number, step, outcome))
    assert count == 500
    assert not wrong, wrong[:3]


def take_step(cache: LeaderEpochCache, step: Case) -> Case:
    """Run one step of a line. Returns its result."""
    match step["do"]:
        case "assign":
            cache.assign(step["epoch"], step["startOffset"])
        case "truncateFromEnd":
            cache.truncate_from_end(step["endOffset"])
        case "truncateFromStart":
            cache.truncate_from_start(step["startOffset"])
        case _:
            end = step["logEndOffset"]
            return {
                "asked": [
                    each | {"endOffsetFor": list(cache.end_offset_for(each["epoch"], end))}
                    for each in step["asked"]
                ],
                "epochForOffset": [
                    [offset, cache.epoch_for_offset(offset)] for offset, _ in step["epochForOffset"]
                ],
                "latestEpoch": cache.latest_epoch,
            }
    return {}
