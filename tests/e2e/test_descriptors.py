"""A broker that may open few files, and clients that take all the connections they can get."""

from __future__ import annotations

import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.testing import BrokerProcess
from tests.e2e.wire import call

LIMIT = 160
"""Of open files: less than the connections, more than the broker and its logs need."""

PARTITIONS = 40

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc"
)


def create(connection: socket.socket, topic: str) -> None:
    wanted = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=PARTITIONS, replication_factor=1
    )
    response = call(connection, CreateTopicsRequest(topics=[wanted], timeout_ms=30_000), 7)
    assert [each.error_code for each in response.topics] == [0]


def produce(connection: socket.socket, topic: str, partition: int) -> int:
    """The error code."""
    batch = bytes(build_batch([(int(time.time() * 1000), b"k", bytes(100), [])]))
    part = ProduceRequest.PartitionProduceData(index=partition, records=batch)
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    response = call(connection, ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[data]), 9)
    code: int = response.responses[0].partition_responses[0].error_code
    return code


def fetch(connection: socket.socket, topic: str, partition: int) -> bytes:
    part = FetchRequest.FetchPartition(
        partition=partition, fetch_offset=0, partition_max_bytes=1 << 20
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[part])],
    )
    found = call(connection, request, 11).responses[0].partitions[0]
    assert found.error_code == 0
    return bytes(found.records or b"")


def is_served_again(address: tuple[str, int]) -> bool:
    """Whether a new connection is answered, once the broker has seen that others were closed."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with socket.create_connection(address, timeout=30) as connection:
            try:
                return bool(fetch(connection, "after", 0))
            except ConnectionError:
                time.sleep(0.01)
    return False


def test_idle_connections_leave_the_logs_their_descriptors(tmp_path: Path) -> None:
    """The first connections are served, later ones are refused; all partitions can be written and
    read, a new topic made, and the broker stops cleanly and starts again.
    """
    limited = ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", sys.executable, "-m", "kbroker"]
    broker = BrokerProcess(tmp_path / "data", command=limited)
    with ExitStack() as stack:
        with broker:
            address = (broker.host, broker.port)
            served = stack.enter_context(socket.create_connection(address, timeout=30))
            create(served, "before")
            idle = [
                stack.enter_context(socket.create_connection(address, timeout=30))
                for _ in range(2 * LIMIT)
            ]
            refused = [connection.recv(1) for connection in idle[-LIMIT:]]
            assert refused == [b""] * LIMIT
            create(served, "after")
            for topic in ("before", "after"):
                codes = [produce(served, topic, index) for index in range(PARTITIONS)]
                assert codes == [0] * PARTITIONS
                assert all(fetch(served, topic, index) for index in range(PARTITIONS))
            for connection in idle:
                connection.close()
            assert is_served_again(address)
        told = (tmp_path / "data.log").read_text()
        assert "offline" not in told and "ERROR" not in told, told
        assert "no file descriptor is left for connections" in told
        with broker, socket.create_connection((broker.host, broker.port), timeout=30) as client:
            assert all(fetch(client, "after", index) for index in range(PARTITIONS))
