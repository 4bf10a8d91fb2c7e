"""Metrics of requests and connections, over all listeners of the node (Kafka's RequestMetrics)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kbroker.metrics import Histogram
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.server.monitoring.exposition import Exposition, labels
from kbroker.server.monitoring.sources import OpenListeners
from kbroker.server.request_errors import RequestErrors


def request_metrics(
    out: Exposition, listeners: Sequence[OpenListeners], forwarded: RequestErrors | None
) -> Iterator[str]:
    """Quick: there are as many APIs as there are. forwarded: see `MetricsSources`; the broker that
    got such a request counts it, as a request without an error.
    """
    dispatchers = [each.dispatcher for each in listeners]
    refused = [dispatcher.errors for dispatcher in dispatchers]
    if forwarded is not None:
        refused.append(forwarded)
    counts: dict[int, int] = {}
    errors: dict[tuple[int, int], int] = {}
    times: dict[int, Histogram] = {}
    for dispatcher in dispatchers:
        for api_key, count in dispatcher.requests.items():
            counts[api_key] = counts.get(api_key, 0) + count
        for api_key, histogram in (dispatcher.times or {}).items():
            times[api_key] = _sum(times.get(api_key), histogram)
    for each in refused:
        for error, count in each.counts.items():
            errors[error] = errors.get(error, 0) + count
    yield from out.counters(
        "kafka_network_requestmetrics_requests",
        "Requests by API",
        [(labels(request=api_name(api_key)), count) for api_key, count in sorted(counts.items())],
    )
    yield from out.histograms(
        "kafka_network_requestmetrics_totaltime_seconds",
        "From the request being whole to its response being rendered",
        [(labels(request=api_name(api_key)), times[api_key]) for api_key in sorted(times)],
    )
    yield from out.counters(
        "kbroker_request_errors",
        "Requests that were answered with an error as a whole",
        [
            (labels(request=api_name(api_key), error=ErrorCode(error).name), count)
            for (api_key, error), count in sorted(errors.items())
        ],
    )
    yield out.counter(
        "kbroker_unexpected_errors",
        "Requests answered UNKNOWN_SERVER_ERROR for an exception",
        sum(each.surprises for each in refused),
    )
    yield from _connections(out, listeners)


def _connections(out: Exposition, listeners: Sequence[OpenListeners]) -> Iterator[str]:
    prefix = "kafka_server_socket_server_metrics"
    shared = [each.shared for each in listeners]
    yield out.gauge(
        f"{prefix}_connection_count",
        "Open connections",
        sum(len(each.connections) for each in shared),
    )
    yield out.counter(
        f"{prefix}_connection_creation",
        "Connections that were admitted",
        sum(each.next_number for each in shared),
    )
    waiting = seen = 0
    for each in shared:
        for connection in tuple(each.connections):
            waiting += connection.outstanding
            seen += 1
            if seen % 1024 == 0:
                yield ""
    yield out.gauge(
        "kafka_network_requestchannel_requestqueuesize", "Requests in progress", waiting
    )


def api_name(api_key: int) -> str:
    """As Kafka has it in its beans: ListOffsets."""
    return ApiKey(api_key).name.title().replace("_", "")


def _sum(one: Histogram | None, other: Histogram) -> Histogram:
    """Both together; they have the same bounds."""
    total = Histogram(other.bounds)
    for histogram in (one, other):
        if histogram is not None:
            total.counts = [a + b for a, b in zip(total.counts, histogram.counts, strict=True)]
            total.count += histogram.count
            total.total += histogram.total
            total.maximum = max(total.maximum, histogram.maximum)
    return total
