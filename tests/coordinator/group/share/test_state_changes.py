"""Which changes of states are in progress."""

from __future__ import annotations

import pytest

from kbroker.coordinator.group.share.state_changes import StateChanges
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError

FIRST, SECOND = b"1" * 16, b"2" * 16


@pytest.mark.parametrize("fails", [False, True])
def test_a_change_is_in_progress_until_its_outcome(fails: bool) -> None:
    changes = StateChanges()
    change, other = changes.begin("g", [FIRST]), changes.begin("g", [FIRST])
    assert list(changes.of("g")) == [change, other]
    assert (change.concerns(FIRST), change.concerns(SECOND)) == (True, False)
    assert not changes.of("h")
    outcome: Deferred[object] = Deferred()
    changes.end_with(change, outcome)
    assert list(changes.of("g")) == [change, other]
    if fails:
        outcome.fail(KafkaError(ErrorCode.NOT_COORDINATOR))
    else:
        outcome.resolve(None)
    assert list(changes.of("g")) == [other]
    changes.end_with(other, Deferred.of(None))
    assert not changes.of("g")
