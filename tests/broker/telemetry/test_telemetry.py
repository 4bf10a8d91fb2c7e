"""Pushes on their way to the receiver: unpacked, bounded, and what its failures do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, cast

import pytest

from kbroker.broker.telemetry import telemetry_series
from kbroker.broker.telemetry.client_telemetry import ClientTelemetry, TelemetryClient
from kbroker.broker.telemetry.telemetry import (
    SeriesReceiver,
    Telemetry,
    TelemetryPush,
    TelemetryReceiver,
)
from kbroker.broker.telemetry.telemetry_series import TelemetrySeries
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.layered_map import LayeredMap
from kbroker.ports import Deferred, Offload
from kbroker.protocol.batches.compression import Compression, compress
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.telemetry import (
    GetTelemetrySubscriptionsRequest,
    PushTelemetryRequest,
)
from kbroker.protocol.otlp import MetricPoint
from kbroker.settings.tables.keys import ResourceType
from tests.protocol.test_otlp import gauge, metrics
from tests.sim.timers import SimTimers

CLIENT = TelemetryClient("c1", "p1", "java", "4", "10.0.0.1", "5000")
MAX_BYTES = 1000


def at_once(work: Callable[[], None], then: Callable[[OSError | None], None]) -> None:
    work()
    then(None)


class Plugin:
    """A receiver of the operator's."""

    def __init__(self) -> None:
        self.pushes: list[TelemetryPush] = []

    def export(self, push: TelemetryPush) -> None:
        if push.data == b"bad":
            raise ValueError("bad")
        self.pushes.append(push)


def telemetry(
    receiver: TelemetryReceiver,
    series: TelemetrySeries | None = None,
    offload: Offload = at_once,
) -> Telemetry:
    ids = count(1000)
    held = series or TelemetrySeries()
    core = ClientTelemetry(
        max_bytes=MAX_BYTES,
        new_id=lambda: next(ids).to_bytes(16),
        on_forgotten=held.forget,
    )
    return Telemetry(core, receiver, offload, SimTimers(), series=held)


def push(one: Telemetry, data: bytes, codec: Compression = Compression.NONE) -> Deferred[Any]:
    told = one.subscriptions_for(GetTelemetrySubscriptionsRequest(), CLIENT, 0)
    request = PushTelemetryRequest(
        client_instance_id=told.client_instance_id,
        subscription_id=told.subscription_id,
        compression_type=int(codec),
        metrics=compress(codec, data) if codec else data,
    )
    return one.push(request, CLIENT, 0)


@pytest.mark.parametrize("codec", list(Compression))
def test_metrics_are_unpacked_and_told_to_prometheus(codec: Compression) -> None:
    series = TelemetrySeries()
    one = telemetry(SeriesReceiver(series), series)
    data = metrics([gauge("org.apache.kafka.x", 2.5, topic="t")])
    assert push(one, data, codec).value.error_code == 0
    ((name, (sample,)),) = series.slices(10)
    assert name == "client_org_apache_kafka_x"
    assert sample.value == 2.5
    assert sample.labels["topic"] == "t" and sample.labels["client_id"] == "p1"
    assert one.exports == 1
    one.disconnected("c1")
    assert list(series.slices(10)) == []


@pytest.mark.parametrize(
    ("data", "codec"),
    [
        pytest.param(bytes(MAX_BYTES * 100), Compression.GZIP, id="unpacks to too much"),
        pytest.param(b"bad", Compression.NONE, id="the receiver fails"),
    ],
)
def test_what_cannot_be_taken_is_answered_invalid_record(data: bytes, codec: Compression) -> None:
    one = telemetry(Plugin())
    answer = push(one, data, codec)
    assert isinstance(answer.error, KafkaError)
    assert answer.error.code is ErrorCode.INVALID_RECORD
    assert (one.exports, one.failed_exports) == (0, 1)


def test_a_plugin_gets_the_client_and_its_bytes() -> None:
    plugin = Plugin()
    one = telemetry(plugin)
    assert push(one, b"anything", Compression.ZSTD).value.error_code == 0
    (taken,) = plugin.pushes
    assert (taken.data, taken.client, taken.is_terminating) == (b"anything", CLIENT, False)
    assert push(one, b"").value.error_code == 0
    assert len(plugin.pushes) == 1


def test_no_metrics_of_a_client_that_has_left_are_kept() -> None:
    series = TelemetrySeries()
    waiting: list[Callable[[], None]] = []

    def later(work: Callable[[], None], then: Callable[[OSError | None], None]) -> None:
        waiting.append(lambda: (work(), then(None))[-1])

    one = telemetry(SeriesReceiver(series), series)
    one._offload = later
    answer = push(one, metrics([gauge("a", 1.0)]))
    one.disconnected("c1")
    waiting[0]()
    assert answer.value.error_code == 0
    assert list(series.slices(10)) == []


def test_subscriptions_follow_the_metadata(caplog: pytest.LogCaptureFixture) -> None:
    one = telemetry(Plugin())
    kind = int(ResourceType.CLIENT_METRICS)

    def image(**values: dict[str, str]) -> MetadataImage:
        configs = {(kind, name): value for name, value in values.items()}
        return MetadataImage(configs=LayeredMap(configs))

    def requested() -> list[str]:
        return one.subscriptions_for(
            GetTelemetrySubscriptionsRequest(), CLIENT, 0
        ).requested_metrics

    first = image(s={"metrics": "x."}, bad={"interval.ms": "1"})
    one.on_image(MetadataImage(), first)
    cast(SimTimers, one._timers).advance(0)
    assert requested() == ["x."]
    assert "bad" in caplog.text
    one.on_image(first, MetadataImage())
    assert requested() == []


def test_names_and_labels_are_made_in_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 5,000 points take 0.1 s, which the loop has not."""
    where = ["loop"]
    made: list[str] = []
    labels_of = telemetry_series._labels

    def labels(point: MetricPoint) -> telemetry_series.Labels | None:
        made.append(where[-1])
        return labels_of(point)

    def offload(work: Callable[[], None], then: Callable[[OSError | None], None]) -> None:
        where.append("thread")
        work()
        where.pop()
        then(None)

    monkeypatch.setattr(telemetry_series, "_labels", labels)
    series = TelemetrySeries()
    one = telemetry(SeriesReceiver(series), series, offload)
    assert push(one, metrics([gauge("m", 1.0, topic="t")])).value.error_code == 0
    assert made == ["thread"]
    assert [name for name, _ in series.slices(10)] == ["client_m"]
