"""Builds the telemetry of clients on a broker, if `kbroker.telemetry.receiver` names a receiver.
Like Kafka without a metrics plug-in, a broker without a receiver does not announce the APIs of
KIP-714.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Final

from kbroker.broker.telemetry.client_telemetry import ClientTelemetry
from kbroker.broker.telemetry.telemetry import SeriesReceiver, Telemetry, TelemetryReceiver
from kbroker.broker.telemetry.telemetry_series import TelemetrySeries
from kbroker.model import StartupError, random_uuid
from kbroker.node.policies import load_class
from kbroker.ports import OffloadFactory, Timers
from kbroker.settings.broker import BrokerConfig

RECEIVER: Final = "kbroker.telemetry.receiver"
METRICS: Final = "metrics"


def build_telemetry(
    config: BrokerConfig, timers: Timers, *, offloads: OffloadFactory, random: Random
) -> Telemetry | None:
    """The telemetry of a broker, None without a receiver. Raises StartupError."""
    name = config.get_string(RECEIVER)
    if not name:
        return None
    series = TelemetrySeries()
    receiver: TelemetryReceiver = SeriesReceiver(series)
    if name != METRICS:
        receiver = load_class(config, RECEIVER, name, method="export")
    elif not config.get_string("kbroker.metrics.listener"):
        raise StartupError(
            f"{config.source}: {RECEIVER}={METRICS}: there is no kbroker.metrics.listener, where"
            " the metrics would be told"
        )
    core = ClientTelemetry(
        max_bytes=config.get_int("telemetry.max.bytes"),
        new_id=partial(random_uuid, random),
        on_forgotten=series.forget,
    )
    return Telemetry(core, receiver, offloads("telemetry", 1), timers, series=series)
