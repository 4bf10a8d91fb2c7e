"""A group never goes back, except to a topic that was created again."""

from __future__ import annotations

import pytest

from kbroker.model import TopicPartition
from spark_jobs.checkpoint import Offsets
from spark_jobs.lag.commit_plan import CommitPlan, ahead_of, plan_commit

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("committed", "log_ends", "plan"),
    [
        pytest.param({}, {}, CommitPlan({"t": {0: 10, 1: 20}}), id="a new group"),
        pytest.param({"t": {0: 3}}, {}, CommitPlan({"t": {0: 10, 1: 20}}), id="a step on"),
        pytest.param({"t": {0: 10, 1: 20}}, {}, CommitPlan({"t": {0: 10, 1: 20}}), id="again"),
        pytest.param(
            {"t": {0: 50, 1: 3}}, {T0: 50}, CommitPlan({"t": {1: 20}}, (T0,)), id="one is ahead"
        ),
        pytest.param(
            {"t": {0: 50, 1: 60}}, {T0: 70, T1: 70}, CommitPlan({}, (T0, T1)), id="all are ahead"
        ),
        pytest.param(
            {"t": {0: 50, 1: 3}},
            {T0: 49},
            CommitPlan({"t": {0: 10, 1: 20}}, (), (T0,)),
            id="behind the end of the log",
        ),
        pytest.param(
            {"other": {0: 99}}, {}, CommitPlan({"t": {0: 10, 1: 20}}), id="another topic's"
        ),
    ],
)
def test_plans(committed: Offsets, log_ends: dict[TopicPartition, int], plan: CommitPlan) -> None:
    ends = {"t": {0: 10, 1: 20}}
    assert set(ahead_of(ends, committed)) == set(log_ends)
    assert plan_commit(ends, committed, log_ends) == plan
    assert ends == {"t": {0: 10, 1: 20}}


def test_a_plan_that_was_carried_out_changes_nothing() -> None:
    ends = {"t": {0: 10}, "u": {3: 0}}
    once = plan_commit(ends, {}, {})
    assert plan_commit(ends, once.offsets, {}) == once
