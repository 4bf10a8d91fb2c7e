"""Which telemetry requests are taken, as Kafka's ClientMetricsManager decides."""

from __future__ import annotations

from itertools import count

import pytest

from kbroker.broker.telemetry.client_telemetry import (
    MAX_INSTANCES,
    ClientTelemetry,
    TelemetryClient,
)
from kbroker.model import ZERO_UUID, Uuid
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
)

SECOND = 1000


def instance(number: int) -> Uuid:
    return number.to_bytes(16)


def client(connection: str = "c1", client_id: str | None = "p1") -> TelemetryClient:
    return TelemetryClient(connection, client_id, "apache-kafka-java", "4.3.1", "10.0.0.1", "5000")


class World:
    """A core, its clock and what it forgot."""

    def __init__(self) -> None:
        ids = count(1000)
        self.forgotten: list[Uuid] = []
        self.core = ClientTelemetry(
            max_bytes=100,
            new_id=lambda: instance(next(ids)),
            on_forgotten=self.forgotten.append,
        )
        self.now_ms = 0

    def get(
        self, instance_id: Uuid = ZERO_UUID, of: TelemetryClient | None = None
    ) -> GetTelemetrySubscriptionsResponse:
        request = GetTelemetrySubscriptionsRequest(client_instance_id=instance_id)
        return self.core.subscriptions_for(request, of or client(), self.now_ms)

    def push(
        self,
        to: GetTelemetrySubscriptionsResponse,
        *,
        subscription_id: int | None = None,
        compression: int = 0,
        terminating: bool = False,
        data: bytes = b"x",
    ) -> None:
        known = to.subscription_id if subscription_id is None else subscription_id
        request = PushTelemetryRequest(
            client_instance_id=to.client_instance_id,
            subscription_id=known,
            terminating=terminating,
            compression_type=compression,
            metrics=data,
        )
        self.core.accept_push(request, client(), self.now_ms)

    def refusal(self, to: GetTelemetrySubscriptionsResponse, **push: object) -> ErrorCode:
        with pytest.raises(KafkaError) as refused:
            self.push(to, **push)  # type: ignore[arg-type]  # of several types
        return refused.value.code


def test_without_a_subscription_nothing_is_asked_for() -> None:
    answer = World().get()
    assert answer.requested_metrics == []
    assert answer.push_interval_ms == 300_000
    assert answer.accepted_compression_types == [4, 3, 1, 2]
    assert answer.telemetry_max_bytes == 100
    assert answer.delta_temporality
    assert answer.client_instance_id == instance(1000)


def test_subscriptions_that_match_are_joined() -> None:
    world = World()
    world.core.change_subscription("a", {"metrics": "x.,y.", "interval.ms": "5000"})
    world.core.change_subscription("b", {"metrics": "y.", "match": "client_id=p.*"})
    world.core.change_subscription("c", {"metrics": "z.", "match": "client_id=q"})
    first = world.get()
    assert first.requested_metrics == ["x.", "y."]
    assert first.push_interval_ms == 5000
    other = world.get(of=client(client_id="q"))
    assert other.requested_metrics == ["x.", "y.", "z."]
    assert other.subscription_id != first.subscription_id
    world.core.change_subscription("d", {"metrics": "*"})
    assert world.get(first.client_instance_id).requested_metrics == ["*"]


def test_a_push_follows_at_once_and_then_once_an_interval() -> None:
    world = World()
    world.core.change_subscription("a", {"metrics": "*", "interval.ms": "5000"})
    told = world.get()
    world.push(told)
    world.now_ms = 4999
    assert world.refusal(told) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    with pytest.raises(KafkaError) as early:
        world.get(told.client_instance_id)
    assert early.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert world.core.throttled == 2
    world.now_ms = 5000
    world.push(told)


def test_changed_subscriptions_are_told_at_once() -> None:
    world = World()
    told = world.get()
    world.core.change_subscription("a", {"metrics": "x."})
    assert world.refusal(told) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert world.core.unknown_subscriptions == 1
    assert world.get(told.client_instance_id).requested_metrics == ["x."]
    world.core.change_subscription("a", {})
    world.now_ms += 1
    assert world.get(told.client_instance_id).requested_metrics == []


def test_what_is_wrong_with_a_push() -> None:
    world = World()
    told = world.get()
    assert world.refusal(told, compression=9) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    world.now_ms += 300 * SECOND
    assert world.refusal(told, data=bytes(101)) is ErrorCode.TELEMETRY_TOO_LARGE
    told.client_instance_id = instance(1)
    assert world.refusal(told) is ErrorCode.INVALID_REQUEST


def test_the_last_push_of_a_client_is_never_too_early_and_the_last() -> None:
    world = World()
    told = world.get()
    world.push(told)
    world.push(told, terminating=True)
    assert world.refusal(told, terminating=True) is ErrorCode.INVALID_REQUEST


def test_instances_are_forgotten_with_their_connection_or_in_time() -> None:
    world = World()
    first, second = world.get(of=client("c1")), world.get(of=client("c2"))
    world.core.disconnected("c1")
    assert world.forgotten == [first.client_instance_id]
    world.now_ms = 900 * SECOND
    world.core.expire(world.now_ms)
    assert world.forgotten == [first.client_instance_id, second.client_instance_id]
    assert world.core.instance_count == 0
    world.core.disconnected("c2")


def test_instances_are_bounded() -> None:
    world = World()
    for number in range(MAX_INSTANCES + 5):
        world.get(instance(100 + number), of=client(f"c{number}"))
    assert world.core.instance_count == MAX_INSTANCES
    assert world.forgotten == [instance(100 + number) for number in range(5)]
