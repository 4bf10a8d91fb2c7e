"""Every group and client-metrics configuration of Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.settings.tables.keys import ConfigKey, ConfigType
from kbroker.settings.tables.keys import ConfigKey as K

BOOLEAN: Final = ConfigType.BOOLEAN
INT: Final = ConfigType.INT
LIST: Final = ConfigType.LIST
STRING: Final = ConfigType.STRING

_GROUP_ROWS: Final = (
    K("consumer.assignment.interval.ms", INT, "1000", "[0,...]"),
    K("consumer.heartbeat.interval.ms", INT, "5000", "[1,...]"),
    K("consumer.session.timeout.ms", INT, "45000", "[1,...]"),
    K("share.assignment.interval.ms", INT, "1000", "[0,...]"),
    K("share.auto.offset.reset", STRING, "latest", "[latest, earliest, by_duration:PnDTnHnMn.nS]"),
    K("share.delivery.count.limit", INT, "5", "[2,...]"),
    K("share.heartbeat.interval.ms", INT, "5000", "[1,...]"),
    K("share.isolation.level", STRING, "read_uncommitted", "[read_committed, read_uncommitted]"),
    K("share.partition.max.record.locks", INT, "2000", "[100,...]"),
    K("share.record.lock.duration.ms", INT, "30000", "[1000,...]"),
    K("share.renew.acknowledge.enable", BOOLEAN, "true"),
    K("share.session.timeout.ms", INT, "45000", "[1,...]"),
    K("streams.assignment.interval.ms", INT, "1000", "[0,...]"),
    K("streams.heartbeat.interval.ms", INT, "5000", "[1,...]"),
    K("streams.initial.rebalance.delay.ms", INT, "3000", "[0,...]"),
    K("streams.num.standby.replicas", INT, "0", "[0,...]"),
    K("streams.session.timeout.ms", INT, "45000", "[1,...]"),
)

GROUP_KEYS: Final[Mapping[str, ConfigKey]] = {row.name: row for row in _GROUP_ROWS}
"""The configurations of consumer, share and streams groups, by name."""

_CLIENT_METRICS_ROWS: Final = (
    K("interval.ms", INT, "300000"),
    K("match", LIST, ""),
    K("metrics", LIST, ""),
)

CLIENT_METRICS_KEYS: Final[Mapping[str, ConfigKey]] = {
    row.name: row for row in _CLIENT_METRICS_ROWS
}
"""The configurations of a client-metrics subscription (KIP-714), by name."""


GROUP_BROKER_KEYS: Final[Mapping[str, str]] = {
    "consumer.assignment.interval.ms": "group.consumer.assignment.interval.ms",
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
    "share.assignment.interval.ms": "group.share.assignment.interval.ms",
    "share.delivery.count.limit": "group.share.delivery.count.limit",
    "share.heartbeat.interval.ms": "group.share.heartbeat.interval.ms",
    "share.partition.max.record.locks": "group.share.partition.max.record.locks",
    "share.record.lock.duration.ms": "group.share.record.lock.duration.ms",
    "share.session.timeout.ms": "group.share.session.timeout.ms",
    "streams.assignment.interval.ms": "group.streams.assignment.interval.ms",
    "streams.heartbeat.interval.ms": "group.streams.heartbeat.interval.ms",
    "streams.initial.rebalance.delay.ms": "group.streams.initial.rebalance.delay.ms",
    "streams.num.standby.replicas": "group.streams.num.standby.replicas",
    "streams.session.timeout.ms": "group.streams.session.timeout.ms",
}
"""Group key to the broker key of its default."""
