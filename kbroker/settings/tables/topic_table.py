"""Every topic configuration of Kafka 4.3.1, and the broker configurations of their defaults.

The broker's table is `table`; the typed form of these is `log_config.LogConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.settings.tables.keys import MEDIUM, ConfigKey, ConfigType
from kbroker.settings.tables.keys import ConfigKey as K

BOOLEAN: Final = ConfigType.BOOLEAN
DOUBLE: Final = ConfigType.DOUBLE
INT: Final = ConfigType.INT
LIST: Final = ConfigType.LIST
LONG: Final = ConfigType.LONG
STRING: Final = ConfigType.STRING

_TOPIC_ROWS: Final = (
    K("cleanup.policy", LIST, "delete", "[compact, delete]"),
    K("compression.gzip.level", INT, "-1", "[1,...,9] or -1"),
    K("compression.lz4.level", INT, "9", "[1,...,17]"),
    K("compression.type", STRING, "producer", "[uncompressed, zstd, lz4, snappy, gzip, producer]"),
    K("compression.zstd.level", INT, "3", "[-131072,...,22]"),
    K("delete.retention.ms", LONG, "86400000", "[0,...]"),
    K("file.delete.delay.ms", LONG, "60000", "[0,...]"),
    K("flush.messages", LONG, "9223372036854775807", "[1,...]"),
    K("flush.ms", LONG, "9223372036854775807", "[0,...]"),
    K(
        "follower.replication.throttled.replicas",
        LIST,
        "",
        "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
    ),
    K("index.interval.bytes", INT, "4096", "[0,...]"),
    K("internal.segment.bytes", INT, None, "", MEDIUM, internal=True),
    K(
        "leader.replication.throttled.replicas",
        LIST,
        "",
        "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
    ),
    K("local.retention.bytes", LONG, "-2", "[-2,...]"),
    K("local.retention.ms", LONG, "-2", "[-2,...]"),
    K("max.compaction.lag.ms", LONG, "9223372036854775807", "[1,...]"),
    K("max.message.bytes", INT, "1048588", "[0,...]"),
    K("message.timestamp.after.max.ms", LONG, "3600000", "[0,...]"),
    K("message.timestamp.before.max.ms", LONG, "9223372036854775807", "[0,...]"),
    K("message.timestamp.type", STRING, "CreateTime", "[CreateTime, LogAppendTime]"),
    K("min.cleanable.dirty.ratio", DOUBLE, "0.5", "[0,...,1]"),
    K("min.compaction.lag.ms", LONG, "0", "[0,...]"),
    K("min.insync.replicas", INT, "1", "[1,...]"),
    K("preallocate", BOOLEAN, "false"),
    K("remote.log.copy.disable", BOOLEAN, "false"),
    K("remote.log.delete.on.disable", BOOLEAN, "false"),
    K("remote.storage.enable", BOOLEAN, "false"),
    K("retention.bytes", LONG, "-1"),
    K("retention.ms", LONG, "604800000", "[-1,...]"),
    K("segment.bytes", INT, "1073741824", "[1048576,...]"),
    K("segment.index.bytes", INT, "10485760", "[4,...]"),
    K("segment.jitter.ms", LONG, "0", "[0,...]"),
    K("segment.ms", LONG, "604800000", "[1,...]"),
    K("unclean.leader.election.enable", BOOLEAN, "false"),
)

TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = {row.name: row for row in _TOPIC_ROWS}
"""The configurations by name, in alphabetical order."""

DESCRIBED_TOPIC_KEYS: Final = (
    *(
        TOPIC_KEYS[name]
        for name in (
            "compression.type",
            "remote.log.delete.on.disable",
            "leader.replication.throttled.replicas",
            "remote.storage.enable",
            "min.insync.replicas",
            "segment.jitter.ms",
            "remote.log.copy.disable",
            "local.retention.ms",
            "cleanup.policy",
            "flush.ms",
            "follower.replication.throttled.replicas",
            "compression.lz4.level",
            "segment.bytes",
            "retention.ms",
            "compression.gzip.level",
            "flush.messages",
            "compression.zstd.level",
            "max.compaction.lag.ms",
            "file.delete.delay.ms",
            "max.message.bytes",
            "min.compaction.lag.ms",
            "message.timestamp.type",
            "local.retention.bytes",
            "preallocate",
            "index.interval.bytes",
            "min.cleanable.dirty.ratio",
            "unclean.leader.election.enable",
            "retention.bytes",
            "delete.retention.ms",
            "message.timestamp.after.max.ms",
            "message.timestamp.before.max.ms",
            "segment.ms",
            "segment.index.bytes",
        )
    ),
    TOPIC_KEYS["internal.segment.bytes"],
)
"""The order of Kafka's DescribeConfigs, which is that of a hash map: `kafka-topics.sh --describe`
prints it. An internal one is last.
"""


TOPIC_BROKER_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "cleanup.policy": ("log.cleanup.policy",),
    "compression.gzip.level": ("compression.gzip.level",),
    "compression.lz4.level": ("compression.lz4.level",),
    "compression.type": ("compression.type",),
    "compression.zstd.level": ("compression.zstd.level",),
    "delete.retention.ms": ("log.cleaner.delete.retention.ms",),
    "file.delete.delay.ms": ("log.segment.delete.delay.ms",),
    "flush.messages": ("log.flush.interval.messages",),
    "flush.ms": (
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
    ),
    "index.interval.bytes": ("log.index.interval.bytes",),
    "local.retention.bytes": ("log.local.retention.bytes",),
    "local.retention.ms": ("log.local.retention.ms",),
    "max.compaction.lag.ms": ("log.cleaner.max.compaction.lag.ms",),
    "max.message.bytes": ("message.max.bytes",),
    "message.timestamp.after.max.ms": ("log.message.timestamp.after.max.ms",),
    "message.timestamp.before.max.ms": ("log.message.timestamp.before.max.ms",),
    "message.timestamp.type": ("log.message.timestamp.type",),
    "min.cleanable.dirty.ratio": ("log.cleaner.min.cleanable.ratio",),
    "min.compaction.lag.ms": ("log.cleaner.min.compaction.lag.ms",),
    "min.insync.replicas": ("min.insync.replicas",),
    "preallocate": ("log.preallocate",),
    "retention.bytes": ("log.retention.bytes",),
    "retention.ms": (
        "log.retention.ms",
        "log.retention.minutes",
        "log.retention.hours",
    ),
    "segment.bytes": ("log.segment.bytes",),
    "segment.index.bytes": ("log.index.size.max.bytes",),
    "segment.jitter.ms": (
        "log.roll.jitter.ms",
        "log.roll.jitter.hours",
    ),
    "segment.ms": (
        "log.roll.ms",
        "log.roll.hours",
    ),
    "unclean.leader.election.enable": ("unclean.leader.election.enable",),
}
"""Topic key to the broker keys of its default, in order of precedence."""

UNIT_MS: Final[Mapping[str, int]] = {
    "log.retention.minutes": 60_000,
    "log.retention.hours": 3_600_000,
    "log.roll.hours": 3_600_000,
    "log.roll.jitter.hours": 3_600_000,
}
"""Milliseconds per unit, for the broker keys whose unit is not milliseconds."""
