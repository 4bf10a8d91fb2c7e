"""One scrape: all families of a node in their order, as steps.

What is small and says whether the node is well comes first, what grows with topics, groups and
partitions last: where a scrape reaches its limit of series, that is what it loses.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.server.monitoring.exposition import Exposition
from kbroker.server.monitoring.group_metrics import group_metrics, lag_metrics
from kbroker.server.monitoring.process_metrics import process_metrics
from kbroker.server.monitoring.quorum_metrics import controller_metrics, quorum_metrics
from kbroker.server.monitoring.replica_metrics import partition_metrics, replica_metrics
from kbroker.server.monitoring.request_metrics import request_metrics
from kbroker.server.monitoring.sources import BrokerSources, MetricsSources
from kbroker.server.monitoring.telemetry_metrics import pushed_metrics, telemetry_metrics
from kbroker.server.monitoring.topic_metrics import topic_metrics


def collect(sources: MetricsSources) -> Iterator[str]:
    """Text of the exposition in pieces, some of them empty. Each takes a bounded time, whatever the
    node holds, and the node may change between two of them.
    """
    out = Exposition(sources.max_series)
    yield from process_metrics(out, sources)
    yield from request_metrics(out, sources.listeners, sources.forwarded)
    quorum, loader = sources.quorum, sources.loader
    if quorum is not None and loader is not None:
        yield from quorum_metrics(out, quorum, loader)
        if sources.is_active_controller is not None:
            yield from controller_metrics(out, quorum, loader, sources.is_active_controller)
    if sources.broker is not None:
        yield from _broker_metrics(out, sources.broker)
    yield from _account(out)


def _broker_metrics(out: Exposition, broker: BrokerSources) -> Iterator[str]:
    services = broker.services
    yield out.gauge(
        "kafka_server_kafkaserver_brokerstate",
        "1 starting, 2 recovery, 3 running, 6 controlled shutdown, 7 shutting down",
        int(broker.lifecycle.state),
    )
    yield from group_metrics(out, services)
    yield from replica_metrics(out, services)
    if services.telemetry is not None:
        yield from telemetry_metrics(out, services.telemetry)
    yield from topic_metrics(out, services.replicas.hosting)
    yield from lag_metrics(out, services)
    yield from partition_metrics(out, services)
    if services.telemetry is not None:
        yield from pushed_metrics(out, services.telemetry)


def _account(out: Exposition) -> Iterator[str]:
    """Written beyond the limit, which it says was reached."""
    last = Exposition(2)
    yield last.gauge("kbroker_metrics_series", "Series of this scrape", out.written)
    yield last.gauge(
        "kbroker_metrics_dropped_series",
        "Series beyond kbroker.metrics.max.series, left out of this scrape",
        out.dropped,
    )
