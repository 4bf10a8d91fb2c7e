"""What clients used, and how long they are throttled."""

from __future__ import annotations

import pytest

from kbroker.metadata.client_quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.rates import QuotaWindow
from kbroker.server.quotas import client_quotas as module
from kbroker.server.quotas.client_quotas import ClientQuotas, MutationCharge, RateQuota

ALICE = (("user", "alice"),)
DEFAULT_CLIENT = (("client-id", None),)
NOW = 1_000_000


def quotas(**keys: float) -> ClientQuotas:
    made = ClientQuotas()
    made.change({ALICE: keys})
    return made


def test_a_client_without_a_quota_is_not_counted() -> None:
    made = quotas(**{PRODUCER_BYTE_RATE: 10.0})
    assert made.produce.charge("bob", "c", 10_000, NOW) == 0
    assert not made.produce._counters
    assert not made.apply_to("bob", "c")
    assert made.apply_to("alice", "c")


def test_a_users_clients_share_its_quota() -> None:
    made = quotas(**{PRODUCER_BYTE_RATE: 100.0})
    assert made.produce.charge("alice", "one", 1000, NOW) == 0
    assert made.produce.charge("alice", "two", 1000, NOW) == 10_000


def test_the_request_quota_throttles_for_one_sample_at_most() -> None:
    made = quotas(**{REQUEST_PERCENTAGE: 1.0})
    assert made.request.charge("alice", "c", 10_000, NOW) == 1000
    made = ClientQuotas(QuotaWindow(11, 3000))
    made.change({ALICE: {REQUEST_PERCENTAGE: 1.0}})
    assert made.request.charge("alice", "c", 10_000, NOW) == 3000


def test_what_is_taken_back_does_not_count() -> None:
    made = quotas(**{CONSUMER_BYTE_RATE: 100.0})
    assert made.fetch.charge("alice", "c", 5000, NOW) == 40_000
    made.fetch.record("alice", "c", -5000, NOW)
    assert made.fetch.charge("alice", "c", 1000, NOW) == 0


def test_the_largest_value_that_is_never_throttled() -> None:
    made = quotas(**{CONSUMER_BYTE_RATE: 100.0})
    most = made.fetch.max_in_window("alice", "c")
    assert most == 1000
    assert made.fetch.max_in_window("bob", "c") is None
    assert made.fetch.charge("alice", "c", most, NOW) == 0
    assert made.fetch.charge("alice", "c", 1, NOW) > 0


def test_a_changed_quota_holds_for_what_was_used_before() -> None:
    made = quotas(**{PRODUCER_BYTE_RATE: 1000.0})
    assert made.produce.charge("alice", "c", 10_000, NOW) == 0
    made.change({ALICE: {PRODUCER_BYTE_RATE: 100.0}})
    assert made.produce.charge("alice", "c", 0, NOW) == 90_000


def test_the_first_and_the_last_quota_are_announced() -> None:
    made = ClientQuotas()
    heard: list[bool] = []
    made.on_change = lambda: heard.append(made.is_set)
    made.change({(("ip", "127.0.0.1"),): {"connection_creation_rate": 1.0}})
    made.change({ALICE: {CONTROLLER_MUTATION_RATE: 1.0}})
    made.change({ALICE: {PRODUCER_BYTE_RATE: 1.0}})
    made.change({ALICE: {}})
    assert heard == [True, False]
    assert not made.apply_to("alice", "c")


def test_counters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COUNTERS", 3)
    monkeypatch.setattr(module, "MAX_KNOWN_CLIENTS", 2)
    quota = RateQuota(QuotaWindow())
    quota.change({DEFAULT_CLIENT: 100.0})
    for number in range(10):
        quota.charge("u", "first", 1000, NOW)
        quota.charge("u", f"c{number}", 1, NOW)
    assert len(quota._counters) == 3
    assert len(quota._known) <= 2
    assert quota.charge("u", "first", 0, NOW) == 90_000, "the one in use is kept"


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW

    def __call__(self) -> int:
        return self.now_ms


def charge(clock: Clock, *, is_strict: bool) -> MutationCharge:
    made = quotas(**{CONTROLLER_MUTATION_RATE: 1.0})
    found = made.mutation.of_request("alice", "c", clock, is_strict=is_strict)
    assert found is not None
    assert made.mutation.of_request("bob", "c", clock, is_strict=is_strict) is None
    return found


def test_a_strict_quota_refuses_once_it_is_overdrawn() -> None:
    clock = Clock()
    created = charge(clock, is_strict=True)
    created(16)
    assert created.throttle_ms() == 0
    with pytest.raises(KafkaError) as raised:
        created(1)
    assert raised.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert created.throttle_ms() == 5000
    clock.now_ms += 2000
    assert created.throttle_ms() == 3000
    clock.now_ms += 3000
    created(1)


def test_a_permissive_quota_throttles_only() -> None:
    clock = Clock()
    created = charge(clock, is_strict=False)
    created(16)
    assert created.throttle_ms() == 5000
    created(1)
    assert created.throttle_ms() == 6000
    clock.now_ms += 10_000
    assert created.throttle_ms() == 0
