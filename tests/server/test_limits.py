"""Limits shared by connections."""

from __future__ import annotations

from kbroker.server.limits import ConnectionLimits, PipelineBudget


def test_connections_in_all() -> None:
    limits = ConnectionLimits(2, 100)
    assert limits.admit("a") is None
    assert limits.admit("b") is None
    assert limits.admit("c") == "max.connections=2 reached"
    limits.release("a")
    assert limits.admit("c") is None
    assert limits.count == 2


def test_connections_of_one_host_with_override() -> None:
    limits = ConnectionLimits(100, 1, {"10.0.0.1": 2, "10.0.0.2": 0})
    assert limits.admit("a") is None
    assert limits.admit("a") == "max.connections.per.ip=1 reached"
    assert limits.admit("10.0.0.1") is None
    assert limits.admit("10.0.0.1") is None
    assert limits.admit("10.0.0.1") is not None
    assert limits.admit("10.0.0.2") is not None
    limits.release("a")
    assert limits.admit("a") is None


def test_budget() -> None:
    budget = PipelineBudget(2)
    budget.used += 1
    assert not budget.exhausted
    budget.used += 1
    assert budget.exhausted
