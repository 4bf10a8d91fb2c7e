"""The broker creates no reference cycles: objects that survive a full collection are frozen
(`node.loop.garbage`), and a cycle of frozen objects would never be freed.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.configs import DescribeConfigsRequest
from kbroker.protocol.messages.coordinators.groups import DeleteGroupsRequest
from kbroker.protocol.messages.coordinators.share_groups import DescribeShareGroupOffsetsRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.testing.embedded import EmbeddedBroker
from tests.e2e.wire import call, frame_of
from tests.server.garbage import found_by_collector

OFTEN = 3
"""Each thing is done so often; what is left once is left by a start or a stop."""


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


def produce_and_consume(broker: EmbeddedBroker, number: int, protocol: str) -> None:
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    producer = Producer({**servers, "transactional.id": f"tx-{number}"})
    producer.init_transactions(20)
    for abort in (True, False):
        producer.begin_transaction()
        producer.produce("events", b"v", key=b"k")
        if abort:
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)
    consumer = Consumer(
        {
            **servers,
            "group.id": f"g-{protocol}",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["events"])
    deadline = time.monotonic() + 30
    while (message := consumer.poll(0.2)) is None or message.error():
        assert time.monotonic() < deadline
    consumer.commit(message, asynchronous=False)
    consumer.close()


def administer(broker: EmbeddedBroker, number: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(f"t-{number}", 3)])[f"t-{number}"].result(20)
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(f"t-{number}", 3)])[f"t-{number}"].result(20)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.delete_topics([f"t-{number}"])[f"t-{number}"].result(20)


def wait_and_leave(broker: EmbeddedBroker) -> None:
    """Fetches that wait, with a session and without; connections that end in the middle."""
    topic = FetchRequest.FetchTopic(
        topic="idle", partitions=[FetchRequest.FetchPartition(partition=0, fetch_offset=0)]
    )
    for epoch in (-1, 0):
        request = FetchRequest(max_wait_ms=20, min_bytes=1, session_epoch=epoch, topics=[topic])
        with socket.create_connection((broker.host, broker.port), timeout=20) as connection:
            answer = call(connection, request, 12)
            if epoch == 0:
                call(
                    connection,
                    FetchRequest(session_id=answer.session_id, session_epoch=-1),  # type: ignore[attr-defined]  # a FetchResponse
                    12,
                )
            connection.sendall(frame_of(request, 12)[:-3])
    with socket.create_connection((broker.host, broker.port), timeout=20) as connection:
        connection.sendall(b"\0\0\0\x08\x7f\xff\0\0\0\0\0\0")
        assert connection.recv(1) == b""


def large_requests() -> Iterator[tuple[Message, int]]:
    """Of some 200 KB each: decoded and handled in many steps, waiting for their turn, refused."""
    share = DescribeShareGroupOffsetsRequest
    topics = [share.DescribeShareGroupOffsetsRequestTopic(topic_name="events")] * 20_000
    group = share.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=topics)
    yield share(groups=[group]), 0
    fetched = [FetchRequest.FetchPartition(partition=number) for number in range(4000)]
    topic = FetchRequest.FetchTopic(topic="idle", partitions=fetched)
    yield FetchRequest(max_wait_ms=30_000, min_bytes=1, topics=[topic]), 12
    yield DeleteGroupsRequest(groups_names=[f"group-{number}" for number in range(15_000)]), 2
    names = [
        DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name=f"t-{number}")
        for number in range(15_000)
    ]
    yield DescribeConfigsRequest(resources=names), 4
    yield produce_request("keyed", 0, keyless_batch(), 400), 9


def produce_request(topic: str, acks: int, batch: bytes, times: int = 1) -> ProduceRequest:
    partition = ProduceRequest.PartitionProduceData(index=0, records=batch)
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[partition] * times)
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[data])


def keyless_batch(count: int = 10) -> bytes:
    """Refused by a compacted topic."""
    return bytes(build_batch([(0, None, bytes(50), [])] * count))


def abort(connection: socket.socket) -> None:
    """Close with a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def end_under_way(broker: EmbeddedBroker) -> None:
    """Large requests whose connections end while they are decoded, handled, answered or waiting."""
    for turns in (0, 4, 40):
        connections = []
        for request, version in large_requests():
            for frame in (frame_of(request, version), frame_of(request, version)[:-3] + b"..."):
                connection = socket.create_connection((broker.host, broker.port), timeout=20)
                connections.append(connection)
                connection.sendall(frame)
        for _ in range(turns):
            broker.call(lambda _: None)
        for connection in connections:
            abort(connection)


def end_with_answers_queued(broker: EmbeddedBroker) -> None:
    """Answers behind that of a Fetch which waits."""
    fetched = FetchRequest.FetchPartition(partition=0, fetch_offset=0)
    topic = FetchRequest.FetchTopic(topic="idle", partitions=[fetched])
    with socket.create_connection((broker.host, broker.port), timeout=20) as connection:
        connection.sendall(
            frame_of(FetchRequest(max_wait_ms=30_000, min_bytes=1, topics=[topic]), 12)
            + frame_of(MetadataRequest(), 12) * 5
        )
        with socket.create_connection((broker.host, broker.port), timeout=20) as other:
            call(other, MetadataRequest(), 12)
        abort(connection)


def send_malformed(broker: EmbeddedBroker) -> None:
    """Bodies that are truncated or have wrong lengths, small and large; each ends its
    connection.
    """
    for request, version in large_requests():
        frame = frame_of(request, version)
        for size in (200, len(frame) - 8):
            body = frame[4 : size + 4]
            with socket.create_connection((broker.host, broker.port), timeout=20) as connection:
                connection.sendall(len(body).to_bytes(4, "big") + body)
                while connection.recv(65536):
                    pass


def be_refused(broker: EmbeddedBroker) -> None:
    """Records that the loop refuses, records that a worker refuses, and no answer to either."""
    with socket.create_connection((broker.host, broker.port), timeout=60) as connection:
        for batch in (keyless_batch(), keyless_batch(3000)):
            answer = call(connection, produce_request("keyed", -1, batch), 9)
            (topic,) = answer.responses  # type: ignore[attr-defined]  # a ProduceResponse
            assert topic.partition_responses[0].error_code == ErrorCode.INVALID_RECORD
        connection.sendall(frame_of(produce_request("events", 0, keyless_batch(), 400), 9))
        call(connection, MetadataRequest(), 12)
        connection.sendall(frame_of(produce_request("keyed", 0, keyless_batch(), 400), 9))
        assert connection.recv(1) == b""


def cycles_left_by(work: Callable[[range], None]) -> dict[str, int]:
    """The broker's objects that are left in reference cycles each time."""
    work(range(2))  # modules, coordinators and their topics
    with found_by_collector() as found:
        work(range(2, 2 + OFTEN))
    return {name: count for name, count in found.items() if count >= OFTEN}


def test_no_reference_cycles(broker: EmbeddedBroker) -> None:
    broker.create_topic("events")
    broker.create_topic("idle")

    def work(numbers: range) -> None:
        for number in numbers:
            produce_and_consume(broker, number, ("classic", "consumer")[number % 2])
            administer(broker, number)
            wait_and_leave(broker)

    assert cycles_left_by(work) == {}


def wait_for_connections_to_end(broker: EmbeddedBroker) -> None:
    """So that what was under way on them has been given up."""
    deadline = time.monotonic() + 30
    while broker.call(lambda running: len(running.connections)):
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    "attack", [end_under_way, end_with_answers_queued, send_malformed, be_refused]
)
def test_no_reference_cycles_under_attack(
    broker: EmbeddedBroker, attack: Callable[[EmbeddedBroker], None]
) -> None:
    broker.create_topic("events")
    broker.create_topic("idle")
    broker.create_topic("keyed", configs={"cleanup.policy": "compact", "compression.type": "gzip"})

    def work(numbers: range) -> None:
        for _ in numbers:
            attack(broker)
        wait_for_connections_to_end(broker)

    assert cycles_left_by(work) == {}
