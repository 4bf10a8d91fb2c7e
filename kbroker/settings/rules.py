"""Rules between several broker keys, as Kafka checks them at start."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Protocol

from kbroker.settings.sections.listeners import Listener
from kbroker.settings.tables.keys import ConfigError, Value


class Settings(Protocol):
    """The part of BrokerConfig that the rules read."""

    def get_int(self, name: str) -> int: ...
    def get_optional_int(self, name: str) -> int | None: ...
    def get_string(self, name: str) -> str: ...
    def get_optional_string(self, name: str) -> str | None: ...
    def get_list(self, name: str) -> tuple[str, ...]: ...
    def is_explicit(self, name: str) -> bool: ...
    def of_listener(self, listener: str, name: str) -> Value: ...
    @property
    def listeners(self) -> Sequence[Listener]: ...
    @property
    def controller_listeners(self) -> Sequence[Listener]: ...
    @property
    def log_dirs(self) -> Sequence[str]: ...


def check(config: Settings) -> None:
    """Raises ConfigError for the first violated rule."""
    _check_times(config)
    _check_connections(config)
    _check_cordoned(config)
    _check_cleaner(config)
    for limit in ("replica.socket.timeout.ms", "replica.lag.time.max.ms"):
        _check_order(config, "replica.fetch.wait.max.ms", limit)
    for key in _CODEC_KEYS:
        if config.is_explicit(key) and not 0 <= (codec := config.get_int(key)) <= 4:
            raise _error(key, codec, "no such codec", _CODECS)
    selector = config.get_optional_string("replica.selector.class")
    if selector not in (None, RACK_AWARE, LEADER):
        reason = "no other class can be loaded here"
        raise _error("replica.selector.class", selector, reason, f"{RACK_AWARE} or {LEADER}")
    segment_bytes = config.get_optional_int("internal.metadata.log.segment.bytes")
    if segment_bytes is not None and segment_bytes < LEAST_METADATA_SEGMENT_BYTES:
        reason = f"the metadata log needs segments of {LEAST_METADATA_SEGMENT_BYTES} bytes"
        raise _error("internal.metadata.log.segment.bytes", segment_bytes, reason, "more")
    protocols = config.get_list("group.coordinator.rebalance.protocols")
    if "classic" not in protocols:
        key, given = "group.coordinator.rebalance.protocols", ",".join(protocols)
        raise _error(
            key, given, "Disabling the 'classic' protocol is not supported", "with classic"
        )
    for kind in ("consumer", "share", "streams"):
        prefix = f"group.{kind}."
        for what in ("session.timeout", "heartbeat.interval", "assignment.interval"):
            _check_order(config, f"{prefix}min.{what}.ms", f"{prefix}{what}.ms")
            _check_order(config, f"{prefix}{what}.ms", f"{prefix}max.{what}.ms")
        interval, timeout = f"{prefix}heartbeat.interval.ms", f"{prefix}session.timeout.ms"
        if config.get_int(interval) >= config.get_int(timeout):
            value, reason = config.get_int(interval), f"{interval} must be less than {timeout}"
            raise _error(interval, value, reason, f"less than {config.get_int(timeout)}")
    _check_order(config, "group.streams.num.standby.replicas", "group.streams.max.standby.replicas")


RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER = "org.apache.kafka.common.replica.LeaderSelector"
"""The values of replica.selector.class (KIP-392); if unset, consumers read from the leader."""

LEAST_METADATA_SEGMENT_BYTES = 8 * 1024 * 1024
"""The minimum of metadata.log.segment.bytes: a batch of metadata that does not fit would stop the
node.
"""

LEAST_DEDUPE_BYTES = 1024 * 1024
"""A cleaner thread needs more of log.cleaner.dedupe.buffer.size."""

_HOST_CHARACTERS = frozenset(string.ascii_letters + string.digits + "-%._:")
"""Those of Kafka's Utils.validHostPattern."""

LISTENER_KEYS = ("max.connections", "max.connection.creation.rate")
"""Keys that a listener can override: listener.name.<listener>.<key>."""

_CODEC_KEYS = (
    "offsets.topic.compression.codec",
    "share.coordinator.state.topic.compression.codec",
)
_CODECS = "0 (none), 1 (gzip), 2 (snappy), 3 (lz4), 4 (zstd)"


def retention_ms(config: Settings) -> int:
    """log.retention.ms, else .minutes, else .hours, in ms; -1 for no limit."""
    value = config.get_optional_int("log.retention.ms")
    if value is None:
        minutes = config.get_optional_int("log.retention.minutes")
        if minutes is not None:
            value = minutes * 60_000
        else:
            value = config.get_int("log.retention.hours") * 3_600_000
    return max(value, -1)


def roll_ms(config: Settings) -> int:
    """log.roll.ms, else log.roll.hours, in ms."""
    value = config.get_optional_int("log.roll.ms")
    return config.get_int("log.roll.hours") * 3_600_000 if value is None else value


def roll_jitter_ms(config: Settings) -> int:
    """log.roll.jitter.ms, else log.roll.jitter.hours, in ms."""
    value = config.get_optional_int("log.roll.jitter.ms")
    return config.get_int("log.roll.jitter.hours") * 3_600_000 if value is None else value


def _check_times(config: Settings) -> None:
    if retention_ms(config) == 0:
        for key in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
            if config.is_explicit(key):
                raise _error(key, 0, "a retention of 0 would keep nothing", "1 up, or -1")
    if roll_ms(config) < 1:
        raise _error("log.roll.ms", roll_ms(config), "Value must be at least 1", "1 up")
    if roll_jitter_ms(config) < 0:
        value = roll_jitter_ms(config)
        raise _error("log.roll.jitter.ms", value, "Value must be at least 0", "0 up")


def _check_connections(config: Settings) -> None:
    overrides = "max.connections.per.ip.overrides"
    parse_per_ip_overrides(config.get_string(overrides))
    if config.get_int("max.connections.per.ip") == 0 and not config.get_string(overrides):
        allowed = f"1 up, or 0 together with {overrides}"
        raise _error("max.connections.per.ip", 0, "0 would allow no connections", allowed)
    for listener in (*config.listeners, *config.controller_listeners):
        for key in LISTENER_KEYS:
            config.of_listener(listener.name, key)  # raises ConfigError if it is invalid
    metrics = config.get_string("kbroker.metrics.listener")
    host, _, port = metrics.rpartition(":")
    if metrics and (not host or not port.isdecimal() or int(port) > 65535):
        name = "kbroker.metrics.listener"
        raise _error(name, metrics, "it names no address", "host:port, or empty for none")
    queued = config.get_int("queued.max.request.bytes")
    largest = config.get_int("socket.request.max.bytes")
    if 0 < queued < largest:
        allowed = f"socket.request.max.bytes ({largest}) up, or -1"
        reason = "it must be larger or equal to socket.request.max.bytes"
        raise _error("queued.max.request.bytes", queued, reason, allowed)

    idle, delay = "connections.max.idle.ms", "connection.failed.authentication.delay.ms"
    idle_ms, delay_ms = config.get_int(idle), config.get_int(delay)
    if 0 <= idle_ms <= delay_ms:
        reason = f"{idle} must be greater than {delay}"
        if config.is_explicit(idle):
            raise _error(idle, idle_ms, reason, f"{delay_ms + 1} up, or -1 for no limit")
        raise _error(delay, delay_ms, reason, f"less than {idle_ms}")


def _check_cleaner(config: Settings) -> None:
    _check_order(config, "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms")
    size, threads = "log.cleaner.dedupe.buffer.size", "log.cleaner.threads"
    count = max(config.get_int(threads), 1)
    if config.get_int(size) // count <= LEAST_DEDUPE_BYTES:
        reason = f"each of {count} {threads} needs more than {LEAST_DEDUPE_BYTES} bytes"
        culprit = size if config.is_explicit(size) else threads
        allowed = f"{size} of {(LEAST_DEDUPE_BYTES + 1) * count} up"
        raise _error(culprit, config.get_int(culprit), reason, allowed)


def _check_cordoned(config: Settings) -> None:
    name = "cordoned.log.dirs"
    cordoned = config.get_list(name)
    if "*" in cordoned:
        if len(cordoned) > 1:
            reason = "* must not be beside other values"
            raise _error(name, ",".join(cordoned), reason, "* alone, or entries of log.dirs")
        return
    unknown = [path for path in cordoned if path not in config.log_dirs]
    if unknown:
        reason = f"{unknown[0]} is no entry of log.dirs"
        raise _error(name, ",".join(cordoned), reason, ", ".join(config.log_dirs))


def parse_per_ip_overrides(text: str) -> dict[str, int]:
    """`host:count,...` to a dict. Raises ConfigError."""
    name = "max.connections.per.ip.overrides"
    counts: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, colon, count = item.rpartition(":")
        if not colon or not count.strip().isdecimal():
            raise _error(name, text, f"cannot read {item}", "host:count,host:count")
        if not _HOST_CHARACTERS.issuperset(host.strip().strip("[]")):
            raise _error(name, text, f"invalid address {host}", "host:count,host:count")
        counts[host.strip().strip("[]")] = int(count)
    return counts


def _check_order(config: Settings, small: str, large: str) -> None:
    if not (config.is_explicit(small) or config.is_explicit(large)):
        return
    low, high = config.get_int(small), config.get_int(large)
    if low > high:
        culprit, allowed = (small, f"at most {high}")
        if not config.is_explicit(small):
            culprit, allowed = (large, f"at least {low}")
        reason = f"{small} must be less than or equal to {large}"
        raise _error(culprit, config.get_int(culprit), reason, allowed)


def _error(name: str, value: object, reason: str, allowed: str) -> ConfigError:
    return ConfigError(name, str(value), reason, allowed)
