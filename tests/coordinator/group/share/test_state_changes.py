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


@pytest.mark.parametrize(
    ("of_change", "of_request", "is_refused"),
    [
        pytest.param([FIRST], [FIRST, SECOND], True, id="a common topic"),
        pytest.param([FIRST], [SECOND], False, id="other topics"),
        pytest.param([FIRST], None, True, id="a request for all topics"),
        pytest.param(None, [SECOND], True, id="a change of all topics"),
        pytest.param(None, None, True, id="both"),
    ],
)
@pytest.mark.parametrize("for_members", [False, True])
def test_a_request_while_states_change(
    of_change: list[bytes] | None,
    of_request: list[bytes] | None,
    is_refused: bool,
    for_members: bool,
) -> None:
    changes = StateChanges()
    changes.begin("g", of_change, for_members=for_members)
    changes.require_none("h", of_request)
    if not is_refused:
        changes.require_none("g", of_request)
        return
    with pytest.raises(KafkaError) as raised:
        changes.require_none("g", of_request)
    assert raised.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
