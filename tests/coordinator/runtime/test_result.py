"""A decision as a value: its answer, records in front of its own, and many records in batches."""

from __future__ import annotations

import pytest

from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import CoordinatorResult, Reply, in_batches
from kbroker.model import InvariantError
from kbroker.ports import Deferred
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.coordinators.groups import HeartbeatResponse
from kbroker.protocol.messages.stored.group_records import GroupMetadataKey

RECORDS = [CoordinatorRecord(GroupMetadataKey(group=name), None) for name in "abcde"]


def test_the_answer_of_a_decision_that_has_one() -> None:
    assert CoordinatorResult([], "yes").answer == "yes"
    waits: CoordinatorResult[str] = CoordinatorResult([], Deferred())
    with pytest.raises(InvariantError):
        _ = waits.answer


def test_records_in_front_are_in_the_same_batch() -> None:
    def on_written(now_ms: int) -> list[CoordinatorResult[object]]:
        return []

    result = CoordinatorResult(RECORDS[1:2], "yes", on_written=on_written)
    both = result.after(RECORDS[:1])
    assert list(both.records) == RECORDS[:2]
    assert (both.response, both.on_written) == ("yes", on_written)
    assert result.after([]) is result
    assert list(result.records) == RECORDS[1:2]


@pytest.mark.parametrize(
    ("count", "sizes"), [(0, []), (1, [1]), (2, [2]), (3, [2, 1]), (5, [2, 2, 1])]
)
def test_batches_of_many_records(count: int, sizes: list[int]) -> None:
    batches = in_batches(RECORDS[:count], 2)
    assert [len(batch.records) for batch in batches] == sizes
    assert [record for batch in batches for record in batch.records] == RECORDS[:count]


def test_a_reply_resolves_its_waiter() -> None:
    waiter: Deferred[Message] = Deferred()
    response = HeartbeatResponse()
    reply = Reply(waiter, response)
    assert not waiter.done
    reply.deliver()
    assert waiter.value is response
