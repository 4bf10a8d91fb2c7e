"""Batches of a task: sequences without a gap, sizes within bounds, records too large."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.records import iter_records
from spark_jobs.exactly_once.batches import BatchBuffer, SealedBatch
from spark_jobs.exactly_once.blocks import block_of
from spark_jobs.exactly_once.errors import Failure, TaskFailure
from spark_jobs.exactly_once.grant import Grant, WriterLimits
from spark_jobs.exactly_once.records import MAX_SEQUENCE
from spark_jobs.exactly_once.topics import TargetTopic
from spark_jobs.wire.client import ClusterAddress

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
GRANT = Grant(
    address=ClusterAddress("localhost"),
    transactional_id="spark-q",
    producer_id=1000,
    producer_epoch=4,
    tokens=TopicPartition("__spark_batches", 0),
    claims_from=0,
    topics={"t": TargetTopic("t", 2, None)},
    limits=WriterLimits(batch_bytes=400, buffer_bytes=1000),
)


def fill(buffer: BatchBuffer, partition: TopicPartition, values: list[bytes]) -> list[SealedBatch]:
    sealed: list[SealedBatch] = []
    for number, value in enumerate(values):
        sealed += buffer.add(partition, block_of([(number, b"k", value, [(b"h", None)])]))
    return sealed


def values_in(batches: list[SealedBatch]) -> list[bytes | None]:
    return [record.value for batch in batches for record in iter_records(batch.data)]


def check_sequences(batches: list[SealedBatch], start: int = 0) -> None:
    following = start
    for batch in batches:
        header = read_batch_header(batch.data)
        assert (header.base_sequence, header.record_count) == (following, batch.record_count)
        assert (header.producer_id, header.producer_epoch) == (1000, 4)
        assert header.is_transactional
        assert header.base_sequence == batch.base_sequence
        following = (following + batch.record_count) & MAX_SEQUENCE


@pytest.mark.parametrize("codec", list(Compression))
def test_each_partition_has_sequences_of_its_own(codec: Compression) -> None:
    buffer = BatchBuffer(replace(GRANT, compression=codec))
    values = [b"%d" % number * 10 for number in range(100)]
    sealed: list[SealedBatch] = []
    for number, value in enumerate(values):
        partition = (P0, P1)[number % 3 == 0]
        sealed += buffer.add(partition, block_of([(number, None, value, ())]))
    sealed += buffer.seal_all()
    for partition, mine in ((P0, [v for i, v in enumerate(values) if i % 3]), (P1, values[::3])):
        batches = [batch for batch in sealed if batch.topic_partition == partition]
        check_sequences(batches)
        assert values_in(batches) == mine
        assert len(batches) > 3
        assert read_batch_header(batches[0].data).codec is codec
    assert buffer.record_counts() == {P0: 66, P1: 34}
    assert buffer.seal_all() == []


def test_batches_and_the_whole_buffer_are_bounded() -> None:
    buffer = BatchBuffer(GRANT)
    random = Random(3)
    waiting = 0
    for number in range(500):
        partition = TopicPartition("t", number % 2)
        value = random.randbytes(random.randrange(150))
        waiting += len(value)
        for batch in buffer.add(partition, block_of([(number, None, value, ())])):
            assert len(batch.data) <= 400 + 61
            waiting -= sum(len(record.value or b"") for record in iter_records(batch.data))
        assert waiting <= 1000
    assert len(buffer.seal_all()) == 2


def test_sequences_wrap() -> None:
    buffer = BatchBuffer(GRANT)
    fill(buffer, P0, [b"a"])
    buffer._open[P0].base_sequence = MAX_SEQUENCE - 1
    fill(buffer, P0, [b"b", b"c", b"d"])
    batches = buffer.seal_all()
    assert [batch.base_sequence for batch in batches] == [MAX_SEQUENCE - 1]
    fill(buffer, P0, [b"e"])
    assert [batch.base_sequence for batch in buffer.seal_all()] == [2]


def test_a_batch_above_the_topics_limit_is_split() -> None:
    topics = {"t": TargetTopic("t", 2, 250)}
    buffer = BatchBuffer(replace(GRANT, topics=topics))
    batches = fill(buffer, P0, [b"%d" % number * 20 for number in range(40)]) + buffer.seal_all()
    check_sequences(batches)
    assert values_in(batches) == [b"%d" % number * 20 for number in range(40)]
    assert max(len(batch.data) for batch in batches) <= 250


def test_a_batch_that_the_broker_refuses_is_split() -> None:
    buffer = BatchBuffer(GRANT)
    fill(buffer, P0, [b"a", b"b", b"c"])
    (whole,) = buffer.seal_all()
    first, second = buffer.split(whole)
    check_sequences([first, second])
    assert values_in([first, second]) == [b"a", b"b", b"c"]
    assert next(iter_records(second.data)).headers == [(b"h", None)]
    with pytest.raises(TaskFailure, match=r"too large for t-0: raise the topic's max.message"):
        buffer.split(first)


def test_a_record_that_the_topic_does_not_take() -> None:
    topics = {"t": TargetTopic("t", 2, 1000)}
    buffer = BatchBuffer(replace(GRANT, topics=topics))
    with pytest.raises(TaskFailure) as caught:
        fill(buffer, P1, [b"small", b"x" * 2000, b"small"])
    assert caught.value.failure is Failure.FATAL
    assert "a record with key b'k', timestamp 1, value of 2000 bytes" in caught.value.message
    assert "raise max.message.bytes=1000" in caught.value.message
    assert "\n" not in caught.value.message


def test_blocks_are_cut_as_single_records_are() -> None:
    """The same batches, whether records come one by one or many at once."""
    random = Random(8)
    records = [(number, None, random.randbytes(random.randrange(300)), ()) for number in range(300)]
    one_by_one, at_once = BatchBuffer(GRANT), BatchBuffer(GRANT)
    singles = [batch for each in records for batch in one_by_one.add(P0, block_of([each]))]
    singles += one_by_one.seal_all()
    together: list[SealedBatch] = []
    for start, end in ((0, 1), (1, 120), (120, 123), (123, 300)):
        together += at_once.add(P0, block_of(records[start:end]))
    together += at_once.seal_all()
    assert [bytes(batch.data) for batch in together] == [bytes(batch.data) for batch in singles]
    check_sequences(together)
    assert at_once.record_counts() == {P0: 300}
