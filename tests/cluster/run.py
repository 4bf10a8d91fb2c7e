"""A cluster under load through rounds of faults. What loads it, and what must hold of that, is a
subclass's: `metadata_run`, `data_run`.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kbroker.quorum.formatting.format import METADATA_FOLDER
from tests.cluster.checks import Leaders, check_equal_logs, logged_leaders, stored_leaders
from tests.cluster.cluster import CLIENT, Cluster, ClusterNode
from tests.cluster.controller_client import ControllerClient, QuorumPartition
from tests.cluster.faults import strike, victims_of
from tests.cluster.loads import ClientProcess
from tests.cluster.schedule import Round

RECOVERY_TIMEOUT_S: Final = 60.0
"""From the end of a round's faults until every client is acknowledged something: connections that
were cut retransmit in intervals that double.
"""
START_TIMEOUT_S: Final = 240.0
"""Until every client is acknowledged something for the first time: some are compiled before."""
POLL_S: Final = 0.1

Client = ClientProcess[Any]


@dataclass(frozen=True)
class Summary:
    """What a run that held has seen. acknowledged: operations of clients. log_bytes: that are equal
    on all nodes.
    """

    acknowledged: int
    epochs: int
    log_bytes: int


class Run(ABC):
    """See the module. stack of `begin`: stops everything."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self._leaders = Leaders()
        self._clients: list[Client] = []
        self._loads: list[Client] = []

    # -- a load -----------------------------------------------------------------------------------

    @abstractmethod
    def start_clients(self, stack: ExitStack) -> None:
        """Start what loads the cluster: `add_client` for each process."""

    @abstractmethod
    def check_clients(self) -> None:
        """What must hold between two rounds. Raises AssertionError."""

    @abstractmethod
    def finish(self) -> Summary:
        """Stop the load and check everything. Raises AssertionError."""

    def add_client(self, client: Client, stack: ExitStack, *, is_load: bool = True) -> None:
        """A client that was started. is_load: it must be acknowledged something after each round's
        faults.
        """
        stack.callback(client.stop)
        self._clients.append(client)
        if is_load:
            self._loads.append(client)

    # -- rounds -----------------------------------------------------------------------------------

    def begin(self, stack: ExitStack) -> None:
        """Start everything, and wait until every client was acknowledged something."""
        stack.enter_context(self.cluster)
        self.start_clients(stack)
        self.wait_for_progress("the load begins", START_TIMEOUT_S)

    def play(self, plan: Round) -> None:
        """One round."""
        time.sleep(plan.quiet_s)
        leader_id = self.quorum(RECOVERY_TIMEOUT_S).leader_id
        strike(self.cluster, plan, victims_of(self.cluster, leader_id))
        self.wait_for_progress("every client is acknowledged something after the faults")
        for node in self.cluster.nodes.values():
            assert node.process.running(), f"{node} has ended: {_tail(node)}"
        self.observe_leaders()

    def wait(
        self,
        is_done: Callable[[], bool],
        what: Callable[[], str],
        *,
        timeout_s: float = RECOVERY_TIMEOUT_S,
        poll_s: float = POLL_S,
    ) -> None:
        """Until is_done. what: that is waited for, as an error names it. Raises AssertionError,
        also if a client has ended meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        while not is_done():
            failures = [each.failure for each in self._clients if each.failure is not None]
            assert not failures, "; ".join(failures)
            assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what()}"
            time.sleep(poll_s)

    def wait_for_progress(self, what: str, timeout_s: float = RECOVERY_TIMEOUT_S) -> None:
        """Until every client was acknowledged something more. what: as an error names it."""
        before = {load: load.sink.count for load in self._loads}

        def without_progress() -> list[str]:
            return [load.name for load, count in before.items() if load.sink.count <= count]

        self.wait(
            lambda: not without_progress(),
            lambda: f"{what}: {', '.join(without_progress())}",
            timeout_s=timeout_s,
        )

    # -- the metadata quorum ----------------------------------------------------------------------

    def quorum(self, timeout_s: float) -> QuorumPartition:
        """The quorum as its leader sees it."""
        with self.cluster.network.entered(CLIENT):
            return asyncio.run(self._quorum(timeout_s))

    async def _quorum(self, timeout_s: float) -> QuorumPartition:
        async with ControllerClient(self.cluster.controller_addresses) as client:
            return await client.wait_for_quorum(timeout_s)

    @property
    def epochs(self) -> int:
        """How many epochs had a leader."""
        return self._leaders.epochs

    def observe_leaders(self) -> None:
        """Take down who led which epoch, by all logs of all nodes."""
        partition = self.quorum(RECOVERY_TIMEOUT_S)
        self._leaders.observe(partition.leader_epoch, partition.leader_id, "DescribeQuorum")
        for node in self.cluster.nodes.values():
            for epoch, leader in logged_leaders(node.log_text):
                self._leaders.observe(epoch, leader, f"log lines of {node}")
            for epoch, leader in stored_leaders(log_bytes(node, METADATA_FOLDER)):
                self._leaders.observe(epoch, leader, f"LeaderChange in the log of {node}")

    def check_metadata_logs(self) -> int:
        """All nodes catch up with what is committed now, and have the same bytes up to there.
        Returns how many bytes that are.
        """
        nodes = set(self.cluster.nodes)
        high_watermark = self.quorum(RECOVERY_TIMEOUT_S).high_watermark

        def have_caught_up() -> bool:
            partition = self.quorum(RECOVERY_TIMEOUT_S)
            ends = {
                each.replica_id: each.log_end_offset
                for each in (*partition.current_voters, *partition.observers)
            }
            return all(ends.get(node, -1) >= high_watermark for node in nodes)

        self.wait(have_caught_up, lambda: f"all nodes fetch up to offset {high_watermark}")
        logs = {str(node): log_bytes(node, METADATA_FOLDER) for node in self.cluster.nodes.values()}
        return check_equal_logs(logs, high_watermark)


def log_bytes(node: ClusterNode, folder: str) -> bytes:
    """The segments of a partition on its disk, in order; empty if the node does not have it.
    folder: of the partition, in the log directory.
    """
    paths = sorted((node.process.data / folder).glob("*.log"))
    return b"".join(path.read_bytes() for path in paths)


def _tail(node: ClusterNode) -> str:
    return " | ".join(node.log_text.splitlines()[-5:])
