"""Appends to a partition: in the call where possible, otherwise continued where the log stopped."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.log import validator
from kbroker.log.append_request import AppendRequest
from kbroker.log.results import Appended, Refused
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import ErrorCode
from tests.replication.waiting_batches import large, middling, opened_anew, value
from tests.replication.world import NOW_MS, TOPIC, World, batch
from tests.sim.offload import HeldOffload

KEY = TopicPartition(TOPIC, 0)


@pytest.fixture
def validations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the size of whatever is validated."""
    sizes: list[int] = []
    validate = validator.validate_batches

    def counted(batches: bytearray, **options: Any) -> validator.ValidatedBatches:
        sizes.append(len(batches))
        return validate(batches, **options)

    monkeypatch.setattr("kbroker.log.appending.validate_batches", counted)
    return sizes


def run_all(held: HeldOffload) -> None:
    while held.held:
        held.run()


def test_a_batch_that_waits_for_a_segment_is_validated_once(
    world: World, validations: list[int]
) -> None:
    held = opened_anew(world, segment_bytes=str(1 << 20))
    sent = [middling(number) for number in range(5)]
    answers = [world.append(batches=one) for one in sent]
    run_all(held)
    assert [value(answer).base_offset for answer in answers] == list(range(5))
    assert len(validations) <= len(sent), "the first branch validates none"
    assert len(world.logs.get(KEY).segments) == 3  # type: ignore[union-attr]  # hosted


def test_a_batch_that_a_thread_checks_is_validated_once(
    world: World, validations: list[int]
) -> None:
    held = opened_anew(world, compression_type="zstd", segment_bytes=str(1 << 20))
    sent = [large(), batch(1), large(), batch(2)]
    sizes = [len(one) for one in sent]
    answers = [world.append(batches=one) for one in sent]
    assert validations == []
    run_all(held)
    assert [value(answer).base_offset for answer in answers] == [0, 10, 11, 21]
    assert validations == sizes, "each once, in order"


def test_checked_in_a_thread_then_a_new_segment_validated_once(
    world: World, validations: list[int]
) -> None:
    held = opened_anew(world, segment_bytes=str(1 << 20), cleanup_policy="compact")
    answers = [world.append(batches=middling()) for _ in range(4)]
    run_all(held)
    assert [value(answer).base_offset for answer in answers] == [0, 1, 2, 3]
    assert len(validations) == 4
    assert world.logs.get(KEY).segments.base_offsets == [0, 2]  # type: ignore[union-attr]  # hosted


def test_an_outcome_is_a_value_of_the_log(world: World) -> None:
    world.host(0)
    assert world.append() == Appended(0, 0, 0)
    cut = value(world.append(batches=batch(1)[:30]))
    assert isinstance(cut, Refused)
    assert (cut.error, cut.base_offset) == (ErrorCode.INVALID_RECORD, -1)


def test_a_transactional_batch_of_a_plain_request_is_refused_before_anything_else(
    world: World,
) -> None:
    sent = build_batch(
        [(NOW_MS, None, b"", [])], producer_id=7, producer_epoch=0, base_sequence=0,
        is_transactional=True,
    )  # fmt: skip
    request = AppendRequest(-1, 1000, NOW_MS, 12, 2, None)
    led = world.host(0)
    followed = world.host(1, leader=2, replicas=(1, 2))
    for partition in (led, followed):
        outcome = world.replicas.append_to(partition, bytearray(sent), request)
        assert not isinstance(outcome, Deferred)
        assert outcome.error is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (outcome.log_start_offset, outcome.error_message) == (-1, None)
    assert led.traffic is followed.traffic, "that of the topic"
    assert (led.traffic.produces, led.traffic.failed_produces) == (2, 0)
    assert led.log.log_end_offset == 0


@pytest.mark.parametrize("acks", [-2, 2, 100])
def test_acks_that_kafka_does_not_know(world: World, acks: int) -> None:
    partition = world.host(0)
    assert value(world.append(acks=acks)).error is ErrorCode.INVALID_REQUIRED_ACKS
    assert partition.log.log_end_offset == 0
