"""Five requests of an idempotent producer are under way when the broker is killed; afterwards it
sends all of them again: each batch is in the log once and has one offset.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.coordinators.transactions import InitProducerIdRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.testing.process import BrokerProcess
from tests.e2e.wire import call, frame_of, receive_frame

TOPIC = "retried"
IN_FLIGHT = 5
RECORDS = 3
VALUE = bytes(100_000)
"""Five batches are more than a segment: some rounds have a roll among them."""
ROUNDS = 8
STARTED_MS = int(time.time() * 1000)
"""A producer whose last record is a day old is forgotten at a start."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    overrides = {"log.segment.bytes": "1048576"}
    with BrokerProcess(tmp_path / "data", overrides=overrides) as process:
        yield process


def connect(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection((broker.host, broker.port), timeout=20)


def request(producer_id: int, number: int) -> ProduceRequest:
    """The batch with that number."""
    data = build_batch(
        [(STARTED_MS, b"k", VALUE, [])] * RECORDS,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=number * RECORDS,
    )
    part = ProduceRequest.PartitionProduceData(index=0, records=data)
    topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[part])
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])


def end_offset(connection: socket.socket) -> int:
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=TOPIC, partitions=[part])]
    answer: Any = call(connection, ListOffsetsRequest(topics=topics), 7)
    return int(answer.topics[0].partitions[0].offset)


def test_all_in_flight_are_sent_again_after_a_kill(broker: BrokerProcess) -> None:
    random = Random(1)
    with connect(broker) as connection:
        new = CreateTopicsRequest.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
        call(connection, CreateTopicsRequest(topics=[new], timeout_ms=10_000), 7)
        granted: Any = call(connection, InitProducerIdRequest(transactional_id=None), 4)
    assert granted.error_code == ErrorCode.NONE
    for number in range(ROUNDS):
        numbers = range(number * IN_FLIGHT, (number + 1) * IN_FLIGHT)
        requests = [request(granted.producer_id, one) for one in numbers]
        with connect(broker) as connection:
            connection.sendall(b"".join(frame_of(one, 9) for one in requests))
            for _ in range(random.randrange(IN_FLIGHT)):
                receive_frame(connection)
            broker.kill()
        broker.start()
        with connect(broker) as connection:
            for one, again in zip(numbers, requests, strict=True):
                answer: Any = call(connection, again, 9)
                part = answer.responses[0].partition_responses[0]
                assert (part.error_code, part.base_offset) == (ErrorCode.NONE, one * RECORDS)
            assert end_offset(connection) == numbers.stop * RECORDS
