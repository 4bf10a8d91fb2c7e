"""`LogConfig`: the typed settings of one topic's logs: its overrides and the broker's defaults.

`topic_table` maps topic keys to the broker keys of their defaults; `topic_configs` validates names
and values.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.rules import retention_ms, roll_jitter_ms, roll_ms
from kbroker.settings.tables.keys import ConfigError, Value, parse
from kbroker.settings.tables.topic_table import TOPIC_BROKER_KEYS, TOPIC_KEYS
from kbroker.settings.views.network import MEMORY_LIMIT

logger = logging.getLogger(__name__)

NEVER: Final = 2**63 - 1
"""The default of flush.messages."""

NO_LOWER_BOUND_MS: Final = 1 << 60
"""A message.timestamp.before.max.ms of this or more rejects no timestamp."""

KNOWN_CONFIGS: Final = 1000
"""How many distinct sets of overrides LogConfigs caches."""

MAX_UNPACKED_BYTES: Final = 128 * 1024 * 1024
MIN_UNPACKED_BYTES: Final = 1024 * 1024
UNPACKED_SHARE: Final = 5 / 64
"""The share of `kbroker.memory.limit.bytes` to which one batch may decompress. A worker holds at
most twice that while it recompresses a batch, one worker at a time, and the loop once more for a
search by timestamp: together with the list of the decompressed pieces a quarter of the limit.
"""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The effective settings of one topic. -1 means no limit in retention_ms and retention_bytes.

    Values derived from them that are needed for each batch are computed once, at the end.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    max_message_bytes: int = 1_048_588
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = 2**63 - 1
    message_timestamp_after_max_ms: int = 3_600_000
    min_insync_replicas: int = 1
    flush_messages: int = NEVER
    flush_ms: int = 2**63 - 1
    preallocate: bool = False
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = 86_400_000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    validate_records: bool = False
    """kbroker.validate.records: decode every produced record, as Kafka does."""
    max_unpacked_bytes: int = 20_971_520
    """The largest size to which a batch may decompress where its records are decoded."""

    compact: bool = field(init=False, repr=False, compare=False)
    """Whether compaction is enabled."""
    max_segment_ms: int = field(init=False, repr=False, compare=False)
    """The age at which a segment is rolled: early enough for max.compaction.lag.ms."""
    needs_records: bool = field(init=False, repr=False, compare=False)
    """Whether batches may have to be decompressed when they are appended."""
    largest_plain_batch: int = field(init=False, repr=False, compare=False)
    """The largest batch, in bytes, that may be appended without further processing; 0 if every
    batch needs more: its records, another codec or timestamp, an fsync.
    """
    largest_coordinator_batch: int = field(init=False, repr=False, compare=False)
    """As above for an uncompressed batch of a coordinator, whose records are not checked."""

    def __post_init__(self) -> None:
        compact = "compact" in self.cleanup_policy
        segment_ms = self.segment_ms
        if compact and self.max_compaction_lag_ms > 0:
            segment_ms = min(segment_ms, self.max_compaction_lag_ms)
        object.__setattr__(self, "compact", compact)
        object.__setattr__(self, "max_segment_ms", segment_ms)
        object.__setattr__(
            self,
            "needs_records",
            self.compression_type != "producer"
            or compact
            or self.validate_records
            or self.message_timestamp_before_max_ms < NO_LOWER_BOUND_MS,
        )
        largest = 0
        if self.message_timestamp_type == "CreateTime" and self.flush_messages == NEVER:
            largest = min(self.max_message_bytes, self.segment_bytes)
        is_kept = self.compression_type in ("producer", "uncompressed")
        object.__setattr__(self, "largest_coordinator_batch", largest if is_kept else 0)
        object.__setattr__(self, "largest_plain_batch", 0 if self.needs_records else largest)

    @property
    def delete(self) -> bool:
        """Whether old segments are deleted by time and size."""
        return "delete" in self.cleanup_policy

    @classmethod
    def from_configs(cls, broker: BrokerConfig, overrides: Mapping[str, str]) -> LogConfig:
        """The broker's defaults with the topic's overrides. Raises ConfigError for an invalid
        value.
        """
        values: dict[str, Value] = {
            _field(name): topic_default(broker, name) for name in TOPIC_KEYS if _is_field(name)
        }
        for name, text in overrides.items():
            key = TOPIC_KEYS.get(name)
            if key is None:
                continue
            if name == "internal.segment.bytes":
                values["segment_bytes"] = parse(key, text)
            elif _is_field(name) and not (
                name == "segment.bytes" and "internal.segment.bytes" in overrides
            ):
                values[_field(name)] = parse(key, text)
        policy = values["cleanup_policy"]
        values["validate_records"] = broker.get_bool("kbroker.validate.records")
        values["max_unpacked_bytes"] = max_unpacked_bytes(broker.get_int(MEMORY_LIMIT))
        typed: dict[str, object] = dict(values)
        typed["cleanup_policy"] = frozenset(policy if isinstance(policy, tuple) else ())
        return cls(**typed)  # type: ignore[arg-type]  # names are from the table, checked by a test


class LogConfigs:
    """The settings of topics; topics with the same overrides share one object."""

    __slots__ = ("_broker", "_known")

    def __init__(self, broker: BrokerConfig) -> None:
        self._broker = broker
        self._known: dict[frozenset[tuple[str, str]], LogConfig] = {}

    def reconfigure(self, broker: BrokerConfig) -> None:
        """Use other defaults from now on."""
        self._broker = broker
        self._known.clear()

    def of(self, overrides: Mapping[str, str]) -> LogConfig:
        """As LogConfig.from_configs. An invalid stored value (written by another version) is logged
        and ignored: it affects one topic and must not stop the broker.
        """
        key = frozenset(overrides.items())
        config = self._known.get(key)
        if config is None:
            if len(self._known) >= KNOWN_CONFIGS:
                self._known.clear()
            config = self._known[key] = self._without_faults(dict(overrides))
        return config

    def _without_faults(self, overrides: dict[str, str]) -> LogConfig:
        while True:
            try:
                return LogConfig.from_configs(self._broker, overrides)
            except ConfigError as error:
                logger.error("%s; using the broker's default for this topic", error)
                if overrides.pop(error.name, None) is None:
                    raise


def max_unpacked_bytes(memory_limit_bytes: int) -> int:
    """The number of bytes to which one batch may decompress under this
    `kbroker.memory.limit.bytes`.
    """
    share = int(memory_limit_bytes * UNPACKED_SHARE)
    return min(MAX_UNPACKED_BYTES, max(share, MIN_UNPACKED_BYTES))


def topic_default(broker: BrokerConfig, name: str) -> Value:
    """The default of a topic key: the broker's value, in ms for times."""
    match name:
        case "retention.ms":
            return retention_ms(broker)
        case "segment.ms":
            return roll_ms(broker)
        case "segment.jitter.ms":
            return roll_jitter_ms(broker)
    for broker_key in TOPIC_BROKER_KEYS.get(name, ()):
        value = broker.get(broker_key)
        if value is not None:
            return value
    key = TOPIC_KEYS[name]
    return None if key.default is None else parse(key, key.default)


def _field(name: str) -> str:
    return name.replace(".", "_")


def _is_field(name: str) -> bool:
    return _field(name) in LogConfig.__dataclass_fields__
