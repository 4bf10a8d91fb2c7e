"""Metrics over HTTP: the numbers of a broker that was used, and what a scraper may not do."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kbroker.model import StartupError
from kbroker.protocol.batch_builder import build_batch
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.server import metrics
from kbroker.server.metrics_endpoint import MAX_REQUEST_BYTES
from kbroker.settings.broker import BrokerConfig
from kbroker.testing.embedded import EmbeddedBroker
from tests.e2e.wire import call

LISTENER = "kbroker.metrics.listener"


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({LISTENER: "127.0.0.1:0"}) as running:
        running.create_topic("prices", partitions=3)
        yield running


def ask(broker: EmbeddedBroker, request: bytes) -> bytes:
    port = broker.call(lambda running: running.metrics_port)
    assert port is not None
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    return answer


def samples(broker: EmbeddedBroker) -> dict[tuple[str, ...], float]:
    """By name and label values, in the order of the labels' names."""
    head, _, body = ask(broker, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    found = {}
    names = []
    for family in text_string_to_metric_families(body.decode()):
        names.append(family.name)
        for sample in family.samples:
            labels = [value for _, value in sorted(sample.labels.items())]
            found[(sample.name, *labels)] = sample.value
    assert len(names) == len(set(names)), "a family is told in one piece"
    return found


def test_a_broker_that_was_used(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SLICE", 2)
    before = samples(broker)
    batch = build_batch([(1, b"key", b"value", []), (2, b"key", b"more", [])])
    data = ProduceRequest.PartitionProduceData(index=1, records=batch)
    topic = ProduceRequest.TopicProduceData(name="prices", partition_data=[data])
    wanted = FetchRequest.FetchPartition(partition=1, partition_max_bytes=1 << 20)
    fetch = FetchRequest(
        max_wait_ms=0, topics=[FetchRequest.FetchTopic(topic="prices", partitions=[wanted])]
    )
    with socket.create_connection((broker.host, broker.port), timeout=10) as connection:
        call(connection, ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic]), 9)
        call(connection, fetch, 11)
        call(connection, fetch, 11)
        after = samples(broker)

    def gained(*key: str) -> float:
        return after[key] - before.get(key, 0.0)

    traffic = "kafka_server_brokertopicmetrics"
    assert gained(f"{traffic}_bytesin_total") == len(batch)
    assert gained(f"{traffic}_messagesin_total") == 2
    assert gained(f"{traffic}_bytesout_total") == 2 * len(batch)
    assert gained("kafka_network_requestmetrics_requests_total", "Fetch") == 2
    assert gained("kafka_network_requestmetrics_totaltime_seconds_count", "Fetch") == 2
    assert gained("kafka_server_socket_server_metrics_connection_count") == 1
    assert after["kafka_log_log_size", "1", "prices"] == len(batch)
    assert after["kafka_log_log_logendoffset", "1", "prices"] == 2
    assert after["kafka_log_log_logendoffset", "2", "prices"] == 0
    assert after["kafka_server_replicamanager_leadercount",] == 3
    assert after["kafka_server_replicamanager_underreplicatedpartitions",] == 0
    assert after["kafka_controller_kafkacontroller_globaltopiccount",] == 1
    deadline = time.monotonic() + 20  # the probe looks a few times a second at least
    while not after["kbroker_event_loop_stall_seconds_count",]:
        assert time.monotonic() < deadline
        after = samples(broker)
    assert after["process_resident_memory_bytes",] > 10_000_000


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", b"404", id="path"),
        pytest.param(b"POST /metrics HTTP/1.1\r\n\r\n", b"405", id="method"),
        pytest.param(b"\0\0\0\x10\r\n\r\n", b"405", id="no HTTP"),
        pytest.param(b"HEAD /metrics?x=1 HTTP/1.1\r\n\r\n", b"200", id="head"),
    ],
)
def test_other_requests(broker: EmbeddedBroker, request_bytes: bytes, status: bytes) -> None:
    answer = ask(broker, request_bytes)
    assert answer.split(b" ", 2)[1] == status
    assert answer.endswith(b"\r\n\r\n"), "and no body"


def test_a_head_without_end(broker: EmbeddedBroker) -> None:
    port = broker.call(lambda running: running.metrics_port)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n" + b"x" * 2 * MAX_REQUEST_BYTES)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""
    assert samples(broker)


@pytest.mark.parametrize("address", ["9404", ":9404", "localhost:", "localhost:x", "h:70000"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(StartupError, match=LISTENER):
        BrokerConfig.from_properties({LISTENER: address})


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartupError, match=f"{LISTENER}={address}"):
            EmbeddedBroker({LISTENER: address}).start()


def test_nothing_is_imported_unless_metrics_are_served() -> None:
    code = (
        "import sys; from kbroker.testing.embedded import EmbeddedBroker\n"
        "with EmbeddedBroker() as broker:\n"
        "    print(broker.call(lambda running: running.metrics_port), end=' ')\n"
        "print('prometheus_client' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "None False\n"
