"""Every setting of brokers that Kafka lets be altered while they run: it is set, in effect at once
if docs/configuration-keys.md says so, listed by its source, and all of that again after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from kbroker.node.node import Broker
from kbroker.settings.dynamic import broker_key
from kbroker.settings.listener_keys import PREFIX_ONLY_KEYS, is_dynamic_security
from kbroker.settings.tables.keys import READ_ONLY, ConfigKey, ConfigSource, parse
from kbroker.settings.tables.table import BROKER_KEYS, DYNAMIC_ONLY_KEYS
from kbroker.settings.tables.topic_table import TOPIC_BROKER_KEYS, UNIT_MS
from kbroker.settings.views.log_config import LogConfig
from kbroker.testing.embedded import EmbeddedBroker
from scripts.configuration_table import status
from tests.clients.adapters import wait_until
from tests.node.broker.test_dynamic_config import alter, describe
from tests.reference.security_settings import sensible

OTHER: Final[Mapping[str, str]] = {
    "background.threads": "11",
    "compression.type": "lz4",
    "compression.gzip.level": "5",
    "compression.zstd.level": "4",
    "compression.lz4.level": "8",
    "config.providers": "file",
    "cordoned.log.dirs": "*",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT",
    "listeners": "PLAINTEXT://127.0.0.1:0,EXTRA://127.0.0.1:0",
    "log.cleaner.io.buffer.load.factor": "0.5",
    "log.cleaner.io.max.bytes.per.second": "5000000.0",
    "log.cleaner.min.cleanable.ratio": "0.25",
    "log.cleaner.threads": "2",
    "log.cleanup.policy": "compact",
    "log.flush.interval.ms": "70000",
    "log.index.interval.bytes": "5000",
    "log.local.retention.bytes": "-2",
    "log.local.retention.ms": "-2",
    "log.message.timestamp.type": "LogAppendTime",
    "log.retention.bytes": "70000000",
    "log.retention.ms": "70000000",
    "log.roll.jitter.ms": "7000",
    "log.roll.ms": "80000000",
    "max.connections": "90",
    "max.connections.per.ip": "80",
    "max.connections.per.ip.overrides": "127.0.0.1:70",
    "max.connection.creation.rate": "600",
    "metric.reporters": "",
    "min.insync.replicas": "1",
    "num.io.threads": "9",
    "num.network.threads": "4",
    "num.recovery.threads.per.data.dir": "3",
    "num.replica.fetchers": "2",
}
"""Values that differ from the defaults, where half or one more would not do."""

KEYS = [
    key
    for key in (*BROKER_KEYS.values(), *DYNAMIC_ONLY_KEYS.values())
    if key.update_mode != READ_ONLY
]
"""A table test compares these with the facts of Kafka (tests/settings/tables/test_table.py)."""

SECURITY = [key for key in KEYS if is_dynamic_security(key.name)]
LISTENER = "listener.name.plaintext."


def name_of(key: ConfigKey) -> str:
    """The name to alter it under: keystores and truststores are those of a listener."""
    return f"{LISTENER}{key.name}" if key.name in PREFIX_ONLY_KEYS else key.name


def value_of(key: ConfigKey) -> str:
    """A value that the key does not have by default."""
    if key.name in OTHER:
        return OTHER[key.name]
    if is_dynamic_security(key.name):
        return sensible(key.name)
    if key.default in ("true", "false"):
        return "false" if key.default == "true" else "true"
    number = int(key.default or 0)
    return str(number // 2 if number > 1_000_000 else number + 1)


TOPIC_OF = {names[0]: topic for topic, names in TOPIC_BROKER_KEYS.items() if names}

Probe = Callable[[Broker], Any]
PROBES: Final[Mapping[str, tuple[Probe, Any]]] = {
    "cordoned.log.dirs": (lambda one: one.services.replicas.logs.online()[0].is_cordoned, True),
    "group.consumer.assignment.interval.ms": (
        lambda one: one.services.groups._config.group_consumer_assignment_interval_ms, 1001
    ),
    "group.share.assignment.interval.ms": (
        lambda one: one.services.groups._config.group_share_assignment_interval_ms, 1001
    ),
    "group.streams.assignment.interval.ms": (
        lambda one: one.services.groups._config.group_streams_assignment_interval_ms, 1001
    ),
    "listener.security.protocol.map": (
        lambda one: [each.security_protocol for each in one.dynamic.current.listeners],
        ["PLAINTEXT", "PLAINTEXT"],
    ),
    "listeners": (
        lambda one: [each.name for each in one.bound_listeners], ["PLAINTEXT", "EXTRA"]
    ),
    "log.cleaner.backoff.ms": (lambda one: cleaner(one).backoff_ms, 15001),
    "log.cleaner.dedupe.buffer.size": (
        lambda one: cleaner(one).map_bytes, int((1 << 26) / 2 * 0.5)
    ),
    "log.cleaner.io.buffer.load.factor": (
        lambda one: cleaner(one).map_bytes, int((1 << 26) / 2 * 0.5)
    ),
    "log.cleaner.io.buffer.size": (lambda one: cleaner(one).buffer_bytes, 524289 // 4),
    "log.cleaner.io.max.bytes.per.second": (lambda one: cleaner(one).bytes_per_second, 5e6),
    "log.cleaner.threads": (lambda one: cleaner(one).threads, 2),
    "max.connections": (lambda one: limits(one)._max_connections, 90),
    "max.connections.per.ip": (lambda one: limits(one)._max_per_host, 80),
    "max.connections.per.ip.overrides": (lambda one: limits(one)._overrides, {"127.0.0.1": 70}),
    "max.connection.creation.rate": (
        lambda one: one._servers.broker_quotas.rates._broker_rate,  # type: ignore[union-attr]  # it runs
        600,
    ),
    "num.recovery.threads.per.data.dir": (
        lambda one: one.services.replicas.logs.config.get_int("num.recovery.threads.per.data.dir"),
        3,
    ),
    "num.replica.fetchers": (lambda one: one.dynamic.current.get_int("num.replica.fetchers"), 2),
    "producer.id.expiration.ms": (
        lambda one: {log.producers.expiration_ms for log in logs(one)}, {43_200_000}
    ),
    "transaction.partition.verification.enable": (
        lambda one: one.services.partition_gate._verifies(), False
    ),
    "leader.replication.throttled.rate": (
        lambda one: one.services.replicas.throttles.leader._bytes_per_second, (1 << 62) - 1
    ),
    "follower.replication.throttled.rate": (
        lambda one: one.services.replicas.throttles.follower._bytes_per_second, (1 << 62) - 1
    ),
    "replica.alter.log.dirs.io.max.bytes.per.second": (
        lambda one: one.services.replicas.mover.bytes_per_second, (1 << 62) - 1
    ),
    "unclean.leader.election.enable": (lambda one: is_unclean(one), True),
}  # fmt: skip
"""Where a setting shows in a running broker; those of topics show in the settings of a log."""


def cleaner(one: Broker) -> Any:
    return one.services.replicas._maintenance.cleaner.config


def limits(one: Broker) -> Any:
    assert one._servers is not None
    return one._servers.broker_quotas.limits


def logs(one: Broker) -> Any:
    return list(one.services.replicas.logs.logs.values())


def is_unclean(one: Broker) -> bool:
    assert one._controller is not None
    controller = one._controller.service._controller
    return controller._context().is_unclean_election_enabled("t")


def log_field(name: str) -> tuple[Probe, Any]:
    """The setting of a log that the key gives the default of."""
    field = TOPIC_OF[name].replace(".", "_")
    row = broker_key(name)
    assert row is not None
    value = parse(row, value_of(row))
    if isinstance(value, int) and not isinstance(value, bool):
        value *= UNIT_MS.get(name, 1)
    if isinstance(value, tuple):
        value = frozenset(value)
    return lambda one: getattr(logs(one)[0].config, field), value


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """With every setting altered, then started again."""
    with EmbeddedBroker() as one:
        one.create_topic("t")
        for key in KEYS:
            name = "1" if key.update_mode == "per-broker" else ""
            setting = (name_of(key), 0, value_of(key))
            assert alter(one, name, setting) == (0, None), key.name
        probe, bound = PROBES["listeners"]
        wait_until(lambda: one.call(probe) == bound, 20, "the thread that binds")
        seen = {key.name: one.call(probe) for key in KEYS for probe in [probe_of(key)] if probe}
        one.restart()
        assert seen == {
            key.name: one.call(probe) for key in KEYS for probe in [probe_of(key)] if probe
        }
        yield one


def expected_of(key: ConfigKey) -> tuple[Probe, Any] | None:
    """None for a key that does not act at once."""
    if status(key) != "acts at once":
        return None
    topic = TOPIC_OF.get(key.name)
    if topic is not None and topic.replace(".", "_") in LogConfig.__dataclass_fields__:
        return log_field(key.name)
    return PROBES[key.name]


def probe_of(key: ConfigKey) -> Probe | None:
    expected = expected_of(key)
    return None if expected is None else expected[0]


@pytest.fixture(scope="module")
def described(broker: EmbeddedBroker) -> Any:
    return describe(broker, "1")


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_it_is_in_effect_and_listed(broker: EmbeddedBroker, described: Any, key: ConfigKey) -> None:
    expected = expected_of(key)
    if expected is not None:
        probe, value = expected
        assert broker.call(probe) == value
    if key.name in BROKER_KEYS or key.name in DYNAMIC_ONLY_KEYS:
        value, source, synonyms = described[name_of(key)]
        told = None if key.sensitive else value_of(key)
        assert value == told
        per_broker = key.update_mode == "per-broker"
        assert source == (
            ConfigSource.DYNAMIC_BROKER_CONFIG
            if per_broker
            else ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        )
        assert synonyms[0] == (name_of(key), told, source)


@pytest.mark.parametrize("key", SECURITY, ids=lambda key: key.name)
def test_settings_of_tls_and_sasl_do_not_claim_to_act(key: ConfigKey) -> None:
    """The broker has PLAINTEXT listeners; docs/configuration-keys.md says so. How each key is
    answered is in `tests/reference/test_security_settings_answers.py`.
    """
    builder = "principal.builder.class"
    assert status(key) == ("refused" if key.name == builder else "no effect on PLAINTEXT")


def test_a_listener_has_limits_of_its_own() -> None:
    """`listener.name.<listener>.<key>`, in effect at once and again after a restart."""
    prefix = "listener.name.plaintext."
    values = {"max.connections": "60", "max.connection.creation.rate": "500"}
    settings = [(f"{prefix}{name}", 0, value) for name, value in values.items()]

    def held(one: Broker) -> tuple[Any, Any]:
        assert one._servers is not None
        return dict(limits(one)._max_by_listener), dict(
            one._servers.broker_quotas.rates._by_listener
        )

    with EmbeddedBroker() as one:
        assert alter(one, "", *settings) == (0, None)
        for _ in range(2):
            assert one.call(held) == ({"PLAINTEXT": 60}, {"PLAINTEXT": 500})
            listed = describe(one, "")
            assert {name: listed[name][0] for name, _, _ in settings} == {
                f"{prefix}{name}": value for name, value in values.items()
            }
            one.restart()


SAME_AS_DEFAULT: Final = {
    *("log.local.retention.bytes", "log.local.retention.ms", "min.insync.replicas"),
    "principal.builder.class",
}
"""Keys whose only value on this broker is the default: there is one copy, no remote storage, and
one class.
"""


def test_every_dynamic_key_has_its_row() -> None:
    """One that Kafka adds needs a value and, if it acts at once, a place where that shows."""
    assert {key.name for key in KEYS if value_of(key) == key.default} == SAME_AS_DEFAULT
    for key in KEYS:
        assert (expected_of(key) is not None) is (status(key) == "acts at once")
