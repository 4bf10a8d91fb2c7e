"""Who is alive and who is ready, fact by fact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kbroker.broker.lifecycle import BrokerState
from kbroker.coordinator.runtime.host import HostStatus
from kbroker.server.monitoring.health import (
    MAX_LAG_RECORDS,
    BrokerFacts,
    NodeFacts,
    is_ok,
    liveness,
    readiness,
    report,
)

BROKER = BrokerFacts(
    state=BrokerState.RUNNING,
    epoch=7,
    silent_ms=9_000,
    session_ms=9_000,
    is_fenced=False,
    coordinators={"__consumer_offsets": {HostStatus.ACTIVE: 50}},
)
NODE = NodeFacts(
    failure="",
    online_directories=2,
    directories=2,
    leader_id=1,
    lag_records=0,
    broker=BROKER,
)


def failed(facts: NodeFacts) -> tuple[list[str], list[str]]:
    """The names of the checks that fail: of liveness, of readiness."""
    alive, ready = liveness(facts), readiness(facts)
    assert is_ok(alive) == all(each.is_ok for each in alive)
    return [each.name for each in alive if not each.is_ok], [
        each.name for each in ready if not each.is_ok
    ]


def test_a_broker_that_serves() -> None:
    assert failed(NODE) == ([], [])
    assert report(readiness(NODE)).splitlines() == [
        "[+] process: running",
        "[+] log-directories: 2 of 2 online",
        "[+] metadata: 0 records behind, the leader is node 1",
        "[+] registered: running, epoch 7",
        "[+] unfenced: unfenced",
        "[+] coordinators: loaded",
    ]


def test_a_controller_has_no_checks_of_a_broker() -> None:
    assert [each.name for each in readiness(replace(NODE, broker=None))] == [
        "process",
        "log-directories",
        "metadata",
    ]


@pytest.mark.parametrize(
    ("change", "alive", "ready"),
    [
        pytest.param({"failure": "boom"}, ["process"], ["process"], id="failed"),
        pytest.param({"online_directories": 1}, [], [], id="a directory offline"),
        pytest.param(
            {"online_directories": 0}, ["log-directories"], ["log-directories"], id="all offline"
        ),
        pytest.param({"lag_records": None}, [], ["metadata"], id="metadata log not open"),
        pytest.param({"lag_records": MAX_LAG_RECORDS}, [], [], id="a little behind"),
        pytest.param({"lag_records": MAX_LAG_RECORDS + 1}, [], ["metadata"], id="far behind"),
        pytest.param({"leader_id": -1}, [], ["metadata"], id="no leader known"),
    ],
)
def test_facts_of_the_node(change: dict[str, Any], alive: list[str], ready: list[str]) -> None:
    assert failed(replace(NODE, **change)) == (alive, ready)


@pytest.mark.parametrize(
    ("state", "is_registered"),
    [
        (BrokerState.NOT_RUNNING, False),
        (BrokerState.STARTING, False),
        (BrokerState.RECOVERY, True),
        (BrokerState.RUNNING, True),
        (BrokerState.PENDING_CONTROLLED_SHUTDOWN, False),
        (BrokerState.SHUTTING_DOWN, False),
    ],
)
def test_the_life_of_a_broker(state: BrokerState, is_registered: bool) -> None:
    facts = replace(NODE, broker=replace(BROKER, state=state))
    assert failed(facts) == ([], [] if is_registered else ["registered"])


def test_a_broker_that_hears_nothing_of_the_controller() -> None:
    facts = replace(NODE, broker=replace(BROKER, silent_ms=9_001))
    assert failed(facts) == ([], ["registered"])
    assert "[-] registered: the active controller has not answered for 9.0 s" in report(
        readiness(facts)
    )


def test_a_fenced_broker() -> None:
    facts = replace(NODE, broker=replace(BROKER, is_fenced=True))
    assert failed(facts) == ([], ["unfenced"])


@pytest.mark.parametrize("status", list(HostStatus))
def test_coordinators(status: HostStatus) -> None:
    counts = {HostStatus.ACTIVE: 3, status: 2}
    facts = replace(NODE, broker=replace(BROKER, coordinators={"__transaction_state": counts}))
    is_unready = status in (HostStatus.LOADING, HostStatus.FAILED)
    assert failed(facts) == ([], ["coordinators"] if is_unready else [])
    if is_unready:
        line = f"[-] coordinators: 2 of __transaction_state {status.value}\n"
        assert report(readiness(facts)).endswith(line)
