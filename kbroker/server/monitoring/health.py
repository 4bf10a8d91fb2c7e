"""Whether a node works (`/healthz`) and whether clients may be sent to it (`/readyz`): decided from
facts that `node` gathers. No I/O, no clock.

That the loop turns needs no check here: if it does not, there is no answer, and the probe's own
timeout says so. A node that is alive may be unready for as long as a recovery takes; a probe that
restarts it must ask `/healthz`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kbroker.broker.lifecycle import BrokerState
from kbroker.coordinator.runtime.host import HostStatus

MAX_LAG_RECORDS: Final = 1_000
"""Committed records of the metadata log that a node may still have to replay and be caught up: a
large change of the cluster is replayed in steps.
"""


class HealthCheck(NamedTuple):
    """detail: what was found, for people."""

    name: str
    is_ok: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """Of the broker role. silent_ms: for how long the active controller has not answered, which
    after session_ms (broker.session.timeout.ms) fences this broker; its own metadata may never say
    so. is_fenced: as this node's metadata has it; True while it does not know this registration.
    coordinators: how many partitions of each internal topic are in which state.
    """

    state: BrokerState
    epoch: int
    silent_ms: int = 0
    session_ms: int = 0
    is_fenced: bool
    coordinators: Mapping[str, Mapping[HostStatus, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """failure: why the node must stop, "" if it need not. leader_id: of the metadata quorum, -1 if
    it is unknown. lag_records: committed metadata that is not replayed; None before the log is
    open. broker: None on a controller.
    """

    failure: str
    online_directories: int
    directories: int
    leader_id: int
    lag_records: int | None
    broker: BrokerFacts | None


def liveness(facts: NodeFacts) -> list[HealthCheck]:
    """The process works, and stays as it is if it is not restarted."""
    return [
        HealthCheck("process", not facts.failure, facts.failure or "running"),
        HealthCheck(
            "log-directories",
            facts.online_directories > 0,
            f"{facts.online_directories} of {facts.directories} online",
        ),
    ]


def readiness(facts: NodeFacts) -> list[HealthCheck]:
    """The node takes part in its cluster, and serves what is its own."""
    checks = [*liveness(facts), _metadata(facts)]
    if facts.broker is not None:
        checks += [_registered(facts.broker), _unfenced(facts.broker), _coordinators(facts.broker)]
    return checks


def is_ok(checks: Iterable[HealthCheck]) -> bool:
    """Whether none of them failed."""
    return all(check.is_ok for check in checks)


def report(checks: Iterable[HealthCheck]) -> str:
    """A line for each, as Kubernetes' own components write them."""
    return "".join(
        f"[{'+' if check.is_ok else '-'}] {check.name}: {check.detail}\n" for check in checks
    )


def _metadata(facts: NodeFacts) -> HealthCheck:
    lag = facts.lag_records
    if lag is None:
        return HealthCheck("metadata", False, "the metadata log is not open yet")
    if facts.leader_id < 0:
        return HealthCheck("metadata", False, "the quorum has no leader that this node knows")
    detail = f"{lag} records behind, the leader is node {facts.leader_id}"
    return HealthCheck("metadata", lag <= MAX_LAG_RECORDS, detail)


def _registered(broker: BrokerFacts) -> HealthCheck:
    """Until it is caught up after its registration, a broker is still starting."""
    if broker.silent_ms > broker.session_ms:
        seconds = broker.silent_ms / 1000
        detail = f"the active controller has not answered for {seconds:.1f} s"
        return HealthCheck("registered", False, detail)
    is_serving = BrokerState.RECOVERY <= broker.state <= BrokerState.RUNNING
    state = broker.state.name.lower().replace("_", " ")
    return HealthCheck("registered", is_serving, f"{state}, epoch {broker.epoch}")


def _unfenced(broker: BrokerFacts) -> HealthCheck:
    return HealthCheck(
        "unfenced", not broker.is_fenced, "fenced" if broker.is_fenced else "unfenced"
    )


def _coordinators(broker: BrokerFacts) -> HealthCheck:
    """Partitions that are loaded end by themselves, those that failed need an operator: a rolling
    restart stops before either.
    """
    unready = [
        f"{count} of {topic} {status.value}"
        for topic, counts in broker.coordinators.items()
        for status, count in counts.items()
        if count and status in (HostStatus.LOADING, HostStatus.FAILED)
    ]
    return HealthCheck("coordinators", not unready, ", ".join(unready) or "loaded")
