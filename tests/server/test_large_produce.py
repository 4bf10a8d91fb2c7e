"""A Produce request of very many partitions over a socket: handled in slices, with the answer and
the log that a small one would have.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.server.requests import LARGE_PRODUCE_BYTES, PRODUCE_PARTITIONS
from kbroker.testing import EmbeddedBroker
from tests.e2e.wire import call, frame_of

PARTITIONS = 2 * PRODUCE_PARTITIONS
VALUE = bytes(200)
UNKNOWN = 50


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"auto.create.topics.enable": "false"}) as embedded:
        embedded.create_topic("wide", PARTITIONS)
        yield embedded


@pytest.fixture
def connection(broker: EmbeddedBroker) -> Iterator[socket.socket]:
    with socket.create_connection((broker.host, broker.port), timeout=30) as opened:
        yield opened


def produce(acks: int) -> ProduceRequest:
    """To all partitions, and to some that do not exist, at the end and of another topic."""
    batch = bytes(build_batch([(1_700_000_000_000, b"key", VALUE, [])]))
    kind = ProduceRequest
    topics = [
        kind.TopicProduceData(
            name=name,
            partition_data=[
                kind.PartitionProduceData(index=index, records=batch) for index in range(count)
            ],
        )
        for name, count in (("wide", PARTITIONS + UNKNOWN), ("unknown", UNKNOWN))
    ]
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=topics)


def end_offsets(connection: socket.socket) -> set[int]:
    kind = ListOffsetsRequest
    partitions = [
        kind.ListOffsetsPartition(partition_index=index, timestamp=-1)
        for index in range(PARTITIONS)
    ]
    request = kind(topics=[kind.ListOffsetsTopic(name="wide", partitions=partitions)])
    (topic,) = cast(ListOffsetsResponse, call(connection, request, 4)).topics
    assert len(topic.partitions) == PARTITIONS
    return {each.offset for each in topic.partitions}


@pytest.mark.parametrize("version", [3, 9])
@pytest.mark.parametrize("acks", [1, -1])
def test_each_partition_is_answered_in_its_place(
    connection: socket.socket, version: int, acks: int
) -> None:
    (before,) = end_offsets(connection)
    assert len(frame_of(produce(acks), version)) > LARGE_PRODUCE_BYTES
    response = cast(ProduceResponse, call(connection, produce(acks), version))
    wide, unknown = response.responses
    assert (wide.name, unknown.name) == ("wide", "unknown")
    assert [each.index for each in wide.partition_responses] == list(range(PARTITIONS + UNKNOWN))
    found: list[tuple[Any, Any]] = [
        (each.error_code, each.base_offset) for each in wide.partition_responses
    ]
    assert found[:PARTITIONS] == [(ErrorCode.NONE, before)] * PARTITIONS
    missing = {code for code, _ in found[PARTITIONS:]}
    missing |= {each.error_code for each in unknown.partition_responses}
    assert missing == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert end_offsets(connection) == {before + 1}


def test_without_acknowledgement_there_is_no_answer_and_the_next_request_has_its_own(
    connection: socket.socket,
) -> None:
    (before,) = end_offsets(connection)
    request = produce(0)
    del request.topic_data[1]
    del request.topic_data[0].partition_data[PARTITIONS:]
    connection.sendall(frame_of(request, 9))
    assert end_offsets(connection) == {before + 1}


def test_without_acknowledgement_a_failure_ends_the_connection(connection: socket.socket) -> None:
    connection.sendall(frame_of(produce(0), 9))
    assert connection.recv(1) == b""
