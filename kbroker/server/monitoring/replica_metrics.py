"""Metrics of the replicas on a broker: Kafka's ReplicaManager, Log and Partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kbroker.log.partition_log import PartitionLog
from kbroker.metadata.image import MetadataImage
from kbroker.replication.hosting import Hosting
from kbroker.replication.partition import Partition
from kbroker.server.monitoring.exposition import STEP_ROWS, Exposition, Row, labels
from kbroker.server.services import Services


class _LogGauge(NamedTuple):
    name: str
    help_text: str
    of: Callable[[PartitionLog], int]


class _LeaderGauge(NamedTuple):
    name: str
    help_text: str
    of: Callable[[Partition], int]


_OF_LOGS: Final = (
    _LogGauge("kafka_log_log_size", "Bytes of the log's segments", lambda log: log.size_bytes),
    _LogGauge("kafka_log_log_logstartoffset", "First offset", lambda log: log.log_start_offset),
    _LogGauge("kafka_log_log_logendoffset", "Next offset", lambda log: log.log_end_offset),
    _LogGauge("kafka_log_log_numlogsegments", "Segments", lambda log: len(log.segments)),
)
_OF_LEADERS: Final = (
    _LeaderGauge(
        "kafka_topic_partition_current_offset",
        "High watermark, the end for consumers",
        lambda led: led.high_watermark,
    ),
    _LeaderGauge(
        "kafka_cluster_partition_laststableoffsetlag",
        "Records above the last stable offset, up to the high watermark",
        lambda led: led.high_watermark - led.last_stable_offset,
    ),
    _LeaderGauge(
        "kafka_cluster_partition_replicascount", "Replicas", lambda led: len(led.remotes) + 1
    ),
    _LeaderGauge(
        "kafka_cluster_partition_insyncreplicascount", "In-sync replicas", lambda led: len(led.isr)
    ),
    _LeaderGauge(
        "kafka_cluster_partition_underreplicated",
        "1 with replicas out of sync",
        lambda led: int(len(led.isr) < len(led.remotes) + 1),
    ),
    _LeaderGauge(
        "kafka_cluster_partition_underminisr",
        "1 under min.insync.replicas",
        lambda led: int(led.is_under_min_isr),
    ),
    _LeaderGauge(
        "kafka_cluster_partition_atminisr",
        "1 with just min.insync.replicas",
        lambda led: int(len(led.isr) == led.min_isr),
    ),
)


class _Counts:
    """Over all replicas here."""

    def __init__(self) -> None:
        self.replicas = self.leaders = self.reassigning = 0
        self.under_replicated = self.under_min_isr = self.at_min_isr = 0
        self.max_lag = 0

    def add(self, partition: Partition, image: MetadataImage) -> None:
        self.replicas += 1
        if not partition.is_leader:
            return
        in_sync = len(partition.isr)
        registered = image.partition(*partition.topic_partition)
        self.leaders += 1
        self.reassigning += registered is not None and registered.is_reassigning
        self.under_replicated += in_sync < len(partition.remotes) + 1
        self.under_min_isr += in_sync < partition.min_isr
        self.at_min_isr += in_sync == partition.min_isr
        end = partition.log.log_end_offset
        for follower in partition.remotes.values():
            if follower.log_end_offset >= 0:  # it has fetched from this leader
                self.max_lag = max(self.max_lag, end - follower.log_end_offset)


def replica_metrics(out: Exposition, services: Services) -> Iterator[str]:
    """Of all replicas together."""
    counts = _Counts()
    for number, partition in enumerate(partitions(services.replicas.hosting), 1):
        counts.add(partition, services.image)
        if number % STEP_ROWS == 0:
            yield ""
    prefix = "kafka_server_replicamanager"
    gauges = (
        ("partitioncount", "Replicas on this broker", counts.replicas),
        ("leadercount", "Partitions led by this broker", counts.leaders),
        ("reassigningpartitions", "Led here, being reassigned", counts.reassigning),
        ("underreplicatedpartitions", "Led here, replicas out of sync", counts.under_replicated),
        ("underminisrpartitioncount", "Led here, under min.insync.replicas", counts.under_min_isr),
        ("atminisrpartitioncount", "Led here, just min.insync.replicas", counts.at_min_isr),
    )
    for name, help_text, value in gauges:
        yield out.gauge(f"{prefix}_{name}", help_text, value)
    yield out.gauge(
        "kbroker_follower_max_lag_records",
        "What the slowest follower of a partition led here lacks",
        counts.max_lag,
    )
    updates = services.replicas.isr_updates
    yield out.counter(f"{prefix}_isrshrinks", "ISRs that lost a member", updates.shrinks)
    yield out.counter(f"{prefix}_isrexpands", "ISRs that gained a member", updates.expands)
    yield out.counter(
        f"{prefix}_failedisrupdates", "ISR changes that the controller refused", updates.failed
    )
    yield from _directories(out, services)


def _directories(out: Exposition, services: Services) -> Iterator[str]:
    logs = services.replicas.logs
    yield out.gauge(
        "kafka_server_replicamanager_offlinereplicacount",
        "Replicas in failed log directories",
        len(logs.offline_partitions),
    )
    offline = set(logs.offline_paths)
    yield out.gauge(
        "kafka_log_logmanager_offlinelogdirectorycount", "Failed log directories", len(offline)
    )
    yield from out.gauges(
        "kafka_log_logmanager_logdirectoryoffline",
        "1 for a failed log directory",
        [(labels(logdirectory=path), int(path in offline)) for path in logs.config.log_dirs],
    )
    sessions = services.replicas.sessions
    yield out.gauge(
        "kafka_server_fetchsessioncache_numincrementalfetchsessions",
        "Fetch sessions",
        len(sessions),
    )
    yield out.counter(
        "kafka_server_fetchsessioncache_incrementalfetchsessionevictions",
        "Fetch sessions closed for a new one or for memory",
        sessions.evictions,
    )


def partition_metrics(out: Exposition, services: Services) -> Iterator[str]:
    """Of each replica, and of each partition that is led here."""
    for gauge in _OF_LOGS:
        yield from out.gauges(gauge.name, gauge.help_text, _log_rows(gauge, services))
    for led in _OF_LEADERS:
        rows = _leader_rows(led, services.replicas.hosting)
        yield from out.gauges(led.name, led.help_text, rows)


def _log_rows(gauge: _LogGauge, services: Services) -> Iterator[Row | None]:
    get, of = services.replicas.logs.get, gauge.of
    for partition in partitions(services.replicas.hosting):
        log = get(partition.topic_partition)
        if log is None or log.closed:
            yield None
        else:
            yield _labels(partition), of(log)


def _leader_rows(gauge: _LeaderGauge, hosting: Hosting) -> Iterator[Row | None]:
    of = gauge.of
    for partition in partitions(hosting):
        yield (_labels(partition), of(partition)) if partition.is_leader else None


def _labels(partition: Partition) -> str:
    topic, index = partition.topic_partition
    return f'topic="{topic}",partition="{index}"'  # names of topics need no escapes


def partitions(hosting: Hosting) -> Iterator[Partition]:
    """Every replica here. They may come and go between two steps."""
    for topic in hosting.topics():
        for partition in tuple(topic.partitions.values()):
            if not partition.removed:
                yield partition
