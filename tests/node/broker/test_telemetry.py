"""Telemetry of clients through the wire: announced with a receiver only, told to Prometheus."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Iterator

import pytest

from kbroker.broker.telemetry.telemetry import TelemetryPush
from kbroker.model import StartupError
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.compression import Compression, compress
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kbroker.protocol.messages.admin.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.settings.tables.keys import ResourceType
from kbroker.testing.embedded import EmbeddedBroker
from tests.e2e.wire import call
from tests.protocol.test_otlp import DELTA, gauge, metrics, total

RECEIVER = "kbroker.telemetry.receiver"
TELEMETRY = {int(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS), int(ApiKey.PUSH_TELEMETRY)}
Incremental = IncrementalAlterConfigsRequest


class Plugin:
    """A receiver, as a setting names it."""

    pushes: list[TelemetryPush] = []  # noqa: RUF012  # of the one broker of its test

    def export(self, push: TelemetryPush) -> None:
        self.pushes.append(push)


def connect(broker: EmbeddedBroker) -> socket.socket:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def announced(broker: EmbeddedBroker) -> set[int]:
    with connect(broker) as connection:
        answer = call(connection, ApiVersionsRequest(), 0)
    assert isinstance(answer, ApiVersionsResponse)
    assert answer.api_keys
    return {each.api_key for each in answer.api_keys}


def subscribe(connection: socket.socket, **settings: str) -> None:
    resource = Incremental.AlterConfigsResource(
        resource_type=int(ResourceType.CLIENT_METRICS),
        resource_name="s",
        configs=[
            Incremental.AlterableConfig(name=name.replace("_", "."), value=value)
            for name, value in settings.items()
        ],
    )
    answer = call(connection, Incremental(resources=[resource]), 1)
    assert isinstance(answer, IncrementalAlterConfigsResponse)
    assert answer.responses[0].error_code == 0


def subscription(connection: socket.socket) -> GetTelemetrySubscriptionsResponse:
    answer = call(connection, GetTelemetrySubscriptionsRequest(), 0)
    assert isinstance(answer, GetTelemetrySubscriptionsResponse)
    return answer


def push(
    connection: socket.socket,
    to: GetTelemetrySubscriptionsResponse,
    data: bytes,
    *,
    terminating: bool = False,
) -> int:
    request = PushTelemetryRequest(
        client_instance_id=to.client_instance_id,
        subscription_id=to.subscription_id,
        terminating=terminating,
        compression_type=int(Compression.ZSTD),
        metrics=compress(Compression.ZSTD, data),
    )
    answer = call(connection, request, 0)
    assert isinstance(answer, PushTelemetryResponse)
    return answer.error_code


def test_without_a_receiver_nothing_is_announced() -> None:
    with EmbeddedBroker() as broker:
        assert not announced(broker) & TELEMETRY


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({RECEIVER: "metrics", "kbroker.metrics.listener": "127.0.0.1:0"}) as one:
        yield one


def scrape(broker: EmbeddedBroker) -> str:
    port = broker.call(lambda one: one.metrics_port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as page:
        text: str = page.read().decode()
    return text


def test_what_clients_push_is_told_to_prometheus(broker: EmbeddedBroker) -> None:
    assert announced(broker) >= TELEMETRY
    with connect(broker) as connection:
        subscribe(connection, metrics="org.apache.kafka.", interval_ms="1000")
        told = subscription(connection)
        assert told.requested_metrics == ["org.apache.kafka."]
        assert told.push_interval_ms == 1000
        data = metrics([gauge("org.a.latency", 2.5, topic="t"), total("org.a.sent", 3, DELTA)])
        assert push(connection, told, data) == 0
        assert push(connection, told, data) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert push(connection, told, data, terminating=True) == 0
        text = scrape(broker)
        assert "client_org_a_latency{" in text and 'topic="t"' in text
        (sent,) = [line for line in text.splitlines() if line.startswith("client_org_a_sent{")]
        assert sent.endswith(" 6.0")
        assert "kafka_server_client_metrics_instance_count 1\n" in text
        subscribe(connection, metrics="other.")
        assert subscription(connection).requested_metrics == ["other."]
    until = time.monotonic() + 20
    while "client_org_a_sent{" in scrape(broker):
        assert time.monotonic() < until, "the series of a client that has left"


def test_a_plugin_gets_what_is_pushed() -> None:
    Plugin.pushes.clear()
    with EmbeddedBroker({RECEIVER: f"{__name__}:Plugin"}) as broker, connect(broker) as connection:
        assert push(connection, subscription(connection), b"anything") == 0
    (taken,) = Plugin.pushes
    assert taken.data == b"anything"
    assert taken.client.address == "127.0.0.1"
    assert taken.client.port.isdecimal()


@pytest.mark.parametrize("receiver", ["metrics", "nosuch:Receiver"])
def test_a_receiver_that_cannot_work_stops_the_start(receiver: str) -> None:
    with pytest.raises(StartupError, match=RECEIVER):
        EmbeddedBroker({RECEIVER: receiver}).start()
