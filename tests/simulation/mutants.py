"""Defects injected into the nodes of a simulated cluster, each of which some seed must find: the
proof that faults, clients and the checks of histories are effective. Four are of replication alone,
from `tests/sim/replication_mutants`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from kbroker.coordinator.runtime import loader
from kbroker.coordinator.runtime.host import Host, HostStatus
from kbroker.coordinator.runtime.writer import ShardWriter
from kbroker.coordinator.transaction import completion, markers
from kbroker.ports import Deferred
from kbroker.protocol.batches import control_records
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.appends import append
from kbroker.replication.leaders import isr
from tests.sim.replication_mutants import (
    committed_instead_of_maximal_isr,
    epoch_check_skipped,
    high_watermark_from_a_diverging_answer,
    truncation_to_the_wrong_epochs_end,
)

Mutant = Callable[[], AbstractContextManager[object]]


def acknowledged_before_followers_have_it() -> AbstractContextManager[object]:
    """A leader answers acks=all as soon as it has the records itself."""

    def start(pending: append._PendingAppend, timeout_ms: int) -> Deferred[object]:
        del timeout_ms
        return Deferred.of(pending._appended)

    return mock.patch.object(append._PendingAppend, "start", start)


def coordinators_begin_empty() -> AbstractContextManager[object]:
    """A coordinator does not load the records of the former coordinator."""

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


def coordinators_trust_the_tail() -> AbstractContextManager[object]:
    """A coordinator answers from records that are not below the high watermark yet."""
    return mock.patch.object(ShardWriter, "await_tail", lambda writer, host: None)


def markers_are_dropped_after_an_error() -> AbstractContextManager[object]:
    """A coordinator never retries a marker."""
    return mock.patch.object(completion, "MARKER_DONE", frozenset(ErrorCode))


MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        acknowledged_before_followers_have_it,
        committed_instead_of_maximal_isr,
        coordinators_begin_empty,
        coordinators_trust_the_tail,
        epoch_check_skipped,
        every_marker_commits,
        high_watermark_from_a_diverging_answer,
        markers_are_dropped_after_an_error,
        the_high_watermark_waits_for_dead_followers,
        truncation_to_the_wrong_epochs_end,
    )
}
