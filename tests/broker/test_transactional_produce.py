"""Which batches of a Produce request are verified with the transaction coordinator, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.broker.transaction_gate import Verdicts
from kbroker.broker.transactional_produce import (
    keep_records,
    reverify,
    verify_partitions,
)
from kbroker.coordinator.transaction.producer import Producer
from kbroker.log.append_request import is_transactional
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.records import Record
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.produce import ProduceRequest


def batch(producer_id: int = 7, *, transactional: bool = True) -> bytearray:
    return bytearray(
        build_batch(
            [Record(0, 0, None, b"v", [])],
            producer_id=producer_id,
            producer_epoch=3,
            base_sequence=0,
            is_transactional=transactional,
        )
    )


class Gate:
    """Answers what a test says; remembers the questions."""

    def __init__(self, answer: Deferred[Verdicts] | None = None) -> None:
        self.answer: Deferred[Verdicts] = Deferred.of({}) if answer is None else answer
        self.asked: list[tuple[str, Producer, list[int], bool]] = []
        self.rechecked: list[tuple[Producer, TopicPartition, bool]] = []
        self.error = ErrorCode.INVALID_TXN_STATE

    def ask(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        *,
        adds: bool,
    ) -> Deferred[Verdicts]:
        indexes = [each.partition for each in partitions]
        self.asked.append((transactional_id, producer, indexes, adds))
        return self.answer

    def recheck(
        self, producer: Producer, partition: TopicPartition, *, adds: bool
    ) -> Callable[[], ErrorCode]:
        self.rechecked.append((producer, partition, adds))
        return lambda: self.error


def partition(index: int, *, is_leader: bool = True) -> Any:
    return SimpleNamespace(is_leader=is_leader, topic_partition=TopicPartition("t", index))


def replicas(*partitions: Any) -> Any:
    topic = SimpleNamespace(
        partitions={each.topic_partition.partition: each for each in partitions}
    )
    return SimpleNamespace(topic=lambda name: topic if name == "t" else None)


def request_of(topic: str = "t", **records: bytearray | None) -> ProduceRequest:
    kind = ProduceRequest.PartitionProduceData
    data: Any = [kind(index=int(name[1:]), records=value) for name, value in records.items()]
    return ProduceRequest(
        transactional_id="id",
        acks=-1,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=data)],
    )


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param(batch(), True, id="transactional"),
        pytest.param(batch(transactional=False), False, id="idempotent only"),
        pytest.param(batch()[:22], False, id="cut before the attributes"),
        pytest.param(bytearray(), False, id="empty"),
        pytest.param(batch()[:16] + b"\1" + batch()[17:], False, id="magic 1"),
    ],
)
def test_transactional_batches(records: bytearray, expected: bool) -> None:
    assert is_transactional(records) is expected


@pytest.mark.parametrize(("version", "adds"), [(11, False), (12, True)])
def test_all_partitions_are_verified_together(version: int, adds: bool) -> None:
    gate: Any = Gate()
    request = request_of(
        p0=batch(), p1=batch(), p2=batch(transactional=False), p3=None, p4=batch(), p9=batch()
    )
    hosted = replicas(*map(partition, range(4)), partition(4, is_leader=False))
    assert verify_partitions(hosted, gate, version, request).value == {}
    assert gate.asked == [("id", Producer(7, 3), [0, 1], adds)]


def test_no_question_without_transactional_batches_led_here() -> None:
    gate: Any = Gate()
    hosted = replicas(partition(0))
    for request in (request_of(p0=batch(transactional=False)), request_of("unknown", p0=batch())):
        assert verify_partitions(hosted, gate, 12, request).value == {}
    assert not gate.asked


def test_two_producers_in_one_request_are_refused() -> None:
    gate: Any = Gate()
    verdicts = verify_partitions(
        replicas(partition(0), partition(1)), gate, 12, request_of(p0=batch(7), p1=batch(8))
    )
    assert verdicts.value == {
        TopicPartition("t", index): ErrorCode.INVALID_PRODUCER_ID_MAPPING for index in (0, 1)
    }
    assert not gate.asked


@pytest.mark.parametrize(("version", "adds"), [(11, False), (12, True)])
def test_a_batch_appended_later_is_checked_again(version: int, adds: bool) -> None:
    gate: Any = Gate()
    partition = TopicPartition("t", 0)
    check = reverify(gate, version, partition, batch())
    assert gate.rechecked == [(Producer(7, 3), partition, adds)]
    assert check is not None and check() is ErrorCode.INVALID_TXN_STATE
    gate.error = ErrorCode.NETWORK_EXCEPTION
    assert check() is ErrorCode.NOT_ENOUGH_REPLICAS


def test_other_batches_are_not_verified_again() -> None:
    gate: Any = Gate()
    for records in (batch(transactional=False), batch()[:40]):
        assert reverify(gate, 12, TopicPartition("t", 0), records) is None
    assert not gate.rechecked


def test_kept_records_are_copies() -> None:
    received = batch()
    request = request_of(p0=memoryview(received), p1=None)  # type: ignore[arg-type]  # as decoded
    assert keep_records(request) == len(received)
    kept = request.topic_data[0].partition_data[0].records
    received[:] = bytes(len(received))
    assert kept == batch()
