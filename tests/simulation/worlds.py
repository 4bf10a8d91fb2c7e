"""Simulated clusters for tests that drive them by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

from kbroker.simulation.cluster import SimulatedCluster
from kbroker.simulation.event_loop import SimulatedLoop
from kbroker.simulation.network import SimulatedNetwork
from kbroker.simulation.process import SimulatedProcess, context_of


class SimulatedWorld:
    """Nodes that are not started, and a process of clients, number 0. failures: of nodes that must
    not continue.
    """

    def __init__(self, folder: Path, *, nodes: int = 3, seed: int = 1) -> None:
        self.network = SimulatedNetwork(Random(seed))
        self.loop = SimulatedLoop(self.network)
        self.failures: list[str] = []
        self.cluster = SimulatedCluster(
            folder,
            self.loop,
            Random(seed),
            nodes=nodes,
            failed=lambda node, error: self.failures.append(f"{node}: {error!r}"),
        )

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes."""
        return self.cluster.bootstrap_servers

    def run(self, script: Callable[[], Awaitable[None]]) -> None:
        """Run a script of the clients to its end, then close everything."""

        async def whole() -> None:
            try:
                await script()
            finally:
                for node in self.cluster.nodes.values():
                    node.kill()
                await self.loop.cancel_all()

        context = context_of(SimulatedProcess(0))
        task = context.run(self.loop.create_task, whole())
        try:
            self.loop.run_until_complete(task)
        finally:
            self.loop.close()
        assert not self.failures
