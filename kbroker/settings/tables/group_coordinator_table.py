"""The broker configurations of the group coordinator: group.*, offsets.*.

The columns are explained in table.py, which joins the tables.
"""

from __future__ import annotations

from typing import Final

from kbroker.settings.tables.keys import CLUSTER, HIGH, LOW, MEDIUM, READ_ONLY, ConfigType
from kbroker.settings.tables.keys import ConfigKey as K

INT: Final = ConfigType.INT
LIST: Final = ConfigType.LIST
LONG: Final = ConfigType.LONG
SHORT: Final = ConfigType.SHORT
STRING: Final = ConfigType.STRING

GROUP_COORDINATOR_ROWS: Final = (
    K("group.consumer.assignment.interval.ms", INT, "1000", "[0,...]", MEDIUM, CLUSTER),
    K("group.consumer.assignors", LIST, "uniform,range"),
    K("group.consumer.heartbeat.interval.ms", INT, "5000", "[1,...]"),
    K("group.consumer.max.assignment.interval.ms", INT, "15000", "[0,...]"),
    K("group.consumer.max.heartbeat.interval.ms", INT, "15000", "[1,...]"),
    K("group.consumer.max.session.timeout.ms", INT, "60000", "[1,...]"),
    K("group.consumer.max.size", INT, "2147483647", "[1,...]"),
    K(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        "(case insensitive) [DISABLED, DOWNGRADE, UPGRADE, BIDIRECTIONAL]",
    ),
    K("group.consumer.min.assignment.interval.ms", INT, "0", "[0,...]"),
    K("group.consumer.min.heartbeat.interval.ms", INT, "5000", "[1,...]"),
    K("group.consumer.min.session.timeout.ms", INT, "45000", "[1,...]"),
    K(
        "group.consumer.regex.refresh.interval.ms",
        INT,
        "600000",
        "[10000,...]",
        MEDIUM,
        READ_ONLY,
        internal=True,
    ),
    K("group.consumer.session.timeout.ms", INT, "45000", "[1,...]"),
    K("group.coordinator.append.linger.ms", INT, "-1", "[-1,...]"),
    K("group.coordinator.background.threads", INT, "2", "[1,...]", HIGH),
    K("group.coordinator.cached.buffer.max.bytes", INT, "1048588", "[524288,...]", MEDIUM, CLUSTER),
    K(
        "group.coordinator.rebalance.protocols",
        LIST,
        "classic,consumer,streams",
        "[consumer, classic, share, streams]",
    ),
    K("group.coordinator.threads", INT, "4", "[1,...]", HIGH),
    K("group.initial.rebalance.delay.ms", INT, "3000"),
    K("group.max.session.timeout.ms", INT, "1800000"),
    K("group.max.size", INT, "2147483647", "[1,...]"),
    K("group.min.session.timeout.ms", INT, "6000"),
    K("group.share.assignment.interval.ms", INT, "1000", "[0,...]", MEDIUM, CLUSTER),
    K("group.share.assignors", LIST, "simple"),
    K("group.share.delivery.count.limit", INT, "5", "[2,...,10]"),
    K("group.share.heartbeat.interval.ms", INT, "5000", "[1,...]"),
    K(
        "group.share.initialize.retry.interval.ms",
        INT,
        "30000",
        "[1,...]",
        LOW,
        READ_ONLY,
        internal=True,
    ),
    K("group.share.max.assignment.interval.ms", INT, "15000", "[0,...]"),
    K("group.share.max.delivery.count.limit", INT, "10", "[5,...,25]"),
    K("group.share.max.heartbeat.interval.ms", INT, "15000", "[1,...]"),
    K("group.share.max.partition.max.record.locks", INT, "4000", "[2000,...,10000]"),
    K("group.share.max.record.lock.duration.ms", INT, "60000", "[30000,...,3600000]"),
    K("group.share.max.session.timeout.ms", INT, "60000", "[1,...]"),
    K("group.share.max.share.sessions", INT, "2000", "[1,...]"),
    K("group.share.max.size", INT, "200", "[1,...,1000]"),
    K("group.share.min.assignment.interval.ms", INT, "0", "[0,...]"),
    K("group.share.min.delivery.count.limit", INT, "2", "[2,...,5]"),
    K("group.share.min.heartbeat.interval.ms", INT, "5000", "[1,...]"),
    K("group.share.min.partition.max.record.locks", INT, "100", "[100,...,2000]"),
    K("group.share.min.record.lock.duration.ms", INT, "15000", "[1000,...,30000]"),
    K("group.share.min.session.timeout.ms", INT, "45000", "[1,...]"),
    K("group.share.partition.max.record.locks", INT, "2000", "[100,...,10000]"),
    K(
        "group.share.persister.class.name",
        STRING,
        "org.apache.kafka.server.share.persister.DefaultStatePersister",
        "",
        MEDIUM,
        READ_ONLY,
        internal=True,
    ),
    K("group.share.record.lock.duration.ms", INT, "30000", "[1000,...,3600000]"),
    K("group.share.session.timeout.ms", INT, "45000", "[1,...]"),
    K("group.streams.assignment.interval.ms", INT, "1000", "[0,...]", MEDIUM, CLUSTER),
    K("group.streams.heartbeat.interval.ms", INT, "5000", "[1,...]"),
    K("group.streams.initial.rebalance.delay.ms", INT, "3000", "[0,...]"),
    K("group.streams.max.assignment.interval.ms", INT, "15000", "[0,...]"),
    K("group.streams.max.heartbeat.interval.ms", INT, "15000", "[1,...]"),
    K("group.streams.max.session.timeout.ms", INT, "60000", "[1,...]"),
    K("group.streams.max.size", INT, "2147483647", "[1,...]"),
    K("group.streams.max.standby.replicas", INT, "2", "[0,...]"),
    K("group.streams.min.assignment.interval.ms", INT, "0", "[0,...]"),
    K("group.streams.min.heartbeat.interval.ms", INT, "5000", "[1,...]"),
    K("group.streams.min.session.timeout.ms", INT, "45000", "[1,...]"),
    K("group.streams.num.standby.replicas", INT, "0", "[0,...]"),
    K("group.streams.session.timeout.ms", INT, "45000", "[1,...]"),
    K("offsets.commit.timeout.ms", INT, "5000", "[1,...]", HIGH),
    K("offsets.load.buffer.size", INT, "5242880", "[1,...]", HIGH),
    K("offsets.retention.check.interval.ms", LONG, "600000", "[1,...]", HIGH),
    K("offsets.retention.minutes", INT, "10080", "[1,...]", HIGH),
    K("offsets.topic.compression.codec", INT, "0", "", HIGH),
    K("offsets.topic.num.partitions", INT, "50", "[1,...]", HIGH),
    K("offsets.topic.replication.factor", SHORT, "3", "[1,...]", HIGH),
    K("offsets.topic.segment.bytes", INT, "104857600", "[1,...]", HIGH),
)
