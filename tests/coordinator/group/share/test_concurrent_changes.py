"""Requests that change the states of a share group while others do: one at a time per topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.coordinator.group.share.shares import (
    Shares,
    begin_alter,
    begin_delete,
    begin_delete_group,
    settle,
)

Begin = Callable[[Shares], Deferred[Any]]


@pytest.fixture
def shares() -> Shares:
    """With an empty group that has states of `other`; answers of the persister are delayed."""
    made = Shares()
    settle(made)
    made.ask(member_id="m", member_epoch=-1)
    made.persister.delayed = True
    return made


def outcome(begin: Begin, shares: Shares) -> ErrorCode | None:
    """The error of the request; None while it has no response."""
    try:
        begun = begin(shares)
    except KafkaError as error:
        return error.code
    return error_of(begun.value) if begun.done else None


def error_of(response: Any) -> ErrorCode:
    """The first error of a response of any of the three requests."""
    if hasattr(response, "results"):
        return ErrorCode(response.results[0].error_code)
    topic = response.responses[0]
    return ErrorCode(
        topic.partitions[0].error_code if hasattr(topic, "partitions") else topic.error_code
    )


def check_states(shares: Shares) -> None:
    """The log has exactly the states that exist."""
    group = shares.world.shard().share.groups.get("s")
    initialized = {} if group is None else group.states.initialized
    known = {(topic_id, index) for topic_id, indexes in initialized.items() for index in indexes}
    assert {key.place for key in shares.persister.offsets} == known
    if group is not None:
        assert (group.states.initializing, group.states.deleting) == ({}, frozenset())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(begin_delete, begin_alter, id="deletion, reset"),
        pytest.param(begin_alter, begin_delete, id="reset, deletion"),
        pytest.param(begin_alter, begin_alter, id="reset, reset"),
        pytest.param(begin_delete_group, begin_alter, id="deletion of the group, reset"),
        pytest.param(begin_alter, begin_delete_group, id="reset, deletion of the group"),
        pytest.param(
            begin_delete_group,
            lambda shares: begin_alter(shares, "events"),
            id="deletion of the group, reset of another topic",
        ),
        pytest.param(
            lambda shares: begin_alter(shares, "events"),
            begin_delete_group,
            id="reset of another topic, deletion of the group",
        ),
    ],
)
def test_a_change_of_the_same_states_is_refused(
    shares: Shares, first: Begin, second: Begin
) -> None:
    """Clients repeat it; the order of the persister's answers would decide otherwise."""
    begun = first(shares)
    length = shares.world.log_length()
    code = outcome(second, shares)
    assert (code, shares.world.log_length()) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, length)
    shares.persister.answer()
    assert error_of(begun.value) is ErrorCode.NONE
    check_states(shares)
    shares.persister.delayed = False
    assert outcome(second, shares) is ErrorCode.NONE
    check_states(shares)


def test_changes_of_other_topics_are_not_refused(shares: Shares) -> None:
    deleted = begin_delete(shares)
    altered = begin_alter(shares, "events")
    shares.persister.answer()
    assert (error_of(deleted.value), error_of(altered.value)) == (ErrorCode.NONE, ErrorCode.NONE)
    assert list(shares.persister.offsets.values()) == [7, 7, 7]
    check_states(shares)


@pytest.mark.parametrize("slow", ["states", "log"])
@pytest.mark.parametrize("begin", [begin_alter, begin_delete, begin_delete_group])
def test_a_change_while_states_are_initialized_for_a_member_that_left(
    begin: Begin, slow: str
) -> None:
    shares = Shares()
    shares.persister.delayed = slow == "states"
    shares.world.log.delayed = slow == "log"
    shares.join("m")
    shares.ask(member_id="m", member_epoch=-1)
    assert outcome(begin, shares) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    shares.world.log.delayed = shares.persister.delayed = False
    shares.world.log.commit()
    shares.persister.answer()
    assert outcome(begin, shares) is ErrorCode.NONE
    check_states(shares)


def test_a_heartbeat_whose_records_are_refused_ends_its_initialization() -> None:
    shares = Shares()
    shares.world.log.errors = [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert shares.join("m").error_code != ErrorCode.NONE
    assert outcome(begin_alter, shares) is ErrorCode.NONE
    check_states(shares)


def test_a_member_initializes_nothing_while_its_group_is_deleted(shares: Shares) -> None:
    """If it has left when the deletion ends, a state of another topic would be left over."""
    deleted = begin_delete_group(shares)
    shares.join("n", "events")
    shares.ask(member_id="n", member_epoch=-1)
    for one in reversed(shares.persister.waiting):
        one()
    assert error_of(deleted.value) is ErrorCode.NONE
    assert "s" not in shares.world.shard().share.groups
    check_states(shares)
