"""DeleteShareGroupOffsets of very many topics: looked at in steps, deleted in the last one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.coordinator.group import share_service
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.share_groups import DeleteShareGroupOffsetsRequest
from tests.coordinator.group.share.shares import Shares, settle
from tests.coordinator.simulation import Context

UNKNOWN = 100
STEP = 8


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shares]:
    """With an empty group that has states of `other`."""
    monkeypatch.setattr(share_service, "STEP_TOPICS", STEP)
    made = Shares()
    settle(made)
    made.ask(member_id="m", member_epoch=-1)
    assert made.persister.offsets
    yield made


def steps_of(shares: Shares) -> Any:
    kind = DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic
    names = ["other", *(f"unknown{index}" for index in range(UNKNOWN)), "events", "other"]
    topics = [kind(topic_name=name) for name in names]
    return shares.coordinator.delete_offsets(
        Context(0), DeleteShareGroupOffsetsRequest(group_id="s", topics=topics)
    )


def answer(steps: Any) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
            return found.value if isinstance(found, Deferred) else found


def test_topics_are_looked_at_in_steps(shares: Shares) -> None:
    steps = steps_of(shares)
    for _ in range((UNKNOWN + 3) // STEP):
        next(steps)
        assert shares.persister.offsets
    response = answer(steps)
    assert not shares.persister.offsets
    codes = [topic.error_code for topic in response.responses]
    refused = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * (UNKNOWN + 1)
    assert codes == [ErrorCode.NONE, *refused, ErrorCode.NONE]


def test_states_that_were_deleted_during_a_pause(shares: Shares) -> None:
    first, second = steps_of(shares), steps_of(shares)
    for _ in range(3):
        next(first)
    answer(second)
    response = answer(first)
    assert response.responses[-1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert response.responses[-1].error_message == "The group has no offset of this topic."


def test_a_member_that_joins_during_a_pause(shares: Shares) -> None:
    steps = steps_of(shares)
    next(steps)
    shares.join("n")
    with pytest.raises(KafkaError) as raised:
        answer(steps)
    assert raised.value.code is ErrorCode.NON_EMPTY_GROUP
    assert shares.persister.offsets
