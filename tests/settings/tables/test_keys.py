"""Text to values and back, with Kafka's own wording for invalid values."""

from __future__ import annotations

import pytest

from kbroker.settings.tables.keys import (
    ConfigError,
    ConfigKey,
    ConfigType,
    Value,
    describe_allowed,
    parse,
    to_text,
)
from kbroker.settings.tables.table import BROKER_KEYS
from kbroker.settings.tables.topic_table import TOPIC_KEYS

ALL = {**BROKER_KEYS, **TOPIC_KEYS}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("preallocate", " TRUE ", True),
        ("preallocate", "false", False),
        ("retention.ms", " 5 ", 5),
        ("retention.ms", "+5", 5),
        ("retention.ms", "-1", -1),
        ("cleanup.policy", "", ()),
        ("cleanup.policy", "compact , delete", ("compact", "delete")),
        ("cleanup.policy", "delete,delete", ("delete",)),
        ("min.cleanable.dirty.ratio", "5e-1", 0.5),
        ("compression.gzip.level", "-1", -1),
        ("compression.gzip.level", "9", 9),
        ("leader.replication.throttled.replicas", "*", ("*",)),
        ("leader.replication.throttled.replicas", "1:2,3:4", ("1:2", "3:4")),
        ("leader.replication.throttled.replicas", "", ()),
        ("group.consumer.migration.policy", "Upgrade", "Upgrade"),
        ("log.dirs", "/a, /b,/a", ("/a", "/b")),
        ("ssl.key.password", " secret ", "secret"),
        ("sasl.enabled.mechanisms", "", ()),
    ],
)
def test_parse(name: str, text: str, value: Value) -> None:
    assert parse(ALL[name], text) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "cleanup.policy",
            "foo",
            "Invalid value foo for configuration cleanup.policy: "
            "String must be one of: compact, delete",
        ),
        ("cleanup.policy", "delete,", "Configuration 'cleanup.policy' values must not be empty."),
        (
            "segment.bytes",
            "14",
            "Invalid value 14 for configuration segment.bytes: Value must be at least 1048576",
        ),
        (
            "segment.bytes",
            "1e6",
            "Invalid value 1e6 for configuration segment.bytes: Not a number of type INT",
        ),
        (
            "segment.bytes",
            "99999999999",
            "Invalid value 99999999999 for configuration segment.bytes: Not a number of type INT",
        ),
        (
            "segment.bytes",
            "1_048_576",
            "Invalid value 1_048_576 for configuration segment.bytes: Not a number of type INT",
        ),
        (
            "retention.ms",
            "",
            "Invalid value  for configuration retention.ms: Not a number of type LONG",
        ),
        (
            "retention.ms",
            "9" * 5000,
            f"Invalid value {'9' * 5000} for configuration retention.ms: Not a number of type LONG",
        ),
        (
            "compression.type",
            "GZIP",
            "Invalid value GZIP for configuration compression.type: "
            "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        (
            "compression.gzip.level",
            "0",
            "Invalid value 0 for configuration compression.gzip.level: "
            "Value must be between 1 and 9 or equal to -1",
        ),
        (
            "compression.lz4.level",
            "18",
            "Invalid value 18 for configuration compression.lz4.level: "
            "Value must be no more than 17",
        ),
        (
            "min.cleanable.dirty.ratio",
            "1.5",
            "Invalid value 1.5 for configuration min.cleanable.dirty.ratio: "
            "Value must be no more than 1",
        ),
        (
            "min.cleanable.dirty.ratio",
            "x",
            "Invalid value x for configuration min.cleanable.dirty.ratio: "
            "Not a number of type DOUBLE",
        ),
        (
            "preallocate",
            "yes",
            "Invalid value yes for configuration preallocate: "
            "Expected value to be either true or false",
        ),
        (
            "leader.replication.throttled.replicas",
            "1:2,x",
            "Invalid value [1:2, x] for configuration leader.replication.throttled.replicas: "
            "leader.replication.throttled.replicas must be the literal '*' or a list of replicas "
            "in the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
        ),
        (
            "log.dirs",
            "",
            "Configuration 'log.dirs' must not be empty. Valid values include: any non-empty value",
        ),
        (
            "process.roles",
            "",
            "Configuration 'process.roles' must not be empty. "
            "Valid values include: [broker, controller]",
        ),
        (
            "group.consumer.migration.policy",
            "x",
            "Invalid value x for configuration group.consumer.migration.policy: String must be "
            "one of (case insensitive): DISABLED, DOWNGRADE, UPGRADE, BIDIRECTIONAL",
        ),
    ],
)
def test_refused_in_kafkas_words(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(ALL[name], text)
    assert str(caught.value) == message
    assert caught.value.name == name
    assert caught.value.allowed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (True, "true"),
        (5, "5"),
        (("a", "b"), "a,b"),
        ((), ""),
        (0.5, "0.5"),
        (2.0, "2.0"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (2147483647.0, "2.147483647E9"),
        (12345678.5, "1.23456785E7"),
        ("x", "x"),
    ],
)
def test_to_text(value: Value, text: str | None) -> None:
    assert to_text(value) == text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("num.partitions", "a whole number from 1 up"),
        ("compression.gzip.level", "a whole number from 1 to 9, or -1"),
        ("log.cleaner.min.cleanable.ratio", "a number from 0 to 1"),
        ("compression.type", "one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("log.cleanup.policy", "a list of: compact, delete"),
        ("log.preallocate", "true or false"),
        ("listeners", "a list, comma-separated"),
        ("broker.rack", "any text"),
        ("connections.max.idle.ms", "a whole number"),
    ],
)
def test_what_is_allowed_in_words(name: str, words: str) -> None:
    assert describe_allowed(BROKER_KEYS[name]) == words


def test_passwords_are_sensitive() -> None:
    assert BROKER_KEYS["ssl.key.password"].sensitive
    assert not ConfigKey("x", ConfigType.STRING, None).sensitive


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("NaN", "NaN"),  # less than nothing and more than nothing: Kafka's range lets it be
        ("+0.5", "0.5"),
        ("1e-1d", "0.1"),
        (".5f", "0.5"),
        ("1.", "1.0"),
        ("nan", None),
        ("inf", None),
        ("Infinity", None),
        ("-Infinity", None),
        ("1_0", None),
        ("\N{ARABIC-INDIC DIGIT ONE}", None),
        ("1e999", None),
    ],
)
def test_a_double_is_what_java_takes_for_one(text: str, shown: str | None) -> None:
    key = ConfigKey("ratio", ConfigType.DOUBLE, "0.5", "[0,...,1]")
    if shown is None:
        with pytest.raises(ConfigError, match=r"Invalid value .* for configuration ratio"):
            parse(key, text)
    else:
        assert to_text(parse(key, text)) == shown
