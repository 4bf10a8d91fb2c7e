"""What the broker tells Prometheus: the numbers its parts keep anyway, under the names that Kafka's
JMX beans have behind the usual exporter (`kafka.server:type=ReplicaManager,name=PartitionCount` is
`kafka_server_replicamanager_partitioncount`); what Kafka has no bean for begins with `kbroker_`.

Nothing is kept here: each scrape asks the parts, on the loop. Imported by `metrics_endpoint` when
metrics are served, and with it prometheus-client.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

import msgspec
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from kbroker import __version__
from kbroker.broker.telemetry import Telemetry
from kbroker.coordinator.group.kind import GroupType
from kbroker.coordinator.runtime.host import HostStatus
from kbroker.metrics import Histogram
from kbroker.protocol.apis import ApiKey
from kbroker.server.dispatch import Dispatcher
from kbroker.server.network.connection_shared import ConnectionShared
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.services import Services

SLICE: Final = 250
"""Partitions told of in one turn of the loop."""

_OWN_STATUS: Final = Path("/proc/self/statm")


class LoopStalls(Protocol):
    """How late the event loop came to its timers, in seconds (`node/stall_probe`)."""

    @property
    def stalls(self) -> Histogram:
        """All since the listeners opened."""
        ...

    @property
    def recent_maximum(self) -> float:
        """The longest of the last one or two minutes."""
        ...


class MetricsSources(msgspec.Struct, frozen=True):
    """The parts that are asked."""

    services: Services
    dispatcher: Dispatcher[Services]
    shared: ConnectionShared
    stalls: LoopStalls


def broker_families(sources: MetricsSources) -> Iterator[Metric]:
    """All but the partitions; quick, whatever the broker holds."""
    yield from _traffic(sources)
    yield from _requests(sources)
    yield from _replicas(sources.services)
    yield from _controller(sources.services)
    yield from _groups(sources.services)
    yield from _loop(sources.stalls)
    yield from _memory(sources.services.memory)
    if sources.services.telemetry is not None:
        yield from _telemetry(sources.services.telemetry)
    yield from _process()


def partition_slices(services: Services) -> Iterator[list[Metric]]:
    """Size and offsets of each log, `SLICE` of them at a time. The families of the slices are the
    same ones: only the first needs its HELP and TYPE lines.
    """
    labels = ["topic", "partition"]
    partitions = iter(list(services.replicas.partitions()))
    while part := list(islice(partitions, SLICE)):
        size = GaugeMetricFamily("kafka_log_log_size", "Bytes of the log's segments", labels=labels)
        start = GaugeMetricFamily("kafka_log_log_logstartoffset", "First offset", labels=labels)
        end = GaugeMetricFamily(
            "kafka_log_log_logendoffset", "Next offset to be written", labels=labels
        )
        segments = GaugeMetricFamily(
            "kafka_log_log_numlogsegments", "Segments of the log", labels=labels
        )
        for partition in part:
            log = services.replicas.logs.get(partition.topic_partition)
            if log is None or log.closed:
                continue
            name, index = partition.topic_partition
            values = [name, str(index)]
            size.add_metric(values, log.size_bytes)
            start.add_metric(values, log.log_start_offset)
            end.add_metric(values, log.log_end_offset)
            segments.add_metric(values, len(log.segments))
        yield [size, start, end, segments]


def telemetry_slices(telemetry: Telemetry) -> Iterator[tuple[str, Metric]]:
    """What clients have pushed, `SLICE` values at a time, each with its name; all of one name in a
    row.
    """
    for name, samples in telemetry.series.slices(SLICE):
        family = GaugeMetricFamily(name, "Pushed by clients (KIP-714)")
        for sample in samples:
            family.add_sample(name, dict(sample.labels), sample.value)
        yield name, family


def _telemetry(telemetry: Telemetry) -> Iterator[Metric]:
    prefix = "kafka_server_client_metrics"
    core = telemetry.core
    yield _gauge(f"{prefix}_instance_count", "Client instances that are known", core.instance_count)
    yield _counter(
        f"{prefix}_unknown_subscription_request",
        "Pushes for subscriptions that have changed",
        core.unknown_subscriptions,
    )
    yield _counter(f"{prefix}_throttle", "Requests before their push interval", core.throttled)
    yield _counter(f"{prefix}_plugin_export", "Pushes that were taken", telemetry.exports)
    yield _counter(f"{prefix}_plugin_error", "Pushes that were not", telemetry.failed_exports)
    yield _counter(
        "kbroker_client_metrics_dropped", "Values that were not kept", telemetry.series.dropped
    )


def _traffic(sources: MetricsSources) -> Iterator[Metric]:
    traffic = sources.services.replicas.traffic
    prefix = "kafka_server_brokertopicmetrics"
    yield _counter(f"{prefix}_bytesin", "Bytes of records appended", traffic.bytes_in)
    yield _counter(f"{prefix}_bytesout", "Bytes of records answered", traffic.bytes_out)
    yield _counter(f"{prefix}_messagesin", "Records appended", traffic.messages_in)
    yield _counter(
        f"{prefix}_failedproducerequests",
        "Appends to a partition that were refused",
        traffic.failed_produces,
    )


def _requests(sources: MetricsSources) -> Iterator[Metric]:
    dispatcher, shared = sources.dispatcher, sources.shared
    requests = CounterMetricFamily(
        "kafka_network_requestmetrics_requests", "Requests by API", labels=["request"]
    )
    for api_key, count in sorted(dispatcher.requests.items()):
        requests.add_metric([api_name(api_key)], count)
    yield requests
    times = HistogramMetricFamily(
        "kafka_network_requestmetrics_totaltime_seconds",
        "From the request being whole to its response being rendered",
        labels=["request"],
    )
    for api_key, histogram in sorted((dispatcher.times or {}).items()):
        times.add_metric([api_name(api_key)], buckets_of(histogram), histogram.total)
    yield times
    yield _counter(
        "kbroker_unexpected_errors",
        "Requests answered UNKNOWN_SERVER_ERROR for an exception",
        dispatcher.surprises,
    )
    yield _gauge(
        "kafka_server_socket_server_metrics_connection_count",
        "Open connections",
        len(shared.connections),
    )
    yield _counter(
        "kafka_server_socket_server_metrics_connection_creation",
        "Connections that were admitted",
        shared.next_number,
    )
    waiting = sum(connection.outstanding for connection in shared.connections)
    yield _gauge("kafka_network_requestchannel_requestqueuesize", "Requests in progress", waiting)


def _replicas(services: Services) -> Iterator[Metric]:
    leaders = under_replicated = under_min_isr = at_min_isr = count = 0
    for partition in services.replicas.partitions():
        count += 1
        if partition.is_leader:
            leaders += 1
            in_sync = len(partition.isr)
            under_replicated += in_sync < len(partition.remotes) + 1
            under_min_isr += in_sync < partition.min_isr
            at_min_isr += in_sync == partition.min_isr
    prefix = "kafka_server_replicamanager"
    yield _gauge(f"{prefix}_partitioncount", "Replicas on this broker", count)
    yield _gauge(f"{prefix}_leadercount", "Partitions led by this broker", leaders)
    yield _gauge(
        f"{prefix}_underreplicatedpartitions", "Led here, replicas out of sync", under_replicated
    )
    yield _gauge(
        f"{prefix}_underminisrpartitioncount", "Led here, under min.insync.replicas", under_min_isr
    )
    yield _gauge(
        f"{prefix}_atminisrpartitioncount", "Led here, just min.insync.replicas", at_min_isr
    )
    logs = services.replicas.logs
    yield _gauge(
        f"{prefix}_offlinereplicacount",
        "Replicas in failed log directories",
        len(logs.offline_partitions),
    )
    yield _gauge(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "Failed log directories",
        len(logs.offline_paths),
    )
    cache = "kafka_server_fetchsessioncache"
    sessions = services.replicas.sessions
    yield _gauge(f"{cache}_numincrementalfetchsessions", "Fetch sessions", len(sessions))


def _controller(services: Services) -> Iterator[Metric]:
    prefix = "kafka_controller_kafkacontroller"
    image = services.image
    partitions = sum(len(topic.partitions) for topic in image.topics.values())
    fenced = sum(broker.fenced for broker in image.brokers.values())
    yield _gauge(f"{prefix}_activecontrollercount", "1 on the active controller", 1)
    yield _gauge(f"{prefix}_globaltopiccount", "Topics of the cluster", len(image.topics))
    yield _gauge(f"{prefix}_globalpartitioncount", "Partitions of the cluster", partitions)
    yield _gauge(f"{prefix}_activebrokercount", "Brokers in service", len(image.brokers) - fenced)
    yield _gauge(f"{prefix}_fencedbrokercount", "Fenced brokers", fenced)


def _groups(services: Services) -> Iterator[Metric]:
    counts = {group_type.value: 0 for group_type in GroupType}
    for host in services.groups.runtime.hosts():
        if host.status is HostStatus.ACTIVE:
            for kind in host.shard.kinds:
                counts[kind.group_type.value] += len(kind)
    groups = GaugeMetricFamily(
        "kafka_server_group_coordinator_metrics_group_count",
        "Groups of this coordinator",
        labels=["protocol"],
    )
    for protocol, count in counts.items():
        groups.add_metric([protocol], count)
    yield groups


def _loop(stalls: LoopStalls) -> Iterator[Metric]:
    histogram = HistogramMetricFamily(
        "kbroker_event_loop_stall_seconds", "How late the loop came to a timer"
    )
    histogram.add_metric([], buckets_of(stalls.stalls), stalls.stalls.total)
    yield histogram
    yield _gauge(
        "kbroker_event_loop_stall_max_seconds", "The longest since the start", stalls.stalls.maximum
    )
    yield _gauge(
        "kbroker_event_loop_stall_recent_max_seconds",
        "The longest of the last one or two minutes",
        stalls.recent_maximum,
    )


def _memory(memory: MemoryPool) -> Iterator[Metric]:
    yield _gauge("kbroker_memory_limit_bytes", "kbroker.memory.limit.bytes", memory.limit)
    yield _gauge("kbroker_memory_used_bytes", "What of it is in use", memory.used)
    yield _gauge("kbroker_memory_peak_bytes", "The most that ever was", memory.peak)
    yield _gauge("kbroker_memory_waiting", "Connections that wait for memory", memory.waiting)
    yield _counter("kbroker_memory_waits", "How often one had to wait", memory.waits)


def _process() -> Iterator[Metric]:
    times = os.times()
    yield _counter("process_cpu_seconds", "User and system time", times.user + times.system)
    resident = resident_bytes()
    if resident is not None:
        yield _gauge("process_resident_memory_bytes", "Resident set", resident)
    collections = CounterMetricFamily(
        "python_gc_collections", "Runs of the garbage collector", labels=["generation"]
    )
    for generation, stats in enumerate(gc.get_stats()):
        collections.add_metric([str(generation)], stats["collections"])
    yield collections
    info = GaugeMetricFamily("kbroker_build_info", "Always 1", labels=["version", "python"])
    info.add_metric([__version__, sys.version.split()[0]], 1)
    yield info


def resident_bytes() -> int | None:
    """Of this process; None where the system does not tell."""
    try:
        return int(_OWN_STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def api_name(api_key: int) -> str:
    """As Kafka has it in its beans: ListOffsets."""
    return ApiKey(api_key).name.title().replace("_", "")


def buckets_of(histogram: Histogram) -> list[tuple[str, float]]:
    """Prometheus counts each class with all smaller ones."""
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound is None else repr(bound), below))
    return buckets


def _counter(name: str, help_text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, help_text, value=value)


def _gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, value=value)
