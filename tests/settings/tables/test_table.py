"""The tables against the facts of Kafka 4.3.1: every key, and nothing but."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kbroker.settings.group_configs import _BOUND_KEYS
from kbroker.settings.tables.group_table import CLIENT_METRICS_KEYS, GROUP_BROKER_KEYS, GROUP_KEYS
from kbroker.settings.tables.keys import ConfigKey, parse
from kbroker.settings.tables.served import OWN_KEYS, QUIET_KEYS, SERVED_KEYS, SINGLE_NODE_DEFAULTS
from kbroker.settings.tables.table import BROKER_KEYS, DYNAMIC_ONLY_KEYS
from kbroker.settings.tables.topic_table import (
    DESCRIBED_TOPIC_KEYS,
    TOPIC_BROKER_KEYS,
    TOPIC_KEYS,
    UNIT_MS,
)

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "kafka"


def facts(file: str, part: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DATA / file).read_text())[part]
    return found


TABLES = [
    pytest.param(BROKER_KEYS, "broker-configs.json", "configs", id="broker"),
    pytest.param(DYNAMIC_ONLY_KEYS, "broker-configs.json", "dynamicOnlyBrokerConfigs", id="quota"),
    pytest.param(TOPIC_KEYS, "topic-configs.json", "configs", id="topic"),
    pytest.param(GROUP_KEYS, "group-configs.json", "groupConfigs", id="group"),
    pytest.param(CLIENT_METRICS_KEYS, "group-configs.json", "clientMetricsConfigs", id="metrics"),
]


@pytest.mark.parametrize(("table", "file", "part"), TABLES)
def test_every_row(table: Mapping[str, ConfigKey], file: str, part: str) -> None:
    known = facts(file, part)
    assert list(table) == [fact["name"] for fact in known]
    for fact in known:
        key = table[fact["name"]]
        assert key.type.name == fact["type"].upper(), key.name
        assert key.allowed == (fact["validator"] or ""), key.name
        assert key.importance == fact["importance"], key.name
        assert key.internal == fact.get("internal", False), key.name
        if key.name == "listener.security.protocol.map":
            assert set((key.default or "").split(",")) == set(fact["default"].split(","))
        else:
            assert key.default == fact["default"], key.name
        if "updateMode" in fact:
            assert key.update_mode == fact["updateMode"], key.name


@pytest.mark.parametrize(("table", "file", "part"), TABLES)
def test_defaults_are_allowed(table: Mapping[str, ConfigKey], file: str, part: str) -> None:
    for key in table.values():
        if key.default:
            parse(key, key.default)


def test_topic_fallbacks() -> None:
    for fact in facts("topic-configs.json", "configs"):
        synonyms = fact["serverSynonyms"]
        expected = tuple(synonym["name"] for synonym in synonyms)
        assert TOPIC_BROKER_KEYS.get(fact["name"], ()) == expected
        for synonym in synonyms:
            assert UNIT_MS.get(synonym["name"], 1) == synonym["factor"]


def test_group_fallbacks() -> None:
    for fact in facts("group-configs.json", "groupConfigs"):
        assert GROUP_BROKER_KEYS.get(fact["name"]) == fact["brokerSynonym"]


def test_served_keys_exist() -> None:
    assert set(BROKER_KEYS) >= SERVED_KEYS | QUIET_KEYS | set(SINGLE_NODE_DEFAULTS)
    assert not SERVED_KEYS & QUIET_KEYS
    assert not OWN_KEYS.keys() & BROKER_KEYS.keys()


def test_bounds_of_group_settings_are_served() -> None:
    """A user who sets one gets no warning that it has no effect."""
    bounds = {key for pair in _BOUND_KEYS.values() for key in pair if key is not None}
    assert bounds <= SERVED_KEYS


def test_served_keys_are_read() -> None:
    """A key that is listed as implemented appears in the code that implements it."""
    settings = ROOT / "kbroker" / "settings"
    sources = "".join(
        path.read_text()
        for path in sorted((ROOT / "kbroker").rglob("*.py"))
        if settings not in path.parents
        or path.name in ("broker.py", "rules.py", "network.py", "quorum.py")
    )
    groups = (settings / "views" / "group_coordinator.py").read_text()
    groups += (settings / "views" / "transaction_coordinator.py").read_text()
    groups += (settings / "group_configs.py").read_text()
    groups += (settings / "views" / "share_groups.py").read_text()
    fallbacks = {name for names in TOPIC_BROKER_KEYS.values() for name in names}
    for key in sorted(SERVED_KEYS - fallbacks):
        assert f'"{key}"' in sources or _is_field(key, groups), key


def _is_field(key: str, groups: str) -> bool:
    field = key.replace(".", "_")
    return any(text in groups for text in (f"{field}: int", f"{field}: str", f'"{key}"'))


def test_every_topic_setting_has_a_place_in_a_description() -> None:
    assert sorted(key.name for key in DESCRIBED_TOPIC_KEYS) == sorted(TOPIC_KEYS)
    assert DESCRIBED_TOPIC_KEYS[-1].internal
