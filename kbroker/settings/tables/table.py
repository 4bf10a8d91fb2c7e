"""Every broker configuration of Kafka 4.3.1.

One row: name, type, default, allowed values, importance, update mode. May be omitted at the end of
a row: READ_ONLY, then MEDIUM, then "any value". A test compares the rows with Kafka's own. The rows
of logs, security and the group coordinator are in `log_table`, `security_table` and
`group_coordinator_table`. The keys that kbroker serves are in `served`, topic keys in
`topic_table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.settings.tables.group_coordinator_table import GROUP_COORDINATOR_ROWS
from kbroker.settings.tables.keys import (
    CLUSTER,
    HIGH,
    LOW,
    MEDIUM,
    PER_BROKER,
    READ_ONLY,
    ConfigKey,
    ConfigType,
)
from kbroker.settings.tables.keys import ConfigKey as K
from kbroker.settings.tables.log_table import LOG_ROWS
from kbroker.settings.tables.security_table import SECURITY_ROWS

BOOLEAN: Final = ConfigType.BOOLEAN
CLASS: Final = ConfigType.CLASS
DOUBLE: Final = ConfigType.DOUBLE
INT: Final = ConfigType.INT
LIST: Final = ConfigType.LIST
LONG: Final = ConfigType.LONG
PASSWORD: Final = ConfigType.PASSWORD
SHORT: Final = ConfigType.SHORT
STRING: Final = ConfigType.STRING

_OTHER_ROWS: Final = (
    K("add.partitions.to.txn.retry.backoff.max.ms", INT, "100", "[0,...]", HIGH),
    K("add.partitions.to.txn.retry.backoff.ms", INT, "20", "[1,...]", HIGH),
    K("advertised.listeners", LIST, None, "", HIGH),
    K("alter.config.policy.class.name", CLASS, None, "", LOW),
    K("alter.log.dirs.replication.quota.window.num", INT, "11", "[1,...]", LOW),
    K("alter.log.dirs.replication.quota.window.size.seconds", INT, "1", "[1,...]", LOW),
    K("authorizer.class.name", STRING, "", "non-null string", LOW),
    K("auto.create.topics.enable", BOOLEAN, "true", "", HIGH),
    K("auto.leader.rebalance.enable", BOOLEAN, "true", "", HIGH),
    K("background.threads", INT, "10", "[1,...]", HIGH, CLUSTER),
    K("broker.heartbeat.interval.ms", INT, "2000"),
    K("broker.id", INT, "-1", "", HIGH),
    K("broker.rack", STRING, None),
    K("broker.session.timeout.ms", INT, "9000"),
    K("client.quota.callback.class", CLASS, None, "", LOW),
    K("compression.gzip.level", INT, "-1", "[1,...,9] or -1", MEDIUM, CLUSTER),
    K("compression.lz4.level", INT, "9", "[1,...,17]", MEDIUM, CLUSTER),
    K(
        "compression.type",
        STRING,
        "producer",
        "[uncompressed, zstd, lz4, snappy, gzip, producer]",
        HIGH,
        CLUSTER,
    ),
    K("compression.zstd.level", INT, "3", "[-131072,...,22]", MEDIUM, CLUSTER),
    K("config.providers", LIST, "", "", LOW, CLUSTER),
    K("connection.failed.authentication.delay.ms", INT, "100", "[0,...]", LOW),
    K("connections.max.idle.ms", LONG, "600000"),
    K("connections.max.reauth.ms", LONG, "0"),
    K("controlled.shutdown.enable", BOOLEAN, "true"),
    K("controller.listener.names", LIST, None, "", HIGH),
    K(
        "controller.performance.always.log.threshold.ms",
        LONG,
        "2000",
        "[0,...]",
        MEDIUM,
        READ_ONLY,
        internal=True,
    ),
    K(
        "controller.performance.sample.period.ms",
        LONG,
        "60000",
        "[100,...]",
        MEDIUM,
        READ_ONLY,
        internal=True,
    ),
    K("controller.quorum.append.linger.ms", INT, "25", "[0,...]"),
    K("controller.quorum.auto.join.enable", BOOLEAN, "false", "", LOW),
    K("controller.quorum.bootstrap.servers", LIST, "", "non-empty list", HIGH),
    K("controller.quorum.election.backoff.max.ms", INT, "1000", "[0,...]", HIGH),
    K("controller.quorum.election.timeout.ms", INT, "1000", "[0,...]", HIGH),
    K("controller.quorum.fetch.max.bytes", INT, "1048576", "[1,...]", LOW),
    K("controller.quorum.fetch.snapshot.max.bytes", INT, "1048576", "[1,...]", LOW),
    K("controller.quorum.fetch.timeout.ms", INT, "2000", "[0,...]", HIGH),
    K("controller.quorum.request.timeout.ms", INT, "2000", "[0,...]"),
    K("controller.quorum.retry.backoff.ms", INT, "20", "[0,...]", LOW),
    K("controller.quorum.voters", LIST, "", "non-empty list", HIGH),
    K("controller.quota.window.num", INT, "11", "[1,...]", LOW),
    K("controller.quota.window.size.seconds", INT, "1", "[1,...]", LOW),
    K("controller.socket.timeout.ms", INT, "30000"),
    K("cordoned.log.dirs", LIST, "", "", MEDIUM, PER_BROKER),
    K("create.topic.policy.class.name", CLASS, None, "", LOW),
    K("default.replication.factor", INT, "1"),
    K("delete.records.purgatory.purge.interval.requests", INT, "1"),
    K("delete.topic.enable", BOOLEAN, "true", "", HIGH),
    K("early.start.listeners", LIST, None, "", HIGH),
    K("fetch.max.bytes", INT, "57671680", "[1024,...]"),
    K("fetch.purgatory.purge.interval.requests", INT, "1000"),
    K("follower.fetch.last.tiered.offset.enable", BOOLEAN, "false", "", MEDIUM, CLUSTER),
    K("initial.broker.registration.timeout.ms", INT, "60000"),
    K("inter.broker.listener.name", STRING, None),
    K("internal.metadata.delete.delay.millis", LONG, "60000", "", LOW, READ_ONLY, internal=True),
    K("internal.metadata.log.segment.bytes", INT, None, "", LOW, READ_ONLY, internal=True),
    K(
        "internal.metadata.max.batch.size.in.bytes",
        INT,
        "8388608",
        "",
        LOW,
        READ_ONLY,
        internal=True,
    ),
    K("kafka.metrics.polling.interval.secs", INT, "10", "[1,...]", LOW),
    K("kafka.metrics.reporters", LIST, "", "", LOW),
    K("leader.imbalance.check.interval.seconds", LONG, "300", "[1,...]", HIGH),
    K(
        "listener.security.protocol.map",
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "",
        LOW,
        PER_BROKER,
    ),
    K("listeners", LIST, "PLAINTEXT://:9092", "", HIGH, PER_BROKER),
    K("max.connection.creation.rate", INT, "2147483647", "[0,...]", MEDIUM, CLUSTER),
    K("max.connections", INT, "2147483647", "[0,...]", MEDIUM, CLUSTER),
    K("max.connections.per.ip", INT, "2147483647", "[0,...]", MEDIUM, CLUSTER),
    K("max.connections.per.ip.overrides", STRING, "", "", MEDIUM, CLUSTER),
    K("max.incremental.fetch.session.cache.slots", INT, "1000", "[0,...]"),
    K("max.request.partition.size.limit", INT, "2000", "[1,...]"),
    K("message.max.bytes", INT, "1048588", "[0,...]", HIGH, CLUSTER),
    K("metadata.log.dir", STRING, None, "", HIGH),
    K("metadata.log.max.record.bytes.between.snapshots", LONG, "20971520", "[1,...]", HIGH),
    K("metadata.log.max.snapshot.interval.ms", LONG, "3600000", "[0,...]", HIGH),
    K("metadata.log.segment.bytes", INT, "1073741824", "[8388608,...]", HIGH),
    K("metadata.log.segment.ms", LONG, "604800000", "", HIGH),
    K("metadata.max.idle.interval.ms", INT, "500", "[0,...]", LOW),
    K("metadata.max.retention.bytes", LONG, "104857600", "", HIGH),
    K("metadata.max.retention.ms", LONG, "604800000", "", HIGH),
    K("metric.reporters", LIST, "org.apache.kafka.common.metrics.JmxReporter", "", LOW, CLUSTER),
    K("metrics.num.samples", INT, "2", "[1,...]", LOW),
    K("metrics.recording.level", STRING, "INFO", "", LOW),
    K("metrics.sample.window.ms", LONG, "30000", "[1,...]", LOW),
    K("min.insync.replicas", INT, "1", "[1,...]", HIGH, CLUSTER),
    K("node.id", INT, None, "[0,...]", HIGH),
    K("num.io.threads", INT, "8", "[1,...]", HIGH, CLUSTER),
    K("num.network.threads", INT, "3", "[1,...]", HIGH, CLUSTER),
    K("num.partitions", INT, "1", "[1,...]"),
    K("num.recovery.threads.per.data.dir", INT, "2", "[1,...]", HIGH, CLUSTER),
    K("num.replica.alter.log.dirs.threads", INT, None, "", HIGH),
    K("num.replica.fetchers", INT, "1", "[1,...]", HIGH, CLUSTER),
    K("offset.metadata.max.bytes", INT, "4096", "", HIGH),
    K(
        "principal.builder.class",
        CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        "",
        MEDIUM,
        PER_BROKER,
    ),
    K("process.roles", LIST, None, "[broker, controller]", HIGH),
    K(
        "producer.id.expiration.check.interval.ms",
        INT,
        "600000",
        "[1,...]",
        LOW,
        READ_ONLY,
        internal=True,
    ),
    K("producer.id.expiration.ms", INT, "86400000", "[1,...]", LOW, CLUSTER),
    K("producer.purgatory.purge.interval.requests", INT, "1000"),
    K("queued.max.request.bytes", LONG, "-1"),
    K("queued.max.requests", INT, "500", "[1,...]", HIGH),
    K("quota.window.num", INT, "11", "[1,...]", LOW),
    K("quota.window.size.seconds", INT, "1", "[1,...]", LOW),
    K("replica.fetch.backoff.ms", INT, "1000", "[0,...]"),
    K("replica.fetch.max.bytes", INT, "1048576", "[0,...]"),
    K("replica.fetch.min.bytes", INT, "1", "", HIGH),
    K("replica.fetch.response.max.bytes", INT, "10485760", "[0,...]"),
    K("replica.fetch.wait.max.ms", INT, "500", "", HIGH),
    K("replica.high.watermark.checkpoint.interval.ms", LONG, "5000", "", HIGH),
    K("replica.lag.time.max.ms", LONG, "30000", "", HIGH),
    K("replica.selector.class", STRING, None),
    K("replica.socket.receive.buffer.bytes", INT, "65536", "", HIGH),
    K("replica.socket.timeout.ms", INT, "30000", "", HIGH),
    K("replication.quota.window.num", INT, "11", "[1,...]", LOW),
    K("replication.quota.window.size.seconds", INT, "1", "[1,...]", LOW),
    K("request.timeout.ms", INT, "30000", "", HIGH),
    K(
        "server.max.startup.time.ms",
        LONG,
        "9223372036854775807",
        "[0,...]",
        MEDIUM,
        READ_ONLY,
        internal=True,
    ),
    K("share.coordinator.append.linger.ms", INT, "-1", "[-1,...]"),
    K("share.coordinator.cached.buffer.max.bytes", INT, "1048588", "[524288,...]", MEDIUM, CLUSTER),
    K(
        "share.coordinator.cold.partition.snapshot.interval.ms",
        INT,
        "300000",
        "[1,...]",
        LOW,
        READ_ONLY,
        internal=True,
    ),
    K("share.coordinator.load.buffer.size", INT, "5242880", "[1,...]", HIGH),
    K("share.coordinator.snapshot.update.records.per.snapshot", INT, "500", "[0,...,500]"),
    K("share.coordinator.state.topic.compression.codec", INT, "0", "", HIGH),
    K("share.coordinator.state.topic.min.isr", SHORT, "2", "[1,...]", HIGH),
    K("share.coordinator.state.topic.num.partitions", INT, "50", "[1,...]", HIGH),
    K(
        "share.coordinator.state.topic.prune.interval.ms",
        INT,
        "300000",
        "[1,...]",
        LOW,
        READ_ONLY,
        internal=True,
    ),
    K("share.coordinator.state.topic.replication.factor", SHORT, "3", "[1,...]", HIGH),
    K("share.coordinator.state.topic.segment.bytes", INT, "104857600", "[1,...]", HIGH),
    K("share.coordinator.threads", INT, "1", "[1,...]"),
    K("share.coordinator.write.timeout.ms", INT, "5000", "[1,...]", HIGH),
    K("share.fetch.purgatory.purge.interval.requests", INT, "1000"),
    K("socket.connection.setup.timeout.max.ms", LONG, "30000"),
    K("socket.connection.setup.timeout.ms", LONG, "10000"),
    K("socket.listen.backlog.size", INT, "50", "[1,...]"),
    K("socket.receive.buffer.bytes", INT, "102400", "", HIGH),
    K("socket.request.max.bytes", INT, "104857600", "[1,...]", HIGH),
    K("socket.send.buffer.bytes", INT, "102400", "", HIGH),
    K("telemetry.max.bytes", INT, "1048576", "[1,...]", LOW),
    K("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, "10000", "[1,...]", LOW),
    K("transaction.max.timeout.ms", INT, "900000", "[1,...]", HIGH),
    K("transaction.partition.verification.enable", BOOLEAN, "true", "", LOW, CLUSTER),
    K("transaction.remove.expired.transaction.cleanup.interval.ms", INT, "3600000", "[1,...]", LOW),
    K("transaction.state.log.load.buffer.size", INT, "5242880", "[1,...]", HIGH),
    K("transaction.state.log.min.isr", INT, "2", "[1,...]", HIGH),
    K("transaction.state.log.num.partitions", INT, "50", "[1,...]", HIGH),
    K("transaction.state.log.replication.factor", SHORT, "3", "[1,...]", HIGH),
    K("transaction.state.log.segment.bytes", INT, "104857600", "[1,...]", HIGH),
    K("transaction.two.phase.commit.enable", BOOLEAN, "false", "", LOW),
    K("transactional.id.expiration.ms", INT, "604800000", "[1,...]", HIGH),
    K("unclean.leader.election.enable", BOOLEAN, "false", "", HIGH, CLUSTER),
    K(
        "unclean.leader.election.interval.ms",
        LONG,
        "300000",
        "[1,...]",
        MEDIUM,
        READ_ONLY,
        internal=True,
    ),
    K("unstable.api.versions.enable", BOOLEAN, "false", "", HIGH, READ_ONLY, internal=True),
    K("unstable.feature.versions.enable", BOOLEAN, "false", "", HIGH, READ_ONLY, internal=True),
)

BROKER_KEYS: Final[Mapping[str, ConfigKey]] = {
    row.name: row
    for row in sorted(
        (*GROUP_COORDINATOR_ROWS, *LOG_ROWS, *SECURITY_ROWS, *_OTHER_ROWS), key=lambda row: row.name
    )
}
"""The configurations by name, in alphabetical order."""

DYNAMIC_ONLY_KEYS: Final[Mapping[str, ConfigKey]] = {
    row.name: row
    for row in (
        K(
            "follower.replication.throttled.rate",
            LONG,
            "9223372036854775807",
            "[0,...]",
            MEDIUM,
            CLUSTER,
        ),
        K(
            "leader.replication.throttled.rate",
            LONG,
            "9223372036854775807",
            "[0,...]",
            MEDIUM,
            CLUSTER,
        ),
        K(
            "replica.alter.log.dirs.io.max.bytes.per.second",
            LONG,
            "9223372036854775807",
            "[0,...]",
            MEDIUM,
            CLUSTER,
        ),
    )
}
"""Broker settings that can only be set dynamically."""
