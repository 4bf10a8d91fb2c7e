"""`kbroker configs` and `topics alter` against a broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Kbroker = Callable[..., Any]


def rows(kbroker: Kbroker, *arguments: str) -> dict[str, Any]:
    result = kbroker("configs", "describe", *arguments, "--json")
    assert result.code == 0, result.err
    return {row["key"]: row["value"] for row in map(json.loads, result.lines)}


def test_a_topic(kbroker: Kbroker, kafka_topic: str) -> None:
    nothing = kbroker("configs", "describe", "topic", kafka_topic)
    assert (nothing.lines, nothing.code) == ([], 0)
    assert nothing.err == f"{kafka_topic}: no settings of its own; --all shows all\n"
    pairs = ("retention.ms=1000", "cleanup.policy=delete")
    changed = kbroker("configs", "set", "topic", kafka_topic, *pairs)
    assert (changed.code, changed.lines) == (0, [])
    assert changed.err == (
        f"changed topic {kafka_topic}: retention.ms=1000, cleanup.policy=delete\n"
    )
    described = kbroker("configs", "describe", "topic", kafka_topic).lines
    assert described == [
        f"{kafka_topic}\tcleanup.policy\tdelete\tTOPIC_CONFIG",
        f"{kafka_topic}\tretention.ms\t1000\tTOPIC_CONFIG",
    ]
    appended = kbroker(
        "configs", "set", "topic", kafka_topic, "--append", "cleanup.policy=compact", "--json"
    )
    assert list(map(json.loads, appended.lines)) == [
        {
            "type": "topic",
            "name": kafka_topic,
            "changes": ["cleanup.policy+=compact"],
            "dry_run": False,
        }
    ]
    policies = rows(kbroker, "topic", kafka_topic, "--key", "cleanup.policy")
    assert policies == {"cleanup.policy": ["delete", "compact"]}
    kbroker("configs", "set", "topic", kafka_topic, "--subtract", "cleanup.policy=delete")
    assert rows(kbroker, "topic", kafka_topic) == {
        "cleanup.policy": ["compact"],
        "retention.ms": 1000,
    }
    unset = kbroker("configs", "unset", "topic", kafka_topic, "retention.ms", "cleanup.policy")
    assert unset.err == f"changed topic {kafka_topic}: retention.ms unset, cleanup.policy unset\n"
    assert rows(kbroker, "topic", kafka_topic) == {}
    assert rows(kbroker, "topic", kafka_topic, "--all")["retention.ms"] == 604_800_000


def test_a_dry_run_changes_nothing(kbroker: Kbroker, kafka_topic: str) -> None:
    dry = kbroker("configs", "set", "topic", kafka_topic, "retention.ms=1", "--dry-run")
    assert (dry.code, dry.err) == (0, f"would change topic {kafka_topic}: retention.ms=1\n")
    assert rows(kbroker, "topic", kafka_topic) == {}
    bad = kbroker("configs", "set", "topic", kafka_topic, "retention.ms=soon", "--dry-run")
    assert (bad.code, bad.err.count("\n")) == (1, 1)
    assert bad.err.startswith("kbroker: INVALID_CONFIG: ")


def test_several_topics_are_altered(kbroker: Kbroker, kafka_topic: str) -> None:
    names = (kafka_topic, "alter-none")
    result = kbroker("topics", "alter", *names, "--set", "segment.ms=5000", "-u", "retention.ms")
    assert result.code == 1
    changed, refused = result.err.splitlines()
    assert changed == f"changed topic {kafka_topic}: segment.ms=5000, retention.ms unset"
    assert refused.startswith("kbroker: UNKNOWN_TOPIC_OR_PARTITION: ")
    assert "alter-none" in refused
    assert rows(kbroker, "topic", kafka_topic) == {"segment.ms": 5000}


def test_a_group(kbroker: Kbroker) -> None:
    key = "consumer.session.timeout.ms"
    assert kbroker("configs", "set", "group", "cli-group", f"{key}=50000").code == 0
    assert rows(kbroker, "group", "cli-group") == {key: 50_000}
    assert key in rows(kbroker, "group")
    assert kbroker("configs", "unset", "group", "cli-group", key).code == 0
    assert rows(kbroker, "group", "cli-group") == {}


def test_brokers_and_loggers(kbroker: Kbroker) -> None:
    assert rows(kbroker, "broker", "1", "--key", "num.partitions") == {"num.partitions": 1}
    assert "log.dirs" in rows(kbroker, "broker", "1")
    default = rows(kbroker, "broker", "default")
    assert default == {"min.insync.replicas": 1}  # a new cluster has it set, for ELR
    assert "root" in rows(kbroker, "broker-logger", "1")
    assert kbroker("configs", "describe", "client-metrics").code == 0
    unknown = kbroker("configs", "describe", "broker", "1", "--key", "no.such.key")
    assert (unknown.code, unknown.lines, unknown.err) == (0, [], "1: no such setting\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("describe", "topic", "no-such"), 1, "topic no-such"),
        (("describe", "broker", "one"), 1, "broker one: give the id of a broker, or default"),
        (("describe", "broker", "77"), 1, "no broker has id 77"),
        (("describe", "broker-logger", "default"), 1, "give the id of a broker"),
        (("describe", "table"), 2, "'table' is not one of"),
        (("set", "topic", "t"), 2, "give KEY=VALUE, --append or --subtract"),
        (("set", "topic", "t", "x"), 2, "x: write it as name=value"),
        (("set", "topic", "", "a=b"), 2, "a name is empty"),
        (("set", "topic", "no-such", "retention.ms=1"), 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        (("set", "topic", "no-such", "what=1"), 1, "Unknown topic config name: what"),
    ],
)
def test_mistakes_are_one_line(
    kbroker: Kbroker, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = kbroker("configs", *arguments)
    assert (result.code, result.err.count("\n")) == (code, 1), result.err
    assert message in result.err


def test_what_a_broker_refuses_is_one_line(kbroker: Kbroker) -> None:
    """A read-only setting, in whichever words the broker has for it."""
    result = kbroker("configs", "set", "broker", "1", "process.roles=broker")
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert result.err.startswith("kbroker: INVALID_")


def test_alter_wants_a_change(kbroker: Kbroker, kafka_topic: str) -> None:
    result = kbroker("topics", "alter", kafka_topic)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "give --set, --unset, --append or --subtract" in result.err
