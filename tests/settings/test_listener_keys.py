"""Names of settings of listeners, and which of them are of TLS and SASL. What Kafka answers to each
is compared in tests/reference/test_security_settings_answers.py.
"""

from __future__ import annotations

import pytest

from kbroker.settings.listener_keys import (
    PREFIX_ONLY_KEYS,
    base_of,
    fixed_settings,
    has_no_effect,
    is_dynamic_security,
    listener_of,
    parse_dynamic,
)
from kbroker.settings.tables.keys import ConfigError
from kbroker.settings.tables.table import BROKER_KEYS


@pytest.mark.parametrize(
    ("name", "listener", "base"),
    [
        ("ssl.protocol", None, "ssl.protocol"),
        ("listener.name.outside.ssl.protocol", "outside", "ssl.protocol"),
        ("listener.name.OUTSIDE.ssl.protocol", "OUTSIDE", "ssl.protocol"),
        ("listener.name.outside.plain.sasl.jaas.config", "outside", "sasl.jaas.config"),
        ("listener.name.outside.plain.ssl.protocol", "outside", "plain.ssl.protocol"),
        ("listener.name.outside", None, "listener.name.outside"),
        ("listener.name.outside.", "outside", ""),
    ],
)
def test_the_parts_of_a_name(name: str, listener: str | None, base: str) -> None:
    assert (listener_of(name), base_of(name)) == (listener, base)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ssl.keystore.location", True),
        ("listener.name.a.plain.sasl.jaas.config", True),
        ("principal.builder.class", True),
        ("ssl.principal.mapping.rules", False),
        ("listener.name.a.connections.max.reauth.ms", False),
        ("authorizer.class.name", False),
        ("security.inter.broker.protocol", False),
        ("ssl.no.such", False),
        ("max.connections", False),
    ],
)
def test_only_keys_that_kafka_alters_per_broker(name: str, expected: bool) -> None:
    assert is_dynamic_security(name) is expected
    assert has_no_effect(name) is (expected and name != "principal.builder.class")


def test_a_class_is_kafkas_own() -> None:
    key = BROKER_KEYS["ssl.engine.factory.class"]
    name = "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory"
    assert parse_dynamic(key, name) == name
    with pytest.raises(ConfigError, match=r"Class com\.example\.Factory could not be found"):
        parse_dynamic(key, "com.example.Factory")


def test_a_listener_keeps_all_but_limits_and_stores() -> None:
    prefix = "listener.name.outside."
    values = {f"{prefix}{name}": "x" for name in (*PREFIX_ONLY_KEYS, "max.connections")}
    fixed = {f"{prefix}ssl.client.auth": "x", f"{prefix}plain.sasl.jaas.config": "x"}
    others = {"ssl.client.auth": "x", "listener.name.other.ssl.client.auth": "x"}
    assert fixed_settings({**values, **fixed, **others}, "OUTSIDE") == fixed
