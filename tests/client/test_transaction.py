"""A producer's transaction against a scripted broker: requests, their order, and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.client import cluster
from kbroker.client.cluster import Client
from kbroker.client.producer import Producer, ProducerConfig
from kbroker.client.transaction import Transaction
from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.transactions import (
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    InitProducerIdResponse,
)

Run = Callable[[Callable[[Any], Any]], None]
CONFIG = ProducerConfig(transactional_id="tx", transaction_timeout_ms=7000, linger_ms=0)
OF_TRANSACTIONS = {
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.PRODUCE,
    ApiKey.END_TXN,
}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "FIRST_BACKOFF_S", 0.0)
    monkeypatch.setattr(cluster, "MAX_BACKOFF_S", 0.0)


def asked(broker: Any) -> list[tuple[ApiKey, int]]:
    """The requests of transactions, and their versions, in order."""
    return [(ApiKey(key), version) for key, version, _ in broker.requests if key in OF_TRANSACTIONS]


def partition_error(code: ErrorCode) -> AddPartitionsToTxnResponse:
    result = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
        partition_index=0, partition_error_code=code
    )
    topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
        name="events", results_by_partition=[result]
    )
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])


def test_requests_and_their_order(run: Run) -> None:
    """A partition is added once, before its first batch; the versions are those of a client before
    transaction.version 2.
    """

    async def test(broker: Any) -> None:
        async with Client(broker.address) as client, Producer(client, CONFIG) as producer:
            await producer.send_and_wait("events", b"a", partition=0)
            await producer.send_and_wait("events", b"b", partition=0)
            await producer.commit()
        assert asked(broker) == [
            (ApiKey.INIT_PRODUCER_ID, 5),
            (ApiKey.ADD_PARTITIONS_TO_TXN, 3),
            (ApiKey.PRODUCE, 11),
            (ApiKey.PRODUCE, 11),
            (ApiKey.END_TXN, 4),
        ]
        (init,) = broker.asked(ApiKey.INIT_PRODUCER_ID)
        assert (init.transactional_id, init.transaction_timeout_ms) == ("tx", 7000)
        (added,) = broker.asked(ApiKey.ADD_PARTITIONS_TO_TXN)
        identity = (added.v3_and_below_producer_id, added.v3_and_below_producer_epoch)
        assert identity == (77, 3)
        assert {each.transactional_id for each in broker.asked(ApiKey.PRODUCE)} == {"tx"}
        header = read_batch_header(bytes(broker.logs[0]))
        assert (header.is_transactional, header.producer_id, header.base_sequence) == (True, 77, 0)
        (end,) = broker.asked(ApiKey.END_TXN)
        assert (end.transactional_id, end.producer_id, end.committed) == ("tx", 77, True)

    run(test)


@pytest.mark.parametrize("error", [None, RuntimeError("given up")])
def test_leaving_without_a_commit_aborts(run: Run, error: Exception | None) -> None:
    async def leave(producer: Producer) -> None:
        await producer.send_and_wait("events", b"a", partition=0)
        if error is not None:
            raise error

    async def test(broker: Any) -> None:
        async with Client(broker.address) as client:
            try:
                async with Producer(client, CONFIG) as producer:
                    await leave(producer)
            except RuntimeError as raised:
                assert raised is error
        (end,) = broker.asked(ApiKey.END_TXN)
        assert end.committed is False

    run(test)


def test_an_abort_that_fails_hides_no_error(run: Run) -> None:
    async def test(broker: Any) -> None:
        refusal = EndTxnResponse(error_code=ErrorCode.INVALID_PRODUCER_EPOCH)
        broker.script(ApiKey.END_TXN, refusal)
        async with Client(broker.address) as client:
            with pytest.raises(RuntimeError, match="given up"):
                async with Producer(client, CONFIG) as producer:
                    await producer.send_and_wait("events", b"a", partition=0)
                    raise RuntimeError("given up")

    run(test)


def test_without_records_there_is_nothing_to_end(run: Run) -> None:
    async def test(broker: Any) -> None:
        async with Client(broker.address) as client, Producer(client, CONFIG) as producer:
            await producer.commit()
        assert broker.asked(ApiKey.END_TXN) == []

    run(test)


def test_what_is_retried(run: Run) -> None:
    async def test(broker: Any) -> None:
        broker.script(
            ApiKey.INIT_PRODUCER_ID,
            InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS),
            InitProducerIdResponse(error_code=ErrorCode.NOT_COORDINATOR),
        )
        broker.script(
            ApiKey.ADD_PARTITIONS_TO_TXN, partition_error(ErrorCode.CONCURRENT_TRANSACTIONS)
        )
        broker.script(
            ApiKey.END_TXN, EndTxnResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        )
        async with Client(broker.address) as client:
            transaction = Transaction(client, "tx", 7000)
            assert await transaction.begin() == (77, 3)
            # after NOT_COORDINATOR it is looked up again
            assert len(broker.asked(ApiKey.FIND_COORDINATOR)) == 2
            await transaction.add(TopicPartition("events", 0))
            await transaction.end(committed=True)
        assert [len(broker.asked(key)) for key in sorted(OF_TRANSACTIONS)] == [0, 3, 2, 2]

    run(test)


def test_what_is_final(run: Run) -> None:
    async def test(broker: Any) -> None:
        async with Client(broker.address) as client, Producer(client, CONFIG) as producer:
            broker.script(
                ApiKey.ADD_PARTITIONS_TO_TXN, partition_error(ErrorCode.INVALID_PRODUCER_EPOCH)
            )
            future = await producer.send("events", b"a", partition=0)
            await producer.flush()
            error = future.exception()
            assert isinstance(error, KafkaError)
            assert error.code is ErrorCode.INVALID_PRODUCER_EPOCH
        assert broker.asked(ApiKey.PRODUCE) == []
        assert [end.committed for end in broker.asked(ApiKey.END_TXN)] == [False]

    run(test)


def test_acks_of_a_transaction(run: Run) -> None:
    async def test(broker: Any) -> None:
        config = ProducerConfig(transactional_id="tx", acks=1)
        async with Client(broker.address) as client:
            with pytest.raises(ValueError, match="transactions need acks=all"):
                await Producer(client, config).__aenter__()

    run(test)
