"""Defects put into the nodes of a simulated cluster, each of which some seed must find: the proof
that faults, clients and the checker of histories are able to. Those of replication alone are in
`tests/sim/replication_mutants`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from kbroker.coordinator.runtime import loader
from kbroker.coordinator.runtime.host import Host, HostStatus
from kbroker.coordinator.transaction import markers
from kbroker.ports import Deferred
from kbroker.protocol import control_records
from kbroker.replication import append, isr

Mutant = Callable[[], AbstractContextManager[object]]


def acknowledged_before_followers_have_it() -> AbstractContextManager[object]:
    """A leader answers acks=all as soon as it has the records itself."""

    def start(pending: append._PendingAppend, timeout_ms: int) -> Deferred[object]:
        del timeout_ms
        return Deferred.of(pending._appended)

    return mock.patch.object(append._PendingAppend, "start", start)


def coordinators_begin_empty() -> AbstractContextManager[object]:
    """A coordinator does not load what the one before it has written."""

    def load(shards: loader.ShardLoader[Any], host: Host[Any]) -> None:
        host.status = HostStatus.ACTIVE
        shards._on_loaded(host)

    return mock.patch.object(loader.ShardLoader, "load", load)


def the_high_watermark_waits_for_dead_followers() -> AbstractContextManager[object]:
    """A leader waits for every replica, in the ISR or not."""

    def lowest_end(in_sync: isr.InSyncReplicas, leader_end: int, now_ms: int) -> int:
        del now_ms
        return min([leader_end, *(each.log_end_offset for each in in_sync.remotes.values())])

    return mock.patch.object(isr.InSyncReplicas, "lowest_end", lowest_end)


def every_marker_commits() -> AbstractContextManager[object]:
    """An aborted transaction gets a commit marker."""

    def build(**fields: Any) -> bytearray:
        return control_records.build_end_transaction_marker(**{**fields, "commit": True})

    return mock.patch.multiple(markers, build_end_transaction_marker=build)


MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        acknowledged_before_followers_have_it,
        coordinators_begin_empty,
        every_marker_commits,
        the_high_watermark_waits_for_dead_followers,
    )
}
