"""The telemetry of clients on one broker (KIP-714): the core that knows the subscriptions
(`client_telemetry`), and the receiver to which the metrics go.

What a push holds is unpacked, and given to the receiver, in a thread: the metrics of one client may
take a tenth of a second. `telemetry.max.bytes` bounds them, also unpacked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, Protocol

from kbroker.broker.telemetry.client_telemetry import ClientTelemetry, TelemetryClient
from kbroker.broker.telemetry.telemetry_series import TelemetrySeries, series_points
from kbroker.log_lines import LogThrottle, shown
from kbroker.metadata.image import MetadataImage
from kbroker.model import Uuid
from kbroker.ports import Deferred, Offload, Timers
from kbroker.protocol.batches.compression import Compression, decompress
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from kbroker.protocol.otlp import read_points
from kbroker.settings.tables.keys import ResourceType

logger = logging.getLogger(__name__)

MAX_POINTS: Final = 5_000
"""Of one push; further ones are not kept."""


class TelemetryPush:
    """Metrics that a client has pushed. client: as its request says. data: MetricsData of OTLP
    (protobuf), unpacked.
    """

    __slots__ = ("client", "data", "instance_id", "is_terminating", "push_interval_ms")

    def __init__(
        self,
        instance_id: Uuid,
        client: TelemetryClient,
        data: bytes,
        *,
        is_terminating: bool,
        push_interval_ms: int,
    ) -> None:
        self.instance_id = instance_id
        self.client = client
        self.data = data
        self.is_terminating = is_terminating
        self.push_interval_ms = push_interval_ms


class TelemetryReceiver(Protocol):
    """Where metrics of clients go (Kafka's ClientTelemetryExporter)."""

    def export(self, push: TelemetryPush) -> Callable[[], None] | None:
        """Take the metrics of a push. Called in a thread; what it returns is called on the loop.
        Whatever it raises answers the push with INVALID_RECORD.
        """
        ...


class SeriesReceiver:
    """`kbroker.telemetry.receiver=metrics`: what clients push is told to Prometheus."""

    def __init__(self, series: TelemetrySeries) -> None:
        self._series = series

    def export(self, push: TelemetryPush) -> Callable[[], None]:
        """See TelemetryReceiver."""
        points, refused = series_points(islice(read_points(push.data), MAX_POINTS))
        client_id = push.client.client_id
        return lambda: self._series.take(push.instance_id, client_id, points, refused)


class Telemetry:
    """Of one broker. offload: with a thread of its own. exports, failed_exports: pushes that the
    receiver took, or did not. Loop thread only.
    """

    def __init__(
        self,
        core: ClientTelemetry,
        receiver: TelemetryReceiver,
        offload: Offload,
        timers: Timers,
        *,
        series: TelemetrySeries,
    ) -> None:
        self.core = core
        self.series = series
        self._receiver = receiver
        self._offload = offload
        self._timers = timers
        self._changed: dict[str, Mapping[str, str]] = {}
        """Subscriptions that are to be taken over, with their settings."""
        self._failures = LogThrottle(logger)
        self.exports = 0
        self.failed_exports = 0

    def on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """Take over subscriptions that have changed: one in a turn of the loop, since patterns take
        milliseconds to compile; the first one now.
        """
        if new.configs is old.configs:
            return
        is_idle = not self._changed
        for kind, name in new.configs.changed_keys(old.configs):
            if kind == ResourceType.CLIENT_METRICS:
                self._changed[name] = new.configs.get((kind, name), {})
        if is_idle:
            self._change_one()

    def _change_one(self) -> None:
        if not self._changed:
            return
        name = next(iter(self._changed))
        values = self._changed.pop(name)
        try:
            self.core.change_subscription(name, values)
        except KafkaError as error:
            logger.error("subscription %s is ignored: %s", shown(name), shown(error))
        if self._changed:
            self._timers.call_later(0, self._change_one)

    def subscriptions_for(
        self, request: GetTelemetrySubscriptionsRequest, client: TelemetryClient, now_ms: int
    ) -> GetTelemetrySubscriptionsResponse:
        """See ClientTelemetry."""
        return self.core.subscriptions_for(request, client, now_ms)

    def push(
        self, request: PushTelemetryRequest, client: TelemetryClient, now_ms: int
    ) -> Deferred[PushTelemetryResponse]:
        """Check a push and hand its metrics to the receiver. Raises KafkaError, or fails with
        INVALID_RECORD where the receiver cannot take them.
        """
        instance = self.core.accept_push(request, client, now_ms)
        if not len(request.metrics):
            return Deferred.of(PushTelemetryResponse())
        codec, packed = Compression(request.compression_type), bytes(request.metrics)
        answer: Deferred[PushTelemetryResponse] = Deferred()
        settle: list[Callable[[], None] | None] = []
        failed: list[Exception] = []

        def work() -> None:
            try:
                data = bytes(decompress(codec, packed, max_bytes=self.core.max_bytes))
                push = TelemetryPush(
                    instance.instance_id,
                    client,
                    data,
                    is_terminating=request.terminating,
                    push_interval_ms=instance.requested.push_interval_ms,
                )
                settle.append(self._receiver.export(push))
            except Exception as error:  # noqa: BLE001  # of this push: the receiver's top frame
                failed.append(error)

        def done(failure: OSError | None) -> None:
            error = failure or (failed.pop() if failed else None)
            if error is not None:
                instance.last_error = ErrorCode.INVALID_RECORD
                self._refuse(client, answer, error, now_ms)
                return
            self.exports += 1
            if settle and settle[0] is not None and self.core.knows(instance):
                settle[0]()
            answer.resolve(PushTelemetryResponse())

        self._offload(work, done)
        return answer

    def _refuse(
        self,
        client: TelemetryClient,
        answer: Deferred[PushTelemetryResponse],
        error: Exception,
        now_ms: int,
    ) -> None:
        self.failed_exports += 1
        self._failures.log(
            now_ms,
            "metrics of client %s at %s were not taken: %s",
            shown(client.client_id),
            client.address,
            shown(error),
        )
        answer.fail(KafkaError(ErrorCode.INVALID_RECORD, "the metrics could not be taken"))

    def disconnected(self, connection_id: str) -> None:
        """A connection has ended."""
        self.core.disconnected(connection_id)
