"""Metrics about what clients push (KIP-714), and what they pushed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from kbroker.broker.telemetry.telemetry import Telemetry
from kbroker.broker.telemetry.telemetry_series import Sample
from kbroker.server.monitoring.exposition import STEP_ROWS, Exposition, Row, labels

PREFIX: Final = "kafka_server_client_metrics"


def telemetry_metrics(out: Exposition, telemetry: Telemetry) -> Iterator[str]:
    """About the pushes; quick."""
    core = telemetry.core
    yield out.gauge(
        f"{PREFIX}_instance_count", "Client instances that are known", core.instance_count
    )
    yield out.counter(
        f"{PREFIX}_unknown_subscription_request",
        "Pushes for subscriptions that have changed",
        core.unknown_subscriptions,
    )
    yield out.counter(f"{PREFIX}_throttle", "Requests before their push interval", core.throttled)
    yield out.counter(f"{PREFIX}_plugin_export", "Pushes that were taken", telemetry.exports)
    yield out.counter(f"{PREFIX}_plugin_error", "Pushes that were not", telemetry.failed_exports)
    yield out.counter(
        "kbroker_client_metrics_dropped", "Values that were not kept", telemetry.series.dropped
    )


def pushed_metrics(out: Exposition, telemetry: Telemetry) -> Iterator[str]:
    """The newest value of each series that clients pushed."""
    slices = telemetry.series.slices(STEP_ROWS)
    for name, pieces in groupby(slices, key=itemgetter(0)):
        yield from out.gauges(name, "Pushed by clients (KIP-714)", _rows(pieces))


def _rows(pieces: Iterable[tuple[str, Sequence[Sample]]]) -> Iterator[Row]:
    for _, samples in pieces:
        for sample in samples:
            yield labels(**sample.labels), sample.value
