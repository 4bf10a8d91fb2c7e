"""A decision as a value: its answer, records in front of its own, and many records in batches."""

from __future__ import annotations

import pytest

from kbroker.coordinator.runtime.records import CoordinatorRecord, encode_batch
from kbroker.coordinator.runtime.result import (
    BYTES_PER_BATCH,
    CoordinatorResult,
    Reply,
    in_batches,
)
from kbroker.model import InvariantError
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_header import BATCH_OVERHEAD
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.coordinators.groups import HeartbeatResponse
from kbroker.protocol.messages.stored.group_records import GroupMetadataKey, GroupMetadataValue

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


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [([30_000] * 20, [8, 8, 4]), ([30_000, 5, 5], [3]), ([5, 30_000, 5] * 4, [12])],
)
def test_batches_of_large_records_are_bounded_in_bytes(
    lengths: list[int], sizes: list[int]
) -> None:
    records = [
        CoordinatorRecord(GroupMetadataKey(group=f"{number:0{length}}"), None)
        for number, length in enumerate(lengths)
    ]
    batches = in_batches(records, 100)
    assert [len(batch.records) for batch in batches] == sizes
    assert [record for batch in batches for record in batch.records] == records
    written = [len(encode_batch(batch.records, 0)) for batch in batches]
    assert max(written) <= BYTES_PER_BATCH + BATCH_OVERHEAD


def test_a_record_above_the_bound_is_a_batch_by_itself() -> None:
    value = GroupMetadataValue(protocol_type="x" * 30_000, members=[])
    members = [GroupMetadataValue.MemberMetadata(assignment=bytes(BYTES_PER_BATCH))]
    large = GroupMetadataValue(members=members)
    records = [
        CoordinatorRecord(GroupMetadataKey(group="g"), each, 3) for each in (value, large, value)
    ]
    assert [list(each.records) for each in in_batches(records, 100)] == [[r] for r in records]


def test_a_reply_resolves_its_waiter() -> None:
    waiter: Deferred[Message] = Deferred()
    response = HeartbeatResponse()
    reply = Reply(waiter, response)
    assert not waiter.done
    reply.deliver()
    assert waiter.value is response
