"""Configuration keys, and the parsing of their values, as in Kafka.

The tables (`table`, `topic_table`, `group_table`) have rows of `ConfigKey`. Validators are in the
notation that Kafka prints (`[1,...]`, `[compact, delete]`); `check` interprets it. Errors have
Kafka's wording, which clients show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from math import isfinite, isnan
from typing import Final, NamedTuple

from kbroker.settings.durations import duration_ms

Value = bool | int | float | str | tuple[str, ...] | None
"""A parsed configuration value: lists are tuples, passwords and classes plain strings."""


class ConfigType(IntEnum):
    """Types with the codes of DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """The source of a value, with the codes of DescribeConfigs."""

    UNKNOWN = 0
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ResourceType(IntEnum):
    """The type of the resource of a configuration, with the codes of DescribeConfigs and
    ConfigRecord.
    """

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


READ_ONLY: Final = "read-only"
PER_BROKER: Final = "per-broker"
CLUSTER: Final = "cluster-wide"

HIGH: Final = "high"
MEDIUM: Final = "medium"
LOW: Final = "low"


class ConfigKey(NamedTuple):
    """One row of a table.

    default: as text, None for null. allowed: Kafka's notation of the validator, "" for any value.
    update_mode: READ_ONLY, PER_BROKER or CLUSTER, for broker keys. internal: hidden from
    DescribeConfigs unless it is set.
    """

    name: str
    type: ConfigType
    default: str | None
    allowed: str = ""
    importance: str = MEDIUM
    update_mode: str = READ_ONLY
    internal: bool = False

    @property
    def sensitive(self) -> bool:
        """Whether the value is never shown."""
        return self.type is ConfigType.PASSWORD


class ConfigError(ValueError):
    """An invalid configuration. `str()` is Kafka's wording; `allowed` describes valid values."""

    def __init__(self, name: str, value: str | None, message: str, allowed: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.value = value
        self.allowed = allowed


def invalid(name: str, value: object, reason: str, allowed: str = "") -> ConfigError:
    """The ConfigError that Kafka words "Invalid value X for configuration Y: reason"."""
    text = f"[{', '.join(value)}]" if isinstance(value, tuple) else value
    return ConfigError(
        name, str(value), f"Invalid value {text} for configuration {name}: {reason}", allowed
    )


NEVER_EMPTY: Final = frozenset(
    {
        "advertised.listeners",
        "controller.listener.names",
        "group.consumer.assignors",
        "group.coordinator.rebalance.protocols",
        "group.share.assignors",
        "listeners",
        "log.dir",
        "log.dirs",
        "process.roles",
    }
)
"""Lists that must not be empty. (Not visible in Kafka's notation, but checked by its
validators.)
"""

_JAVA_DOUBLE: Final = re.compile(
    r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)"
)
"""The texts that Double.parseDouble accepts, except hexadecimal ones."""

BY_DURATION: Final = "by_duration:"

_WHOLE_NUMBERS: Final[Mapping[ConfigType, int]] = {
    ConfigType.SHORT: 2**15,
    ConfigType.INT: 2**31,
    ConfigType.LONG: 2**63,
}


def parse(key: ConfigKey, text: str) -> Value:
    """Parse and validate a value. Surrounding blanks are ignored. Raises ConfigError."""
    value = _parse_type(key, text.strip())
    check(key, value)
    return value


def _parse_type(key: ConfigKey, text: str) -> Value:
    if key.type in _WHOLE_NUMBERS:
        return _parse_whole_number(key, text)
    match key.type:
        case ConfigType.BOOLEAN:
            lowered = text.lower()
            if lowered not in ("true", "false"):
                reason = "Expected value to be either true or false"
                raise invalid(key.name, text, reason, "true or false")
            return lowered == "true"
        case ConfigType.DOUBLE:
            if _JAVA_DOUBLE.fullmatch(text) is None:
                reason = "Not a number of type DOUBLE"
                raise invalid(key.name, text, reason, describe_allowed(key))
            return float(text.rstrip("fFdD"))
        case ConfigType.LIST:
            return split_list(text)
    return text


def _parse_whole_number(key: ConfigKey, text: str) -> int:
    limit = _WHOLE_NUMBERS[key.type]
    digits = text[1:] if text[:1] in ("+", "-") else text
    if digits.isascii() and digits.isdigit() and len(digits) < 100:
        value = int(text)
        if -limit <= value < limit:
            return value
    raise invalid(key.name, text, f"Not a number of type {key.type.name}", describe_allowed(key))


def split_list(text: str) -> tuple[str, ...]:
    """Comma-separated text to trimmed items, each once; empty text is the empty list."""
    if not text.strip():
        return ()
    return tuple(dict.fromkeys(item.strip() for item in text.split(",")))


def to_text(value: Value) -> str | None:
    """A value as Kafka writes it: lists with commas, doubles as Java prints them."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
        case float():
            return _java_double(value)
    return str(value)


def _java_double(value: float) -> str:
    if not isfinite(value):
        return "NaN" if isnan(value) else "-Infinity" if value < 0 else "Infinity"
    if value == int(value) and abs(value) < 10_000_000:
        return f"{value:.1f}"
    if 0.001 <= abs(value) < 10_000_000:
        return repr(value)
    mantissa, _, exponent = f"{value!r}".partition("e")
    if not exponent:
        mantissa, _, exponent = f"{value:.17e}".partition("e")
        mantissa = mantissa.rstrip("0")
    if "." not in mantissa:
        mantissa += ".0"
    elif mantissa.endswith("."):
        mantissa += "0"
    return f"{mantissa}E{int(exponent)}"


def check(key: ConfigKey, value: Value) -> None:
    """Check a parsed value with the validator of its key. Raises ConfigError."""
    notation = key.allowed
    if isinstance(value, tuple):
        _check_list(key, value)
    elif not notation:
        return
    elif notation == "non-empty string":
        if value == "":
            raise ConfigError(key.name, "", f"{key.name} must not be empty", notation)
    elif notation.startswith("[") and isinstance(value, int | float) and "..." in notation:
        _check_range(key, value)
    elif isinstance(value, str) and notation.startswith(("[", "(case insensitive) [")):
        _check_choice(key, value)


def _check_range(key: ConfigKey, value: int | float) -> None:
    low, high, also = _range(key.allowed)
    if also is not None:
        if value != also and not (low <= value <= (high or 0)):
            reason = f"Value must be between {low:g} and {high:g} or equal to {also:g}"
            raise invalid(key.name, to_text(value), reason, describe_allowed(key))
    elif value < low:  # false for NaN, as in Kafka
        reason = f"Value must be at least {_plain(low)}"
        raise invalid(key.name, to_text(value), reason, describe_allowed(key))
    elif high is not None and value > high:
        reason = f"Value must be no more than {_plain(high)}"
        raise invalid(key.name, to_text(value), reason, describe_allowed(key))


def _range(notation: str) -> tuple[float, float | None, float | None]:
    """`[low,...]`, `[low,...,high]` or `[low,...,high] or also` to its numbers."""
    brackets, _, also = notation.partition(" or ")
    low, _, high = brackets.strip("[]").partition(",...")
    high = high.lstrip(",")
    return float(low), float(high) if high else None, float(also) if also else None


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(number)


def _choices(notation: str) -> list[str]:
    return notation[notation.index("[") + 1 : -1].split(", ")


def _check_choice(key: ConfigKey, value: str) -> None:
    insensitive = key.allowed.startswith("(")
    choices = _choices(key.allowed)
    if choices[-1].startswith(BY_DURATION):
        _check_offset_reset(key, value)
        return
    if (value.upper() if insensitive else value) not in choices:
        how = (
            "String must be one of (case insensitive): "
            if insensitive
            else "String must be one of: "
        )
        raise invalid(key.name, value, how + ", ".join(choices), ", ".join(choices))


def _check_offset_reset(key: ConfigKey, value: str) -> None:
    if value in ("earliest", "latest"):
        return
    try:
        if not value.startswith(BY_DURATION) or duration_ms(value.removeprefix(BY_DURATION)) < 0:
            raise ValueError(value)
    except ValueError:
        form = f"'earliest', 'latest' or of the format '{BY_DURATION}<PnDTnHnMn.nS>'"
        reason = f"Invalid value `{value}` for configuration {key.name}. The value must be either "
        raise invalid(key.name, value, f"{reason}{form}.", form) from None


def _check_list(key: ConfigKey, value: tuple[str, ...]) -> None:
    notation = key.allowed
    if notation.startswith("[partitionId]"):
        if value and value != ("*",) and not all(_is_replica_pair(item) for item in value):
            form = (
                f"must be the literal '*' or a list of replicas in the following format: {notation}"
            )
            raise invalid(key.name, value, f"{key.name} {form}", f"* or {notation}")
        return
    if "" in value:
        message = f"Configuration '{key.name}' values must not be empty."
        raise ConfigError(key.name, ",".join(value), message, describe_allowed(key))
    choices = _choices(notation) if notation.startswith("[") else []
    if not value and key.name in NEVER_EMPTY:
        valid = f"[{', '.join(choices)}]" if choices else "any non-empty value"
        message = f"Configuration '{key.name}' must not be empty. Valid values include: {valid}"
        raise ConfigError(key.name, "", message, valid)
    for item in value if choices else ():
        if item not in choices:
            reason = "String must be one of: " + ", ".join(choices)
            raise invalid(key.name, item, reason, describe_allowed(key))


def _is_replica_pair(text: str) -> bool:
    partition, colon, broker = text.partition(":")
    return bool(colon) and partition.isdecimal() and broker.isdecimal()


def describe_allowed(key: ConfigKey) -> str:
    """The valid values of this key, in words."""
    notation = key.allowed
    if key.type in _WHOLE_NUMBERS or key.type is ConfigType.DOUBLE:
        kind = "a number" if key.type is ConfigType.DOUBLE else "a whole number"
        if not notation.startswith("["):
            return kind
        low, high, also = _range(notation)
        words = f"{kind} from {_plain(low)}"
        words += f" to {_plain(high)}" if high is not None else " up"
        return words + (f", or {_plain(also)}" if also is not None else "")
    if key.type is ConfigType.BOOLEAN:
        return "true or false"
    if "[" in notation and not notation.startswith("[partitionId]"):
        return ("a list of: " if key.type is ConfigType.LIST else "one of: ") + ", ".join(
            _choices(notation)
        )
    return notation or ("a list, comma-separated" if key.type is ConfigType.LIST else "any text")
