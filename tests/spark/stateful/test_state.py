"""Manifests of states: written whole, removed when no batch needs them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_jobs.errors import JobError
from spark_jobs.stateful.state import Counts, Part, State, StateLog, parse_state
from spark_jobs.storage import Folder, absolute

pytest.importorskip("pyarrow")

STATE = State(4, "--by key", {"t": {0: 7, 1: 9}}, 12, (Part("4-a", 99),), Counts(5, 1, 2, 1))


@pytest.fixture
def states(tmp_path: Path) -> StateLog:
    return StateLog(Folder(absolute(str(tmp_path))))


def test_json_and_back() -> None:
    assert parse_state(STATE.to_json()) == STATE


def test_counts_add_up() -> None:
    assert Counts(5, 1, 2, 1) + Counts(2, 1, 0, 1) == Counts(7, 2, 2, 2)


def test_two_states_are_kept_with_their_parts(states: StateLog, tmp_path: Path) -> None:
    for batch_id in range(4):
        name = states.new_folder(batch_id)
        (tmp_path / name).mkdir()
        (tmp_path / f"{batch_id}-left-by-a-kill").mkdir()
        states.write(replace(STATE, batch_id=batch_id, parts=(Part(name, 0),)))
    newest, before = states.newest(), states.before(3)
    assert newest is not None and before is not None
    assert (newest.batch_id, before.batch_id) == (3, 2)
    assert states.read(1) is None and states.before(0) is None
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert folders == {newest.parts[0].folder, before.parts[0].folder}


def test_a_batch_that_is_made_again_replaces_its_state(states: StateLog) -> None:
    states.write(STATE)
    states.write(replace(STATE, watermark_ms=13))
    found = states.read(4)
    assert found is not None and found.watermark_ms == 13


def test_a_state_that_is_missing_or_damaged(states: StateLog, tmp_path: Path) -> None:
    assert states.newest() is None
    with pytest.raises(JobError, match="has no state of batch 6: bring it back"):
        states.before(7)
    (tmp_path / "000000000006.json").write_text("{}")
    with pytest.raises(JobError, match=r"000000000006\.json is damaged"):
        states.before(7)
    (tmp_path / "000000000006.json").write_bytes(
        STATE.to_json().replace(b'"format": 1', b'"format": 2')
    )
    with pytest.raises(JobError, match="newer version"):
        states.before(7)
