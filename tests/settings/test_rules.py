"""Rules between keys; which of several keys is used; and which name is in the error."""

from __future__ import annotations

import pytest

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.rules import (
    LEADER,
    LEAST_METADATA_SEGMENT_BYTES,
    RACK_AWARE,
    parse_per_ip_overrides,
    retention_ms,
    roll_jitter_ms,
    roll_ms,
)
from kbroker.settings.tables.keys import ConfigError

HOUR_MS = 3_600_000


def config(**properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {name.replace("_", "."): value for name, value in properties.items()}
    )


def refused(**properties: str) -> str:
    with pytest.raises(Exception) as caught:
        config(**properties)
    return str(caught.value)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, 168 * HOUR_MS),
        ({"log_retention_hours": "2"}, 2 * HOUR_MS),
        ({"log_retention_minutes": "3", "log_retention_hours": "2"}, 180_000),
        ({"log_retention_ms": "7", "log_retention_minutes": "3"}, 7),
        ({"log_retention_ms": "-1"}, -1),
        ({"log_retention_hours": "-5"}, -1),
    ],
)
def test_the_finest_unit_of_a_retention_counts(properties: dict[str, str], expected: int) -> None:
    assert retention_ms(config(**properties)) == expected


def test_the_finest_unit_of_a_roll_counts() -> None:
    assert roll_ms(config(log_roll_hours="2")) == 2 * HOUR_MS
    assert roll_ms(config(log_roll_hours="2", log_roll_ms="5")) == 5
    assert roll_jitter_ms(config(log_roll_jitter_hours="1")) == HOUR_MS
    assert roll_jitter_ms(config(log_roll_jitter_hours="1", log_roll_jitter_ms="0")) == 0


@pytest.mark.parametrize(
    "key", ["log_retention_ms", "log_retention_minutes", "log_retention_hours"]
)
def test_a_retention_of_0_is_refused_by_its_own_name(key: str) -> None:
    assert f"{key.replace('_', '.')}=0" in refused(**{key: "0"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (" , ,", {}),
        ("a:1", {"a": 1}),
        ("a:1, [::1]:7 ,b:0", {"a": 1, "::1": 7, "b": 0}),
        ("a:1,a:2", {"a": 2}),
    ],
)
def test_overrides_of_connections_per_address(text: str, expected: dict[str, int]) -> None:
    assert parse_per_ip_overrides(text) == expected


@pytest.mark.parametrize("text", ["a", "a:", "a:x", "a:-1", "a:1,b", "a:1.5"])
def test_overrides_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        parse_per_ip_overrides(text)


def test_zero_connections_only_with_overrides() -> None:
    assert "would allow no connections" in refused(max_connections_per_ip="0")
    config(max_connections_per_ip="0", max_connections_per_ip_overrides="localhost:1")


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [
        ("", True),
        ("127.0.0.1:9404", True),
        (":::0", True),
        ("9404", False),
        (":9404", False),
        ("host:65536", False),
        ("host:", False),
        ("host:-1", False),
    ],
)
def test_the_address_of_the_metrics(address: str, is_allowed: bool) -> None:
    if is_allowed:
        config(kbroker_metrics_listener=address)
    else:
        assert "it names no address" in refused(kbroker_metrics_listener=address)


def test_a_metadata_segment_holds_its_largest_batch() -> None:
    key = "internal_metadata_log_segment_bytes"
    config(**{key: str(LEAST_METADATA_SEGMENT_BYTES)})
    assert "needs segments of" in refused(**{key: str(LEAST_METADATA_SEGMENT_BYTES - 1)})


def test_the_refusal_names_the_key_that_was_set() -> None:
    low, high = "group_consumer_min_session_timeout_ms", "group_consumer_max_session_timeout_ms"
    assert refused(**{low: "70000"}).startswith(f"properties: {low.replace('_', '.')}=70000")
    name = "group_consumer_session_timeout_ms"
    assert high.replace("_", ".") in refused(**{name: "70000"})
    assert refused(**{high: "44000"}).startswith(f"properties: {high.replace('_', '.')}=44000")
    config(**{high: "45000"})


def test_a_heartbeat_is_shorter_than_a_session() -> None:
    text = refused(
        group_share_heartbeat_interval_ms="15000",
        group_share_session_timeout_ms="15000",
        group_share_min_session_timeout_ms="15000",
        group_share_max_heartbeat_interval_ms="15000",
    )
    assert "must be less than group.share.session.timeout.ms" in text


def test_replica_selectors_are_kafkas() -> None:
    key = "replica_selector_class"
    for allowed in (RACK_AWARE, LEADER):
        assert config(**{key: allowed}).get_optional_string("replica.selector.class") == allowed
    assert config().get_optional_string("replica.selector.class") is None
    text = refused(**{key: "com.example.Mine"})
    assert "replica.selector.class=com.example.Mine" in text and RACK_AWARE in text
