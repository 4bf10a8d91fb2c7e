"""Settings of groups: the rules between them, the broker's bounds, and lengths of time."""

from __future__ import annotations

import pytest

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.group_configs import GroupConfigs, validate_group_configs
from kbroker.settings.tables.keys import ConfigError

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
INTERVAL = "consumer.assignment.interval.ms"
DEFAULTS = BrokerConfig.from_properties({})


def test_a_session_is_longer_than_a_heartbeat() -> None:
    broker = BrokerConfig.from_properties({"group.consumer.min.session.timeout.ms": "5000"})
    with pytest.raises(ConfigError, match=f"{SESSION} must be greater than {HEARTBEAT}"):
        validate_group_configs({SESSION: "7000", HEARTBEAT: "7000"}, broker)
    validate_group_configs({SESSION: "7001", HEARTBEAT: "7000"}, broker)


def test_what_stands_is_taken_within_the_bounds_of_today() -> None:
    settings = {"g": {SESSION: "1000", HEARTBEAT: "99999", INTERVAL: "3000"}}
    groups = GroupConfigs(DEFAULTS, lambda group_id: settings.get(group_id, {}))
    assert groups.get_int("g", SESSION) == 45_000
    assert groups.get_int("g", HEARTBEAT) == 15_000
    assert groups.get_int("g", INTERVAL) == 3_000
    assert groups.get_int("other", SESSION) is None


def test_a_value_that_no_longer_parses_is_none() -> None:
    groups = GroupConfigs(DEFAULTS, lambda group_id: {SESSION: "soon", "x": "1"})
    assert groups.get("g", SESSION) is None


def test_a_value_that_no_longer_parses_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Every heartbeat asks for it, and the group's name is any text."""
    group_id = "g\n" + "x" * 10_000
    text = "soon"
    groups = GroupConfigs(DEFAULTS, lambda group_id: {SESSION: text})
    for _ in range(3):
        groups.get(group_id, SESSION)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "\n" not in line
    assert len(line) < 1000
    text = "later"
    groups.get(group_id, SESSION)
    assert len(caplog.records) == 2


def test_no_upper_bound_for_what_has_none_below() -> None:
    groups = GroupConfigs(DEFAULTS, lambda group_id: {"streams.num.standby.replicas": "9"})
    assert groups.get_int("g", "streams.num.standby.replicas") == 2
