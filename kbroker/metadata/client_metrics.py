"""Subscriptions to metrics of clients (KIP-714): settings of the resource CLIENT_METRICS, checked
and typed (Kafka's ClientMetricsConfigs).

`broker/telemetry/client_telemetry` sends them to clients. A pattern matches a whole value; patterns
are RE2, in Kafka they are Java's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kbroker.log_lines import shown
from kbroker.metadata.patterns import matcher
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.tables.group_table import CLIENT_METRICS_KEYS
from kbroker.settings.tables.keys import ConfigError, Value, parse

DEFAULT_INTERVAL_MS: Final = 300_000
MIN_INTERVAL_MS: Final = 100
MAX_INTERVAL_MS: Final = 3_600_000

ALL_METRICS: Final = "*"
"""Used instead of prefixes: all metrics."""

CLIENT_INSTANCE_ID: Final = "client_instance_id"
CLIENT_ID: Final = "client_id"
CLIENT_SOFTWARE_NAME: Final = "client_software_name"
CLIENT_SOFTWARE_VERSION: Final = "client_software_version"
CLIENT_SOURCE_ADDRESS: Final = "client_source_address"
CLIENT_SOURCE_PORT: Final = "client_source_port"

MAX_PATTERN_CHARACTERS: Final = 250
"""The maximum length of a pattern. RE2 takes some milliseconds to compile the worst pattern of this
length, and half a second for one of 20 KB. Kafka has no limit.
"""

ATTRIBUTES: Final = frozenset(
    {
        CLIENT_INSTANCE_ID,
        CLIENT_ID,
        CLIENT_SOFTWARE_NAME,
        CLIENT_SOFTWARE_VERSION,
        CLIENT_SOURCE_ADDRESS,
        CLIENT_SOURCE_PORT,
    }
)
"""The client attributes that a pattern can match."""


class MetricsSubscription(NamedTuple):
    """metrics: prefixes of names, or `ALL_METRICS`. match: patterns by attribute, all of which must
    match a client; empty: every client matches.
    """

    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, Callable[[str], bool]]

    def matches(self, attributes: Mapping[str, str | None]) -> bool:
        """Whether a client with these attributes has the subscription."""
        return all(
            (value := attributes.get(name)) is not None and matches(value)
            for name, matches in self.match.items()
        )


def check_subscription(name: str, values: Mapping[str, str]) -> MetricsSubscription:
    """The subscription with these settings. Raises KafkaError, with Kafka's codes and texts."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    for key in values:
        if key not in CLIENT_METRICS_KEYS:
            message = f"Unknown client metrics configuration: {shown(key)}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    try:
        parsed = {key: parse(CLIENT_METRICS_KEYS[key], text) for key, text in values.items()}
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    interval_ms = parsed.get("interval.ms", DEFAULT_INTERVAL_MS)
    if not isinstance(interval_ms, int) or not MIN_INTERVAL_MS <= interval_ms <= MAX_INTERVAL_MS:
        message = (
            f"Invalid value {interval_ms} for interval.ms, interval must be between 100 and 3600000"
            " (1 hour)"
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    match = dict(map(_matched, _items(parsed.get("match"))))
    return MetricsSubscription(_items(parsed.get("metrics")), interval_ms, match)


def _items(value: Value) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


def _matched(text: str) -> tuple[str, Callable[[str], bool]]:
    """`attribute=pattern`; of two for the same attribute the last is used."""
    parts = text.rstrip("=").split("=")
    name = parts[0].strip()
    if len(parts) != 2 or name not in ATTRIBUTES or len(text) > MAX_PATTERN_CHARACTERS:
        raise _illegal(text)
    try:
        return name, matcher(parts[1].strip())
    except KafkaError:
        raise _illegal(text) from None


def _illegal(text: str) -> KafkaError:
    message = f"Illegal client matching pattern: {shown(text)}"
    return KafkaError(ErrorCode.INVALID_CONFIG, message)
