"""Where a run of `restore` begins, and when it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_jobs.errors import StartRefused
from spark_jobs.exactly_once.tokens import Token
from spark_jobs.restore.plan import Found, decide

FOUND = Found(
    query_name="restore-copy",
    source="archive out",
    source_topic="orders",
    source_id="archive 5f orders 1",
    starts={0: 0, 1: 0},
    ends={0: 100, 1: 50},
    firsts={0: 0, 1: 0},
    target_topic="copy",
    target_ends={0: 0, 1: 0},
    token=None,
)
WRITTEN = {0: 44, 1: 22}
TOKEN = Token("archive 5f orders 1", 3, 60, {"orders": {0: 40, 1: 20}})
NEXT = replace(FOUND, token=TOKEN, target_ends=WRITTEN)


def test_a_first_run_into_an_empty_topic_may_keep_offsets() -> None:
    plan = decide(FOUND)
    assert (plan.positions, plan.batch_id, plan.may_keep) == ({0: 0, 1: 0}, 0, True)
    assert decide(replace(FOUND, target_ends={})).may_keep
    assert not decide(replace(FOUND, wanted="map")).may_keep


@pytest.mark.parametrize(
    ("changed", "obstacle"),
    [
        (replace(FOUND, target_ends={0: 0, 1: 3}), "partition 1 of copy is not empty"),
        (replace(FOUND, starts={0: 0, 1: 9}), "partition 1 of orders begins at offset 9"),
    ],
)
def test_offsets_that_cannot_be_kept(changed: Found, obstacle: str) -> None:
    plan = decide(changed)
    assert (plan.may_keep, plan.obstacle) == (False, obstacle)
    with pytest.raises(StartRefused, match=f"cannot be kept: {obstacle}. --offsets map"):
        decide(replace(changed, wanted="keep"))


def test_the_next_run_goes_on_behind_the_token() -> None:
    plan = decide(NEXT)
    assert (plan.positions, plan.batch_id) == ({0: 40, 1: 20}, 4)
    assert (plan.may_keep, plan.keeper_id) == (False, None)


def test_a_partition_that_the_source_has_got_begins_at_its_start() -> None:
    grown = replace(
        FOUND,
        starts={0: 0, 1: 0, 2: 5},
        ends={0: 100, 1: 50, 2: 9},
        firsts={0: 0, 1: 0, 2: 5},
        token=TOKEN,
        target_ends={**WRITTEN, 2: 0},
    )
    assert decide(grown).positions == {0: 40, 1: 20, 2: 5}


def test_a_run_that_keeps_offsets_goes_on_at_the_end_of_the_target() -> None:
    token = Token("archive 5f orders 1", 0, 0, {}, keeper_id=77)
    plan = decide(replace(FOUND, token=token, target_ends=WRITTEN))
    assert (plan.positions, plan.keeper_id) == ({0: 44, 1: 22}, 77)
    with pytest.raises(StartRefused, match="partition 1 of copy ends at offset 51"):
        decide(replace(FOUND, token=token, target_ends={0: 44, 1: 51}))
    foreign = replace(FOUND, token=token, target_ends=WRITTEN, foreign=frozenset([1]))
    with pytest.raises(StartRefused, match=r"partition 1 of copy \(before offset 22\) is not of"):
        decide(foreign)


@pytest.mark.parametrize("fails", [True, False])
def test_a_run_that_keeps_offsets_cannot_go_on_behind_lost_ones(fails: bool) -> None:
    """failOnDataLoss false does not help: no record can be written at an offset behind a gap."""
    token = Token("archive 5f orders 1", 0, 0, {}, keeper_id=77)
    found = replace(FOUND, token=token, target_ends=WRITTEN, fail_on_data_loss=fails)
    assert decide(replace(found, firsts={0: 44, 1: 0})).notes == ()
    with pytest.raises(StartRefused, match=r"^2 offsets of archive out were") as raised:
        decide(replace(found, firsts={0: 46, 1: 0}))
    assert "restore to another topic with --offsets map" in str(raised.value)
    assert "failOnDataLoss" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"source_id": "archive 77 orders 1"}, "from another source than archive out"),
        ({"wanted": "keep"}, "without keeping offsets"),
        ({"ends": {0: 30, 1: 50}}, "ends at offset 30, before 40"),
        ({"target_ends": {0: 0, 1: 0}}, "copy has none of it"),
        ({"target_ends": {}}, "copy has none of it"),
        ({"firsts": {0: 45, 1: 0}}, "5 offsets of archive out were deleted"),
    ],
)
def test_a_token_that_does_not_fit(changes: dict[str, object], why: str) -> None:
    with pytest.raises(StartRefused, match=why):
        decide(replace(NEXT, **changes))  # type: ignore[arg-type]


def test_lost_offsets_can_be_left_out() -> None:
    changed = replace(NEXT, firsts={0: 45, 1: 0})
    plan = decide(replace(changed, fail_on_data_loss=False))
    assert plan.positions == {0: 45, 1: 20}
    assert "5 offsets" in plan.notes[0]
