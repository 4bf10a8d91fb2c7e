"""Every setting that Kafka keeps in its metadata for a topic, a group, a subscription to client
metrics or the entity of a quota: it is set through the wire, in effect at once, listed by its
source, and all of that again after a restart. Settings of brokers are in `test_dynamic_keys`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from kbroker.metadata.client_quotas import IP, IP_KEYS, USER, USER_AND_CLIENT_KEYS
from kbroker.model import TopicPartition
from kbroker.node.node import Broker
from kbroker.settings.tables.group_table import CLIENT_METRICS_KEYS, GROUP_KEYS
from kbroker.settings.tables.keys import ConfigSource, ResourceType, parse
from kbroker.settings.tables.topic_table import TOPIC_KEYS
from kbroker.settings.views.log_config import LogConfig
from kbroker.testing.embedded import EmbeddedBroker
from scripts.configuration_table import topic_status
from tests.node.broker import test_quotas as quotas
from tests.node.broker.test_dynamic_config import alter, describe
from tests.settings.tables.test_table import facts

TOPIC: Final = "orders"
GROUP: Final = "billing"
SUBSCRIPTION: Final = "latency"

TOPIC_VALUES: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "compression.gzip.level": "5",
    "compression.lz4.level": "8",
    "compression.type": "lz4",
    "compression.zstd.level": "4",
    "delete.retention.ms": "86400001",
    "file.delete.delay.ms": "60001",
    "flush.messages": "1001",
    "flush.ms": "1002",
    "follower.replication.throttled.replicas": "0:1",
    "index.interval.bytes": "4097",
    "internal.segment.bytes": "1048578",
    "leader.replication.throttled.replicas": "*",
    "local.retention.bytes": "1003",
    "local.retention.ms": "1004",
    "max.compaction.lag.ms": "1005000",
    "max.message.bytes": "1048006",
    "message.timestamp.after.max.ms": "3600007",
    "message.timestamp.before.max.ms": "3600008",
    "message.timestamp.type": "LogAppendTime",
    "min.cleanable.dirty.ratio": "0.25",
    "min.compaction.lag.ms": "1009",
    "min.insync.replicas": "2",
    "preallocate": "true",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "10010000",
    "retention.ms": "604800011",
    "segment.bytes": "1048577",
    "segment.index.bytes": "4104",
    "segment.jitter.ms": "1012",
    "segment.ms": "604800013",
    "unclean.leader.election.enable": "true",
}
"""Not the defaults, but for those of remote storage, which is not to be had here."""

GROUP_VALUES: Final[Mapping[str, str]] = {
    "consumer.assignment.interval.ms": "1001",
    "consumer.heartbeat.interval.ms": "5002",
    "consumer.session.timeout.ms": "45003",
    "share.assignment.interval.ms": "1004",
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": "6",
    "share.heartbeat.interval.ms": "5007",
    "share.isolation.level": "read_committed",
    "share.partition.max.record.locks": "2009",
    "share.record.lock.duration.ms": "30010",
    "share.renew.acknowledge.enable": "false",
    "share.session.timeout.ms": "45011",
    "streams.assignment.interval.ms": "1012",
    "streams.heartbeat.interval.ms": "5013",
    "streams.initial.rebalance.delay.ms": "3014",
    "streams.num.standby.replicas": "1",
    "streams.session.timeout.ms": "45016",
}
CLIENT_METRICS_VALUES: Final[Mapping[str, str]] = {
    "interval.ms": "1001",
    "match": "client_id=reader-.*",
    "metrics": "org.apache.kafka.consumer.",
}
QUOTA_VALUES: Final[Mapping[str, float]] = {
    "connection_creation_rate": 1001.0,
    "consumer_byte_rate": 1002.0,
    "controller_mutation_rate": 1003.0,
    "producer_byte_rate": 1004.0,
    "request_percentage": 1005.0,
}

Probe = Callable[[Broker], Any]


def log_config(one: Broker) -> LogConfig:
    logs = one.services.replicas.logs.logs
    return logs[TopicPartition(TOPIC, 0)].config


def is_unclean(one: Broker) -> bool:
    assert one._controller is not None
    return one._controller.service._controller._context().is_unclean_election_enabled(TOPIC)


TOPIC_PROBES: Final[Mapping[str, tuple[Probe, Any]]] = {
    "internal.segment.bytes": (lambda one: log_config(one).segment_bytes, 1048578),
    "segment.bytes": (lambda one: log_config(one).segment_bytes, 1048578),  # the internal key wins
    "cleanup.policy": (lambda one: log_config(one).cleanup_policy, frozenset({"compact"})),
    "unclean.leader.election.enable": (is_unclean, True),
    "leader.replication.throttled.replicas": (
        lambda one: one.services.replicas.throttles.leader.is_throttled(TopicPartition(TOPIC, 0)),
        True,
    ),
    "follower.replication.throttled.replicas": (
        lambda one: one.services.replicas.throttles.follower.is_throttled(TopicPartition(TOPIC, 0)),
        True,
    ),
}
"""Those that do not show as a field of the log's settings with the value that was set."""


def of_topic(name: str) -> tuple[Probe, Any] | None:
    """None for a key that is not served yet."""
    if topic_status(TOPIC_KEYS[name]) == "not yet":
        return None
    field = name.replace(".", "_")
    value = parse(TOPIC_KEYS[name], TOPIC_VALUES[name])
    return TOPIC_PROBES.get(name) or (lambda one: getattr(log_config(one), field), value)


def shard(one: Broker) -> Any:
    """A shard of groups as the broker makes one for a partition that it begins to lead."""
    return one.services.groups.runtime._make_shard()


def shared(one: Broker) -> Any:
    return one.services.share_reader.config_of(GROUP)


def of_consumer(one: Broker) -> Any:
    return shard(one).consumer.context_of(GROUP, "", "")


def of_streams(one: Broker) -> Any:
    return shard(one).streams._settings_of(GROUP)


GROUP_PROBES: Final[Mapping[str, Probe]] = {
    "consumer.assignment.interval.ms": lambda one: of_consumer(one).assignment_interval_ms,
    "consumer.heartbeat.interval.ms": lambda one: of_consumer(one).heartbeat_interval_ms,
    "consumer.session.timeout.ms": lambda one: shard(one).consumer._own_or(
        0, GROUP, "consumer.session.timeout.ms"
    ),
    "share.assignment.interval.ms": lambda one: shard(one).share._overrides.get_int(
        GROUP, "share.assignment.interval.ms"
    ),
    "share.auto.offset.reset": lambda one: shared(one).auto_offset_reset,
    "share.delivery.count.limit": lambda one: shared(one).group_share_delivery_count_limit,
    "share.heartbeat.interval.ms": lambda one: shard(one).share._overrides.get_int(
        GROUP, "share.heartbeat.interval.ms"
    ),
    "share.isolation.level": lambda one: (
        "read_committed" if shared(one).reads_committed else "read_uncommitted"
    ),
    "share.partition.max.record.locks": lambda one: (
        shared(one).group_share_partition_max_record_locks
    ),
    "share.record.lock.duration.ms": lambda one: shared(one).group_share_record_lock_duration_ms,
    "share.renew.acknowledge.enable": lambda one: shared(one).may_renew,
    "share.session.timeout.ms": lambda one: shard(one).share._overrides.get_int(
        GROUP, "share.session.timeout.ms"
    ),
    "streams.assignment.interval.ms": lambda one: of_streams(one).assignment_interval_ms,
    "streams.heartbeat.interval.ms": lambda one: of_streams(one).heartbeat_interval_ms,
    "streams.initial.rebalance.delay.ms": lambda one: of_streams(one).initial_rebalance_delay_ms,
    "streams.num.standby.replicas": lambda one: of_streams(one).num_standby_replicas,
    "streams.session.timeout.ms": lambda one: of_streams(one).session_timeout_ms,
}


def subscription(one: Broker) -> Any:
    assert one.services.telemetry is not None
    return one.services.telemetry.core._subscriptions[SUBSCRIPTION]


CLIENT_METRICS_PROBES: Final[Mapping[str, tuple[Probe, Any]]] = {
    "interval.ms": (lambda one: subscription(one).interval_ms, 1001),
    "match": (
        lambda one: [
            subscription(one).matches({"client_id": name}) for name in ("reader-1", "writer")
        ],
        [True, False],
    ),
    "metrics": (lambda one: subscription(one).metrics, ("org.apache.kafka.consumer.",)),
}


def bound_of(kind: str) -> Probe:
    return lambda one: getattr(one.services.quotas, kind).applied("u", "").bound


def address_rate(one: Broker) -> Any:
    assert one._servers is not None
    return one._servers.broker_quotas.rates._by_address["10.0.0.1"]


QUOTA_PROBES: Final[Mapping[str, Probe]] = {
    "connection_creation_rate": address_rate,
    "consumer_byte_rate": bound_of("fetch"),
    "controller_mutation_rate": bound_of("mutation"),
    "producer_byte_rate": bound_of("produce"),
    "request_percentage": bound_of("request"),
}


def rows() -> dict[tuple[str, str], tuple[Probe, Any] | None]:
    """By kind and key: where it shows, and as what."""
    found: dict[tuple[str, str], tuple[Probe, Any] | None] = {}
    for name in TOPIC_VALUES:
        found["topic", name] = of_topic(name)
    for name, text in GROUP_VALUES.items():
        found["group", name] = GROUP_PROBES[name], parse(GROUP_KEYS[name], text)
    for name in CLIENT_METRICS_VALUES:
        found["client-metrics", name] = CLIENT_METRICS_PROBES[name]
    for name, value in QUOTA_VALUES.items():
        found["quota", name] = QUOTA_PROBES[name], value
    return found


ROWS: Final = rows()

RESOURCES: Final = {
    "topic": (ResourceType.TOPIC, TOPIC, TOPIC_VALUES, ConfigSource.TOPIC_CONFIG),
    "group": (ResourceType.GROUP, GROUP, GROUP_VALUES, ConfigSource.GROUP_CONFIG),
    "client-metrics": (
        ResourceType.CLIENT_METRICS,
        SUBSCRIPTION,
        CLIENT_METRICS_VALUES,
        ConfigSource.CLIENT_METRICS_CONFIG,
    ),
}


def test_every_dynamic_setting_of_kafka_has_its_row() -> None:
    """A key that Kafka adds to the facts needs a row here."""
    of_group = "group-configs.json"
    quota_keys = [*facts(of_group, "userAndClientQuotaConfigs"), *facts(of_group, "ipQuotaConfigs")]
    expected = {
        "topic": facts("topic-configs.json", "configs"),
        "group": facts(of_group, "groupConfigs"),
        "client-metrics": facts(of_group, "clientMetricsConfigs"),
        "quota": quota_keys,
    }
    assert set(ROWS) == {(kind, fact["name"]) for kind, every in expected.items() for fact in every}
    assert {fact["name"] for fact in quota_keys} == {*USER_AND_CLIENT_KEYS, *IP_KEYS}
    assert set(CLIENT_METRICS_VALUES) == set(CLIENT_METRICS_KEYS)


def set_quotas(broker: EmbeddedBroker) -> None:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        for name, value in QUOTA_VALUES.items():
            entity: dict[str, str | None] = {IP: "10.0.0.1"} if name in IP_KEYS else {USER: "u"}
            quotas.alter(connection, entity, name, value)


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[tuple[str, str], Any]]:
    """What shows at once, by row."""
    yield {}


@pytest.fixture(scope="module")
def broker(seen: dict[tuple[str, str], Any]) -> Iterator[EmbeddedBroker]:
    """With everything set, then started again."""
    telemetry = {
        "kbroker.telemetry.receiver": "metrics",
        "kbroker.metrics.listener": "127.0.0.1:0",
    }
    with EmbeddedBroker(telemetry) as one:
        one.create_topic(TOPIC)
        for kind, name, values, _ in RESOURCES.values():
            settings = [(key, 0, value) for key, value in values.items()]
            assert alter(one, name, *settings, kind=int(kind)) == (0, None)
        set_quotas(one)
        for row, expected in ROWS.items():
            if expected is not None:
                seen[row] = one.call(expected[0])
        one.restart()
        yield one


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row))
def test_it_is_in_effect_at_once_and_after_a_restart(
    broker: EmbeddedBroker, seen: dict[tuple[str, str], Any], row: tuple[str, str]
) -> None:
    expected = ROWS[row]
    if expected is None:
        assert row not in seen  # not served: listed, as the next test shows
        return
    probe, value = expected
    assert (seen[row], broker.call(probe)) == (value, value)


@pytest.mark.parametrize("kind", RESOURCES)
def test_it_is_listed(broker: EmbeddedBroker, kind: str) -> None:
    resource, name, values, source = RESOURCES[kind]
    listed = {
        key: (value, where) for key, (value, where, _) in describe(broker, name, resource).items()
    }
    expected = {key: (value, source) for key, value in values.items()}
    assert {key: listed.get(key) for key in expected} == expected


def test_quotas_are_listed(broker: EmbeddedBroker) -> None:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        listed = {name: value for _, name, value in quotas.described(connection)}
    assert listed == QUOTA_VALUES
