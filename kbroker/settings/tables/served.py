"""The broker configurations that kbroker implements, those it ignores without a warning, and its
own.

See `table` for all configurations. A key is added to SERVED_KEYS with the code that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.settings.tables.keys import ConfigKey, ConfigType


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SERVED_KEYS: Final = _words(
    """
    add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
    advertised.listeners alter.config.policy.class.name
    auto.create.topics.enable auto.leader.rebalance.enable
    broker.heartbeat.interval.ms broker.id broker.rack broker.session.timeout.ms
    compression.gzip.level
    compression.lz4.level compression.type compression.zstd.level connections.max.idle.ms
    controlled.shutdown.enable
    controller.listener.names controller.quorum.auto.join.enable
    controller.quorum.bootstrap.servers controller.quorum.election.backoff.max.ms
    controller.quorum.election.timeout.ms controller.quorum.fetch.max.bytes
    controller.quorum.fetch.snapshot.max.bytes controller.quorum.fetch.timeout.ms
    controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms
    controller.quorum.voters
    controller.quota.window.num controller.quota.window.size.seconds
    controller.socket.timeout.ms cordoned.log.dirs create.topic.policy.class.name
    default.replication.factor delete.topic.enable
    fetch.max.bytes
    group.consumer.assignment.interval.ms group.consumer.assignors
    group.consumer.heartbeat.interval.ms group.consumer.max.assignment.interval.ms
    group.consumer.max.heartbeat.interval.ms group.consumer.max.session.timeout.ms
    group.consumer.max.size group.consumer.migration.policy
    group.consumer.min.assignment.interval.ms
    group.consumer.min.heartbeat.interval.ms group.consumer.min.session.timeout.ms
    group.consumer.session.timeout.ms
    group.coordinator.rebalance.protocols
    group.initial.rebalance.delay.ms group.max.session.timeout.ms group.max.size
    group.min.session.timeout.ms
    group.share.assignment.interval.ms group.share.delivery.count.limit
    group.share.heartbeat.interval.ms group.share.initialize.retry.interval.ms
    group.share.max.assignment.interval.ms group.share.max.delivery.count.limit
    group.share.max.heartbeat.interval.ms group.share.max.partition.max.record.locks
    group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms
    group.share.max.share.sessions group.share.max.size
    group.share.min.assignment.interval.ms group.share.min.delivery.count.limit
    group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks
    group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
    group.share.partition.max.record.locks
    group.share.record.lock.duration.ms group.share.session.timeout.ms
    group.streams.assignment.interval.ms group.streams.heartbeat.interval.ms
    group.streams.initial.rebalance.delay.ms group.streams.max.assignment.interval.ms
    group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms
    group.streams.max.size group.streams.max.standby.replicas
    group.streams.min.assignment.interval.ms group.streams.min.heartbeat.interval.ms
    group.streams.min.session.timeout.ms
    group.streams.num.standby.replicas group.streams.session.timeout.ms
    initial.broker.registration.timeout.ms inter.broker.listener.name
    internal.metadata.log.segment.bytes leader.imbalance.check.interval.seconds
    listener.security.protocol.map listeners log.cleaner.backoff.ms
    log.cleaner.dedupe.buffer.size log.cleaner.delete.retention.ms log.cleaner.enable
    log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size
    log.cleaner.io.max.bytes.per.second log.cleaner.max.compaction.lag.ms
    log.cleaner.min.cleanable.ratio log.cleaner.min.compaction.lag.ms log.cleaner.threads
    log.cleanup.policy log.dir log.dir.failure.timeout.ms log.dirs
    log.flush.interval.messages log.flush.interval.ms log.flush.offset.checkpoint.interval.ms
    log.flush.scheduler.interval.ms log.flush.start.offset.checkpoint.interval.ms
    log.index.interval.bytes log.index.size.max.bytes log.message.timestamp.after.max.ms
    log.message.timestamp.before.max.ms log.message.timestamp.type log.preallocate
    log.retention.bytes log.retention.check.interval.ms log.retention.hours log.retention.minutes
    log.retention.ms log.roll.hours log.roll.jitter.hours log.roll.jitter.ms log.roll.ms
    log.segment.bytes log.segment.delete.delay.ms max.connection.creation.rate
    max.connections max.connections.per.ip
    max.connections.per.ip.overrides max.incremental.fetch.session.cache.slots
    max.request.partition.size.limit message.max.bytes metadata.log.dir
    metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms
    metadata.log.segment.bytes metadata.log.segment.ms metadata.max.idle.interval.ms
    metadata.max.retention.bytes
    metadata.max.retention.ms min.insync.replicas node.id num.partitions
    num.recovery.threads.per.data.dir num.replica.fetchers
    offset.metadata.max.bytes
    offsets.commit.timeout.ms offsets.load.buffer.size offsets.retention.check.interval.ms
    offsets.retention.minutes
    offsets.topic.compression.codec offsets.topic.num.partitions offsets.topic.replication.factor
    offsets.topic.segment.bytes process.roles producer.id.expiration.ms queued.max.request.bytes
    queued.max.requests quota.window.num quota.window.size.seconds
    replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.min.bytes
    replica.fetch.response.max.bytes replica.fetch.wait.max.ms
    replica.high.watermark.checkpoint.interval.ms replica.lag.time.max.ms
    replica.selector.class
    replica.socket.timeout.ms
    replication.quota.window.num replication.quota.window.size.seconds
    request.timeout.ms
    security.inter.broker.protocol share.coordinator.snapshot.update.records.per.snapshot
    share.coordinator.state.topic.compression.codec share.coordinator.state.topic.num.partitions
    share.coordinator.state.topic.prune.interval.ms
    share.coordinator.state.topic.segment.bytes share.coordinator.write.timeout.ms
    socket.listen.backlog.size socket.receive.buffer.bytes
    socket.request.max.bytes socket.send.buffer.bytes
    telemetry.max.bytes transaction.state.log.segment.bytes
    transaction.abort.timed.out.transaction.cleanup.interval.ms transaction.max.timeout.ms
    transaction.partition.verification.enable
    transaction.remove.expired.transaction.cleanup.interval.ms transaction.state.log.num.partitions
    transactional.id.expiration.ms unclean.leader.election.enable
    unclean.leader.election.interval.ms
    """
)
"""Keys that kbroker implements. Any other key that is set is listed in a warning at start."""

QUIET_KEYS: Final = _words(
    """
    background.threads group.coordinator.cached.buffer.max.bytes group.coordinator.threads
    num.io.threads num.network.threads share.coordinator.cached.buffer.max.bytes
    share.coordinator.state.topic.min.isr share.coordinator.state.topic.replication.factor
    transaction.state.log.min.isr transaction.state.log.replication.factor
    """
)
"""Keys without a meaning here (one process, one thread, no write buffer in coordinators), or
without a meaning on a single node: no warning.
"""

OWN_KEYS: Final[Mapping[str, ConfigKey]] = {
    key.name: key
    for key in (
        ConfigKey("kbroker.group.max.pending.members", ConfigType.INT, "1000", "[1,...]"),
        ConfigKey("kbroker.group.members.max.bytes", ConfigType.LONG, "67108864", "[1048576,...]"),
        ConfigKey("kbroker.auto.create.topics.per.request", ConfigType.INT, "100", "[0,...]"),
        ConfigKey("kbroker.list.offsets.max.bytes", ConfigType.LONG, "33554432", "[0,...]"),
        ConfigKey("kbroker.connection.queued.bytes", ConfigType.LONG, "65536", "[0,...]"),
        ConfigKey("kbroker.descriptor.reserve", ConfigType.INT, "64", "[16,...]"),
        ConfigKey("kbroker.memory.limit.bytes", ConfigType.LONG, "268435456", "[1048576,...]"),
        ConfigKey("kbroker.metrics.listener", ConfigType.STRING, ""),
        ConfigKey("kbroker.metrics.max.series", ConfigType.INT, "200000", "[1000,...]"),
        ConfigKey("kbroker.telemetry.receiver", ConfigType.STRING, ""),
        ConfigKey("kbroker.response.max.bytes", ConfigType.LONG, "67108864", "[1024,...]"),
        ConfigKey("kbroker.validate.records", ConfigType.BOOLEAN, "false"),
    )
}
"""kbroker's own keys. Kafka does not know them and ignores them if it reads the file."""

SINGLE_NODE_DEFAULTS: Final[Mapping[str, str]] = {
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
}
"""Replacements for Kafka's defaults (2 and 3 replicas) on a single node."""

WITHOUT_FILE_DEFAULTS: Final[Mapping[str, str]] = {
    "listeners": "PLAINTEXT://localhost:9092",
    "log.dir": "./data",
}
"""Replacements for Kafka's defaults (every interface, the temporary directory) on a broker that is
started without a properties file.
"""
