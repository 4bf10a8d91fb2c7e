"""AlterShareGroupOffsets: very many partitions are examined in steps and initialized in the last;
members that join before it is answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.coordinator.group import share_service
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.share_groups import AlterShareGroupOffsetsRequest
from tests.coordinator.group.share.shares import (
    Shares,
    begin_alter,
    partitions_of,
    settle,
)
from tests.coordinator.group.share.test_deleted_offsets import answer
from tests.coordinator.simulation import Context

STEP = 8
PARTITIONS = 50
Topic = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
Partition = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shares]:
    """With an empty group that has states of `other`."""
    monkeypatch.setattr(share_service, "STEP_TOPICS", STEP)
    made = Shares()
    settle(made)
    made.ask(member_id="m", member_epoch=-1)
    yield made


def steps_of(shares: Shares, partitions: int = PARTITIONS, group_id: str = "s") -> Any:
    of = [Partition(partition_index=index, start_offset=7) for index in range(partitions)]
    request = AlterShareGroupOffsetsRequest(
        group_id=group_id, topics=[Topic(topic_name="other", partitions=of)]
    )
    return shares.coordinator.alter_offsets(Context(0), request)


def test_partitions_are_examined_in_steps(shares: Shares) -> None:
    before = dict(shares.persister.offsets)
    steps = steps_of(shares)
    for _ in range((PARTITIONS + 1) // STEP):
        next(steps)
        assert shares.persister.offsets == before
    codes = [one.error_code for one in answer(steps).responses[0].partitions]
    assert len(codes) == PARTITIONS
    assert codes[0] == ErrorCode.NONE
    assert codes[-1] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert shares.persister.offsets != before


def test_a_member_that_joins_during_a_pause(shares: Shares) -> None:
    before = dict(shares.persister.offsets)
    steps = steps_of(shares)
    next(steps)
    shares.join("n")
    with pytest.raises(KafkaError) as raised:
        answer(steps)
    assert raised.value.code is ErrorCode.NON_EMPTY_GROUP
    assert shares.persister.offsets == before


@pytest.mark.parametrize("partitions", [1, PARTITIONS])
def test_an_idle_group_of_another_type_is_not_altered(shares: Shares, partitions: int) -> None:
    host = shares.coordinator._named_host("classic")
    host.shard.classic.ensure("classic")
    with pytest.raises(KafkaError) as raised:
        answer(steps_of(shares, partitions, "classic"))
    assert raised.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert raised.value.message == "Group classic is not a share group."
    assert "classic" in host.shard.classic
    assert "classic" not in host.shard.share


def codes_of(response: Any) -> list[ErrorCode]:
    return [ErrorCode(one.error_code) for one in response.responses[0].partitions]


@pytest.mark.parametrize("slow", ["states", "log"])
def test_a_member_that_joins_before_the_answer_resets_nothing(slow: str) -> None:
    """It gets the partitions once their states have the requested offsets."""
    shares = Shares()
    shares.persister.delayed = slow == "states"
    shares.world.log.delayed = slow == "log"
    altered = begin_alter(shares)
    assert not altered.done
    joined = shares.join("n")
    shares.world.log.delayed = False
    shares.world.log.commit()
    shares.persister.answer()
    assert codes_of(altered.value) == [ErrorCode.NONE] * 3
    assert set(shares.persister.offsets.values()) == {7}
    shares.world.timers.advance(1_000)
    epoch = joined.member_epoch or shares.group().current("n").member_epoch
    later = shares.ask(member_id="n", member_epoch=epoch)
    assert partitions_of(later) == [0, 1, 2]
    assert not shares.persister.waiting
    assert set(shares.persister.offsets.values()) == {7}


def test_a_member_initializes_what_a_failed_reset_did_not() -> None:
    shares = Shares()
    shares.persister.delayed = True
    shares.persister.errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    altered = begin_alter(shares)
    epoch = shares.join("n").member_epoch
    shares.persister.answer()
    assert codes_of(altered.value) == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
    shares.persister.delayed = False
    shares.ask(member_id="n", member_epoch=epoch)
    assert list(shares.persister.offsets.values()) == [-1, -1, -1]
