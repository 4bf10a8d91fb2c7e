"""Positions and fetched bytes: what is given, what is left out, where it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.client import consumer as consumer_module
from kbroker.client.cluster import READ_COMMITTED, READ_UNCOMMITTED, Client
from kbroker.client.consumer import ConsumedRecord, Consumer, ConsumerConfig, decode_fetched
from kbroker.client.producer import Producer
from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchResponse

Run = Callable[[Callable[[Any], Any]], None]
GOLDEN = Path(__file__).parents[1] / "data" / "kafka-4.3.1" / "data"
PARTITION = TopicPartition("events", 0)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "ERROR_PAUSE_S", 0.0)


def answer(records: bytes, *aborted: tuple[int, int]) -> FetchResponse.PartitionData:
    return FetchResponse.PartitionData(
        records=records,
        aborted_transactions=[
            FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
            for producer_id, first_offset in aborted
        ],
    )


def batch(first: int, count: int, producer_id: int = -1) -> bytearray:
    return build_batch(
        [(first, None, b"%d" % offset, []) for offset in range(first, first + count)],
        base_offset=first,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=first if producer_id >= 0 else -1,
        is_transactional=producer_id >= 0,
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytearray:
    return build_end_transaction_marker(
        commit=commit,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=0,
        base_offset=offset,
    )


@pytest.mark.parametrize("position", range(12))
def test_from_every_offset_inside_a_batch(position: int) -> None:
    data = answer(bytes(batch(0, 5) + batch(5, 1) + batch(8, 3)))
    records, following = decode_fetched(PARTITION, data, position)
    expected = [offset for offset in (0, 1, 2, 3, 4, 5, 8, 9, 10) if offset >= position]
    assert [record.offset for record in records] == expected
    assert following == max(11, position)


def test_a_batch_cut_short_is_left_for_the_next_fetch() -> None:
    data = bytes(batch(0, 5) + batch(5, 5))
    for size in range(len(batch(0, 5)), len(data)):
        records, following = decode_fetched(PARTITION, answer(data[:size]), 0)
        assert (len(records), following) == (5, 5)
    assert decode_fetched(PARTITION, answer(b""), 3) == ([], 3)


def test_compacted_gaps_are_passed() -> None:
    emptied = build_batch([], base_offset=4, last_offset_delta=9)
    assert decode_fetched(PARTITION, answer(bytes(emptied)), 4) == ([], 14)


def test_a_wrong_crc_is_not_given_out() -> None:
    data = batch(0, 3)
    data[-1] ^= 1
    with pytest.raises(KafkaError) as caught:
        decode_fetched(PARTITION, answer(bytes(data)), 0)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


INTERLEAVED = (
    batch(0, 1, producer_id=1)
    + batch(1, 1, producer_id=2)
    + batch(2, 1)
    + marker(3, 1, commit=False)
    + batch(4, 1, producer_id=1)
    + marker(5, 2, commit=True)
    + marker(6, 1, commit=True)
)


@pytest.mark.parametrize(
    ("isolation_level", "expected"),
    [(READ_COMMITTED, [1, 2, 4]), (READ_UNCOMMITTED, [0, 1, 2, 4])],
)
def test_aborted_transactions(isolation_level: int, expected: list[int]) -> None:
    data = answer(bytes(INTERLEAVED), (1, 0))
    records, following = decode_fetched(PARTITION, data, 0, isolation_level)
    assert [record.offset for record in records] == expected
    assert following == 7


def test_an_abort_from_before_the_answer_counts() -> None:
    data = answer(bytes(batch(5, 2, producer_id=1) + marker(7, 1, commit=False)), (1, 0))
    assert decode_fetched(PARTITION, data, 5, READ_COMMITTED) == ([], 8)


def test_an_answer_that_begins_with_the_marker_of_an_abort() -> None:
    data = answer(bytes(marker(7, 1, commit=False) + batch(8, 2, producer_id=1)), (1, 0))
    records, following = decode_fetched(PARTITION, data, 7, READ_COMMITTED)
    assert ([record.offset for record in records], following) == ([8, 9], 10)


@pytest.mark.parametrize("name", ["codec-none-0", "codec-snappy-0", "compact-gzip-0"])
def test_logs_of_kafka(name: str) -> None:
    log = min((GOLDEN / name).glob("*.log"))
    data = log.read_bytes()
    records, following = decode_fetched(PARTITION, answer(data), 0)
    headers = [header for _, header in iter_batches(data)]
    assert len(records) == sum(header.record_count for header in headers if not header.is_control)
    assert following == headers[-1].next_offset
    assert records[0].value == next(iter(iter_records(data, headers[0]))).value


def test_what_was_produced_is_consumed(run: Run) -> None:
    async def test(broker: Any) -> None:
        async with Client(broker.address) as client:
            async with Producer(client) as producer:
                for index in range(20):
                    await producer.send("events", b"%d" % index, b"k", partition=index % 2)
            consumer = Consumer(client)
            await consumer.assign_topics(["events"])
            records = await consumer.poll()
            assert sorted(int(record.value or b"") for record in records) == list(range(20))
            assert consumer.positions == {PARTITION: 10, TopicPartition("events", 1): 10}
            assert await consumer.poll() == []
            assert await consumer.end_offsets() == consumer.positions
            await consumer.seek({PARTITION: 8})
            assert [record.offset for record in await consumer.poll()] == [8, 9]
            consumer.close()

    run(test)


def test_iterating(run: Run) -> None:
    async def test(broker: Any) -> None:
        async with Client(broker.address) as client:
            async with Producer(client) as producer:
                await producer.send("events", b"only", partition=0)
            consumer = Consumer(client)
            await consumer.assign({PARTITION: "earliest"})
            async for record in consumer:
                assert record.value == b"only"
                break

    run(test)


@pytest.mark.parametrize(
    ("code", "attempts"),
    [
        pytest.param(ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, id="moved"),
        pytest.param(ErrorCode.UNKNOWN_TOPIC_ID, 2, id="unknown id"),
        pytest.param(ErrorCode.OFFSET_OUT_OF_RANGE, 2, id="out of range"),
    ],
)
def test_errors_that_pass(run: Run, code: ErrorCode, attempts: int) -> None:
    async def test(broker: Any) -> None:
        def failing(request: Any, version: int) -> FetchResponse:
            response = broker.on_fetch(request, version)
            response.responses[0].partitions[0].error_code = code
            response.responses[0].partitions[0].records = b""
            return response  # type: ignore[no-any-return]  # the fake is untyped here

        async with Client(broker.address) as client:
            async with Producer(client) as producer:
                await producer.send("events", b"v", partition=0)
            broker.script(ApiKey.FETCH, failing)
            consumer = Consumer(client, ConsumerConfig(auto_offset_reset="earliest"))
            await consumer.assign({PARTITION: 0})
            polled = [await consumer.poll() for _ in range(attempts)]
            assert [len(records) for records in polled] == [0, 1]

    run(test)


def test_out_of_range_without_a_reset(run: Run) -> None:
    async def test(broker: Any) -> None:
        partition = FetchResponse.PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        topic = FetchResponse.FetchableTopicResponse(
            topic="events", topic_id=bytes(range(16)), partitions=[partition]
        )
        broker.script(ApiKey.FETCH, FetchResponse(responses=[topic]))
        async with Client(broker.address) as client:
            consumer = Consumer(client, ConsumerConfig(auto_offset_reset="none"))
            await consumer.assign({PARTITION: 99})
            with pytest.raises(KafkaError) as caught:
                await consumer.poll()
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    run(test)


def test_records_before_an_error_are_given_out(run: Run) -> None:
    async def test(broker: Any) -> None:
        def failing(request: Any, version: int) -> FetchResponse:
            response = broker.on_fetch(request, version)
            response.responses[0].partitions[1].error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            response.responses[0].partitions[1].records = b""
            return response  # type: ignore[no-any-return]  # the fake is untyped here

        async with Client(broker.address) as client:
            async with Producer(client) as producer:
                await producer.send("events", b"v", partition=0)
            broker.script(ApiKey.FETCH, failing)
            broker.script(ApiKey.FETCH, failing)
            consumer = Consumer(client, ConsumerConfig(auto_offset_reset="none"))
            await consumer.assign({PARTITION: 0, TopicPartition("events", 1): 0})
            assert [record.value for record in await consumer.poll()] == [b"v"]
            with pytest.raises(KafkaError, match="events-1 has no offset"):
                await consumer.poll()
            assert consumer.positions[PARTITION] == 1

    run(test)


def test_records_of_one_leader_are_given_out_while_another_fails() -> None:
    record = ConsumedRecord("events", 0, 0, 0, None, b"v", ())
    unreachable = KafkaError(ErrorCode.NETWORK_EXCEPTION, "refused")
    assert consumer_module._records_of([[record], unreachable]) == [record]
    with pytest.raises(KafkaError, match="refused"):
        consumer_module._records_of([[], unreachable])
    with pytest.raises(asyncio.CancelledError):
        consumer_module._records_of([[record], asyncio.CancelledError()])
