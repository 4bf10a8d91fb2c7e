"""When a group may make another target assignment."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kbroker.coordinator.group.membership.context import AssignmentContext


@pytest.mark.parametrize(
    ("last_ms", "may"),
    [
        pytest.param(1_000, True, id="the interval is over"),
        pytest.param(1_001, False, id="within the interval"),
        pytest.param(2_000, False, id="at once"),
        pytest.param(2_001, True, id="the wall clock was set back"),
    ],
)
def test_assignments_keep_the_interval(last_ms: int, may: bool) -> None:
    context = AssignmentContext(
        topics=cast(Any, None),
        wall_ms=2_000,
        client_id="",
        client_host="",
        heartbeat_interval_ms=1,
        assignment_interval_ms=1_000,
    )
    assert context.may_assign(last_ms) is may
