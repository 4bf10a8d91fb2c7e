"""Which connections are accepted, delayed or refused."""

from __future__ import annotations

import pytest

from kbroker.server.quotas import connection_rates as module
from kbroker.server.quotas.connection_rates import (
    BACKLOG_FULL,
    NOT_THROTTLED,
    ConnectionRates,
    ConnectionThrottle,
)

NOW = 1_000_000
HERE, THERE = "127.0.0.1", "10.0.0.7"


def limited(**rates: float) -> ConnectionRates:
    """rates: by address; "default" for all others."""
    made = ConnectionRates()
    made.change(
        {
            (("ip", None if name == "default" else name),): {"connection_creation_rate": rate}
            for name, rate in rates.items()
        }
    )
    return made


def test_nothing_is_limited_by_default() -> None:
    made = ConnectionRates()
    assert not made.is_limited
    assert made.admit("PLAINTEXT", HERE, NOW) == NOT_THROTTLED


def test_an_address_above_its_rate_is_refused_and_not_counted() -> None:
    made = limited(**{HERE: 1.0})
    assert made.is_limited
    for _ in range(10):
        assert made.admit("PLAINTEXT", HERE, NOW) == NOT_THROTTLED
    for _ in range(3):
        assert made.admit("PLAINTEXT", HERE, NOW) == ConnectionThrottle(1000, is_refused=True)
    assert made.admit("PLAINTEXT", THERE, NOW) == NOT_THROTTLED
    assert made.admit("PLAINTEXT", HERE, NOW + 1000).is_refused
    assert made.admit("PLAINTEXT", HERE, NOW + 11_000) == NOT_THROTTLED


def test_the_default_holds_for_each_address_alone() -> None:
    made = limited(default=1.0)
    for address in (HERE, THERE):
        outcomes = [made.admit("PLAINTEXT", address, NOW).is_refused for _ in range(11)]
        assert outcomes == [False] * 10 + [True]


def test_a_changed_quota_holds_at_once_and_a_removed_one_no_more() -> None:
    made = limited(**{HERE: 1.0})
    for _ in range(10):
        made.admit("PLAINTEXT", HERE, NOW)
    made.change({(("ip", HERE),): {"connection_creation_rate": 5.0}})
    assert not made.admit("PLAINTEXT", HERE, NOW).is_refused
    made.change({(("ip", HERE),): {"connection_creation_rate": 1.0}})
    assert made.admit("PLAINTEXT", HERE, NOW).is_refused
    made.change({(("ip", HERE),): {}, (("user", "u"),): {"producer_byte_rate": 1.0}})
    assert not made.is_limited
    assert not made.admit("PLAINTEXT", HERE, NOW).is_refused


def test_addresses_are_compared_as_sockets_write_them() -> None:
    made = limited(**{"0:0:0:0:0:0:0:1": 1.0})
    for _ in range(10):
        made.admit("PLAINTEXT", "::1", NOW)
    assert made.admit("PLAINTEXT", "::1", NOW).is_refused


def test_connections_above_the_nodes_rate_wait_for_one_another() -> None:
    made = ConnectionRates(broker_rate=10, protected_listener="INTERNAL")
    delays = [made.admit("PLAINTEXT", HERE, NOW).delay_ms for _ in range(103)]
    assert delays[:100] == [0] * 100
    assert 0 < delays[100] < delays[101] < delays[102]
    assert made.admit("INTERNAL", HERE, NOW) == NOT_THROTTLED
    assert made.admit("OTHER", HERE, NOW).delay_ms > 0


def test_a_refused_connection_is_not_charged_to_the_node() -> None:
    made = ConnectionRates(broker_rate=2)
    made.change({(("ip", HERE),): {"connection_creation_rate": 1.0}})
    outcomes = [made.admit("PLAINTEXT", HERE, NOW).is_refused for _ in range(30)]
    assert outcomes == [False] * 10 + [True] * 20
    assert made.admit("PLAINTEXT", THERE, NOW) == NOT_THROTTLED


def test_counted_addresses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ADDRESSES", 2)
    made = limited(default=1.0)
    for number in range(5):
        made.admit("PLAINTEXT", f"10.0.0.{number}", NOW)
    assert len(made._addresses) == 2


def test_a_listener_has_a_rate_of_its_own() -> None:
    made = ConnectionRates(by_listener={"INTERNAL": 1})
    assert made.is_limited
    delays = [made.admit("INTERNAL", HERE, NOW).delay_ms for _ in range(20)]
    assert delays[0] == 0 and delays[-1] > 0
    assert made.admit("PLAINTEXT", HERE, NOW) == NOT_THROTTLED


def test_rates_change_while_the_node_runs() -> None:
    made = ConnectionRates()
    made.change_rates(1, {})
    assert made.is_limited
    assert [made.admit("PLAINTEXT", HERE, NOW).delay_ms for _ in range(20)][-1] > 0
    made.change_rates(module.UNLIMITED, {})
    assert not made.is_limited
    assert made.admit("PLAINTEXT", HERE, NOW) == NOT_THROTTLED


def test_a_burst_does_not_block_a_listener_for_longer_than_a_backlog() -> None:
    made = ConnectionRates(broker_rate=10)
    burst = [made.admit("PLAINTEXT", HERE, NOW + number) for number in range(3000)]
    assert max(each.delay_ms for each in burst) < 15_000
    assert sum(each != BACKLOG_FULL for each in burst) < 200
    assert made.admit("PLAINTEXT", THERE, NOW + 20_000) == NOT_THROTTLED


def test_the_turns_of_a_full_backlog_come_one_by_one() -> None:
    made = ConnectionRates(broker_rate=10, backlog=2)
    for _ in range(100):
        assert made.admit("PLAINTEXT", HERE, NOW) == NOT_THROTTLED
    first, second = (made.admit("PLAINTEXT", HERE, NOW).delay_ms for _ in range(2))
    assert 0 < first < second
    assert made.admit("PLAINTEXT", HERE, NOW + first - 1) == BACKLOG_FULL
    assert made.admit("OTHER", HERE, NOW).delay_ms > 0, "each listener has its backlog"
    third = made.admit("PLAINTEXT", HERE, NOW + first)
    assert third.delay_ms > second - first
    assert made.admit("PLAINTEXT", HERE, NOW + first) == BACKLOG_FULL


def test_a_refused_connection_of_a_full_backlog_is_not_charged_to_its_address() -> None:
    made = ConnectionRates(broker_rate=1, backlog=1)
    made.change({(("ip", THERE),): {"connection_creation_rate": 1.0}})
    for _ in range(30):
        made.admit("PLAINTEXT", HERE, NOW)
    assert [made.admit("PLAINTEXT", THERE, NOW) for _ in range(30)] == [BACKLOG_FULL] * 30
    made.change_rates(module.UNLIMITED, {})
    assert made.admit("PLAINTEXT", THERE, NOW) == NOT_THROTTLED


def test_settings_that_change_no_rate_empty_no_backlog() -> None:
    made = ConnectionRates(broker_rate=1, backlog=1)
    for _ in range(30):
        made.admit("PLAINTEXT", HERE, NOW)
    made.change_rates(1, {})
    assert made.admit("PLAINTEXT", HERE, NOW) == BACKLOG_FULL
    made.change_rates(2, {})
    assert made.admit("PLAINTEXT", HERE, NOW) != BACKLOG_FULL
