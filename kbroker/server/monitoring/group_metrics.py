"""Metrics of groups and coordinators: how many there are, committed offsets and lag.

Kafka has no bean for the lag of a group. The names are those of the lag exporter most clusters run
beside Kafka (kafka_exporter): what reads them needs no other process here.

The coordinator of a group has its offsets; the end of a partition is known to the brokers that host
it. Where this broker does not, the lag is left to PromQL, which has the end from the partition's
leader (`kafka_topic_partition_current_offset`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from kbroker.coordinator.group.kind import GroupType
from kbroker.coordinator.runtime.host import Host, HostStatus
from kbroker.coordinator.runtime.runtime import CoordinatorRuntime
from kbroker.model import TopicPartition
from kbroker.replication.manager import ReplicaManager
from kbroker.server.monitoring.exposition import (
    MAX_LABEL_CHARS,
    Exposition,
    Row,
    escaped,
    labels,
)
from kbroker.server.services import Services

_STATES: Final = (HostStatus.LOADING, HostStatus.ACTIVE, HostStatus.FAILED)

_Value = Callable[[int, int | None], int | None]
"""Of the committed offset and the partition's end."""


def group_metrics(out: Exposition, services: Services) -> Iterator[str]:
    """How many groups and coordinated partitions there are; quick."""
    counts = {group_type.value: 0 for group_type in GroupType}
    for host in services.groups.runtime.hosts():
        if _is_active(host):
            for kind in host.shard.kinds:
                counts[kind.group_type.value] += len(kind)
    yield from out.gauges(
        "kafka_server_group_coordinator_metrics_group_count",
        "Groups of this coordinator",
        [(labels(protocol=protocol), count) for protocol, count in counts.items()],
    )
    runtimes: tuple[tuple[str, CoordinatorRuntime[Any]], ...] = (
        ("kafka_server_group_coordinator_metrics", services.groups.runtime),
        ("kafka_server_share_coordinator_metrics", services.share_coordinator.runtime),
        ("kbroker_transaction_coordinator", services.transactions.runtime),
    )
    for prefix, runtime in runtimes:
        status = [host.status for host in runtime.hosts()]
        yield from out.gauges(
            f"{prefix}_num_partitions",
            "Partitions of this coordinator",
            [(labels(state=state.value), status.count(state)) for state in _STATES],
        )


def lag_metrics(out: Exposition, services: Services) -> Iterator[str]:
    """Of each partition with a committed offset, by group."""
    families: tuple[tuple[str, str, _Value], ...] = (
        (
            "kafka_consumergroup_current_offset",
            "Committed offset",
            lambda committed, end: committed,
        ),
        (
            "kafka_consumergroup_log_end_offset",
            "High watermark, where this broker hosts the partition",
            lambda committed, end: end,
        ),
        (
            "kafka_consumergroup_lag",
            "Records between the two, where this broker hosts the partition",
            lambda committed, end: None if end is None else max(end - committed, 0),
        ),
    )
    for name, help_text, value in families:
        yield from out.gauges(name, help_text, _rows(out, services, value))


def _rows(out: Exposition, services: Services, value: _Value) -> Iterator[Row | None]:
    replicas = services.replicas
    for host in tuple(services.groups.runtime.hosts()):
        if not _is_active(host):
            continue
        for group, topic, index, offset in host.shard.offsets.walk():
            if not _is_active(host):
                break  # it was unloaded between two steps
            found = value(offset.offset, _end(replicas, topic, index))
            if found is None:
                yield None
            elif len(group) > MAX_LABEL_CHARS:
                out.dropped += 1
                yield None
            else:
                name = escaped(group)
                yield f'consumergroup="{name}",topic="{topic}",partition="{index}"', found


def _is_active(host: Host[Any]) -> bool:
    return host.status is HostStatus.ACTIVE


def _end(replicas: ReplicaManager, topic: str, index: int) -> int | None:
    """The high watermark, None where there is no replica in sync here."""
    partition = replicas.partition(TopicPartition(topic, index))
    if partition is None or partition.node_id not in partition.isr:
        return None
    return partition.high_watermark
