"""The producer against a scripted broker: partitions, order, retries, idempotence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.client import cluster
from kbroker.client.cluster import Client
from kbroker.client.producer import Producer, ProducerConfig, murmur2, partition_for_key
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.batch_header import iter_batches, read_batch_header
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.produce import ProduceResponse

Run = Callable[[Callable[[Any], Any]], None]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "FIRST_BACKOFF_S", 0.0)
    monkeypatch.setattr(cluster, "MAX_BACKOFF_S", 0.0)


def stored(broker: Any, partition: int) -> list[bytes | None]:
    data = broker.logs[partition]
    return [
        record.value
        for position, header in iter_batches(data)
        for record in iter_records(memoryview(data)[position : position + header.size_bytes])
    ]


def failing(code: ErrorCode) -> Callable[[Any, int], ProduceResponse]:
    def answer(request: Any, version: int) -> ProduceResponse:
        partition = ProduceResponse.PartitionProduceResponse(
            index=request.topic_data[0].partition_data[0].index, error_code=code
        )
        return ProduceResponse(
            responses=[ProduceResponse.TopicProduceResponse(partition_responses=[partition])]
        )

    return answer


@pytest.mark.parametrize(
    ("key", "expected"),
    [  # what Kafka's own Utils.murmur2 gives
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
    ],
)
def test_murmur2_as_in_java(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF
    assert partition_for_key(key, 7) == (expected & 0x7FFFFFFF) % 7


@pytest.mark.parametrize("compression", list(Compression))
def test_records_arrive_in_order(run: Run, compression: Compression) -> None:
    async def test(broker: Any) -> None:
        config = ProducerConfig(compression=compression, batch_bytes=400, linger_ms=0)
        async with Client(broker.address) as client, Producer(client, config) as producer:
            futures = [
                await producer.send("events", b"%d" % index, partition=0) for index in range(100)
            ]
            await producer.flush()
            assert [future.result().offset for future in futures] == list(range(100))
        assert stored(broker, 0) == [b"%d" % index for index in range(100)]

    run(test)


def test_keys_choose_partitions_and_nothing_is_lost(run: Run) -> None:
    async def test(broker: Any) -> None:
        async with Client(broker.address) as client, Producer(client) as producer:
            for index in range(50):
                await producer.send("events", b"v", key=b"key %d" % index)
            sent = await producer.send_and_wait(
                "events", None, headers=[(b"h", None)], timestamp_ms=5
            )
            assert (sent.topic, sent.timestamp) == ("events", 5)
        expected = sum(partition_for_key(b"key %d" % index, 2) for index in range(50))
        assert len(stored(broker, 0)) + len(stored(broker, 1)) == 51
        assert len(stored(broker, 1)) in (expected, expected + 1)

    run(test)


def test_records_without_a_key_go_round(run: Run) -> None:
    async def test(broker: Any) -> None:
        config = ProducerConfig(linger_ms=0)
        async with Client(broker.address) as client, Producer(client, config) as producer:
            partitions = [
                (await producer.send_and_wait("events", b"v")).partition for _ in range(4)
            ]
        assert partitions == [0, 1, 0, 1]

    run(test)


def test_batches_leave_while_a_caller_goes_on_sending(run: Run) -> None:
    """Who sends in a loop that awaits nothing else does not fill the whole buffer first, and can be
    cancelled.
    """

    async def test(broker: Any) -> None:
        config = ProducerConfig(linger_ms=0, batch_bytes=1000)
        async with Client(broker.address) as client, Producer(client, config) as producer:
            await producer.send_and_wait("events", b"first", partition=0)
            sent = [await producer.send("events", b"v" * 100, partition=0) for _ in range(2000)]
            assert sent[0].done()
            assert not sent[-1].done()

            async def endless() -> None:
                while True:
                    await producer.send("events", b"v" * 100, partition=1)

            sending = asyncio.create_task(endless())
            await asyncio.sleep(0)
            sending.cancel()
            await asyncio.wait({sending}, timeout=10)
            assert sending.cancelled()
        assert len(stored(broker, 0)) == 2001

    run(test)


def test_retriable_errors_are_tried_again(run: Run) -> None:
    async def test(broker: Any) -> None:
        broker.script(
            ApiKey.PRODUCE,
            failing(ErrorCode.NOT_LEADER_OR_FOLLOWER),
            failing(ErrorCode.NOT_ENOUGH_REPLICAS),
            lambda request, version: broker.drop_connections(),
        )
        async with Client(broker.address) as client, Producer(client) as producer:
            sent = await producer.send_and_wait("events", b"v", partition=0)
        assert sent.offset == 0
        assert len(broker.asked(ApiKey.PRODUCE)) == 4
        assert stored(broker, 0) == [b"v"]

    run(test)


def test_a_broker_may_restart_meanwhile(run: Run) -> None:
    """The only broker does not answer for a while, which is no error of an address."""

    async def test(broker: Any) -> None:
        config = ProducerConfig(linger_ms=0, delivery_timeout_s=30)
        async with Client(broker.address) as client, Producer(client, config) as producer:
            await producer.send_and_wait("events", b"before", partition=0)
            await broker.__aexit__(None, None, None)
            sending = asyncio.create_task(
                producer.send_and_wait("events", b"meanwhile", partition=0)
            )
            await asyncio.sleep(0.2)
            assert not sending.done()
            await broker.__aenter__()  # at the same port
            assert (await sending).offset == 1

    run(test)


def test_other_errors_go_to_the_records_and_the_producer_lives_on(run: Run) -> None:
    async def test(broker: Any) -> None:
        broker.script(ApiKey.PRODUCE, failing(ErrorCode.MESSAGE_TOO_LARGE))
        async with Client(broker.address) as client, Producer(client) as producer:
            with pytest.raises(KafkaError) as caught:
                await producer.send_and_wait("events", b"v", partition=0)
            assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
            assert (await producer.send_and_wait("events", b"w", partition=0)).offset == 0

    run(test)


def test_idempotence_keeps_the_sequence_of_a_retried_batch(run: Run) -> None:
    async def test(broker: Any) -> None:
        config = ProducerConfig(idempotent=True, linger_ms=0)
        async with Client(broker.address) as client, Producer(client, config) as producer:
            await producer.send_and_wait("events", b"0", partition=0)
            broker.script(ApiKey.PRODUCE, failing(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
            await producer.send_and_wait("events", b"1", partition=0)
            await producer.send_and_wait("events", b"2", partition=0)
        headers = [
            read_batch_header(request.topic_data[0].partition_data[0].records)
            for request in broker.asked(ApiKey.PRODUCE)
        ]
        assert [header.base_sequence for header in headers] == [0, 1, 1, 2]
        assert {(header.producer_id, header.producer_epoch) for header in headers} == {(77, 3)}

    run(test)


def test_acks_0_waits_for_no_answer(run: Run) -> None:
    async def test(broker: Any) -> None:
        config = ProducerConfig(acks=0, linger_ms=0)
        async with Client(broker.address) as client, Producer(client, config) as producer:
            sent = await producer.send_and_wait("events", b"v", partition=0)
            assert sent.offset == -1
            await client.metadata([])  # on the same connection, so the broker has seen the record
        assert stored(broker, 0) == [b"v"]

    run(test)


def test_a_full_buffer_holds_the_sender_back(run: Run) -> None:
    async def test(broker: Any) -> None:
        config = ProducerConfig(buffer_bytes=1000, linger_ms=0)
        async with Client(broker.address) as client, Producer(client, config) as producer:
            for index in range(20):
                await producer.send("events", bytes(400), partition=index % 2)
                assert producer._buffered_bytes <= 1000
        assert len(stored(broker, 0)) == len(stored(broker, 1)) == 10

    run(test)


@pytest.mark.parametrize(("topic", "partition"), [("events", 2), ("nothing", None)])
def test_partitions_that_are_not_there(run: Run, topic: str, partition: int | None) -> None:
    async def test(broker: Any) -> None:
        client = Client(broker.address, timeout_s=1.0)
        async with client, Producer(client) as producer:
            with pytest.raises(KafkaError) as caught:
                await producer.send(topic, b"v", partition=partition)
            assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(test)


def test_leaving_by_an_exception_does_not_wait(run: Run) -> None:
    async def test(broker: Any) -> None:
        broker.script(ApiKey.PRODUCE, None)
        with pytest.raises(ZeroDivisionError):
            async with Client(broker.address) as client, Producer(client) as producer:
                future = await producer.send("events", b"v", partition=0)
                raise ZeroDivisionError
        assert future.cancelled()

    run(test)
