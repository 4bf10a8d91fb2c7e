"""Carries a fault out on a node of a cluster, and ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final, assert_never

from tests.cluster.cluster import CLIENT, Cluster, ClusterNode
from tests.cluster.disk import SlowSync, strace_problem
from tests.cluster.schedule import FOLLOWERS, LEADER, Fault, Kind, Round

SYNC_DELAY_MS: Final = 150
FATAL: Final = (
    "fatal error, stopping",
    "the metadata log has failed",
    "is offline with",
    "none of log.dirs can be used",
)
"""Logged by a node before it ends because its metadata log, or its only log directory, cannot be
written; during a start it first recovers its other logs.
"""
EXIT_TIMEOUT_S: Final = 30.0
NOTICE_S: Final = 0.5


def possible_kinds() -> list[Kind]:
    """Those that this machine can have."""
    without = {Kind.SLOW_SYNC} if strace_problem() else set()
    return [kind for kind in Kind if kind not in without]


def victims_of(cluster: Cluster, leader_id: int) -> dict[str, ClusterNode]:
    """The nodes by the names that a schedule has for them, while leader_id leads."""
    followers = [node for node in cluster.controllers if node.id != leader_id]
    return {
        LEADER: cluster.nodes[leader_id],
        **dict(zip(FOLLOWERS, followers, strict=True)),
        **{f"broker{number}": node for number, node in enumerate(cluster.brokers, 1)},
    }


class FaultThread(threading.Thread):
    """One fault: waits for its delay, begins, waits, ends."""

    def __init__(self, cluster: Cluster, node: ClusterNode, fault: Fault) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self._cluster = cluster
        self._node = node
        self._fault = fault

    def run(self) -> None:
        try:
            time.sleep(self._fault.delay_s)
            with ExitStack() as stack:
                _begin(self._cluster, self._node, self._fault.kind, stack)
                time.sleep(self._fault.seconds)
        except BaseException as error:  # noqa: BLE001  # raised by `strike`
            self.error = error


def strike(cluster: Cluster, plan: Round, victims: Mapping[str, ClusterNode]) -> None:
    """All faults of a round, until all have ended. A node whose disk was full is started again if
    it ended.
    """
    threads = [FaultThread(cluster, victims[each.victim], each) for each in plan.faults]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for thread in threads:
        if thread.error is not None:
            raise thread.error


def _begin(cluster: Cluster, node: ClusterNode, kind: Kind, ends: ExitStack) -> None:
    """Begin the fault. ends: gets what ends it."""
    others = [each.member for each in cluster.nodes.values() if each is not node]
    incoming = [(other, node.member) for other in others]
    outgoing = [(node.member, other) for other in others]
    match kind:
        case Kind.KILL:
            node.process.kill()
            ends.callback(node.process.launch)
        case Kind.PAUSE:
            node.process.pause()
            ends.callback(node.process.resume)
        case Kind.ISOLATE:
            client = [(CLIENT, node.member), (node.member, CLIENT)]
            _cut(cluster, [*incoming, *outgoing, *client], ends)
        case Kind.CUT:
            _cut(cluster, [*incoming, *outgoing], ends)
        case Kind.CUT_OUT:
            _cut(cluster, outgoing, ends)
        case Kind.CUT_IN:
            _cut(cluster, incoming, ends)
        case Kind.CUT_PAIR:
            _cut(cluster, [incoming[0], outgoing[0]], ends)
        case Kind.FULL_DISK:
            ends.callback(_revive, node, len(node.log_text))
            ends.callback(node.disk.free)
            node.disk.fill()
        case Kind.SLOW_SYNC:
            ends.enter_context(SlowSync(node.process.pid, SYNC_DELAY_MS))
        case _:
            assert_never(kind)


def _cut(cluster: Cluster, links: list[tuple[str, str]], ends: ExitStack) -> None:
    for source, target in links:
        cluster.network.cut(source, target)
        ends.callback(cluster.network.heal, source, target)


def _revive(node: ClusterNode, log_length: int) -> None:
    """Start a node again that ended because it could not write. log_length: of its log lines before
    its disk was full.
    """
    code = node.process.wait_for_exit(NOTICE_S)
    if code is None and ends_by_itself(node.log_text[log_length:]):
        code = node.process.wait_for_exit(EXIT_TIMEOUT_S)
    if code is not None:
        node.process.launch()


def ends_by_itself(log_text: str) -> bool:
    """Whether a node that logged this will end."""
    return any(words in log_text for words in FATAL)
