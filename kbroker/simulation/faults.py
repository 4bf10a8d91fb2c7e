"""Faults of a simulated cluster, drawn from a seed: kills, restarts, pauses, network partitions, a
bad network. At most two nodes at a time are affected.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Final

from kbroker.simulation.cluster import SimulatedCluster, SimulatedNode
from kbroker.simulation.network import Conditions, SimulatedNetwork

CLIENTS: Final = 0
"""The node id of the clients' process."""
MOST_AT_ONCE: Final = 2
MEAN_GAP_S: Final = 6.0
SHORTEST_S, LONGEST_S = 0.2, 8.0


class Kind(Enum):
    """A fault of one node."""

    KILL = "killed"
    RESTART = "stopped in order"
    PAUSE = "paused"
    ISOLATE = "cut off from nodes and clients"
    CUT = "cut off from other nodes"
    CUT_OUT = "not heard by other nodes"
    CUT_IN = "deaf to other nodes"
    CUT_PAIR = "cut off from one node"


class Faults:
    """note: called with a line for each event. counts: of the faults of each kind."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        network: SimulatedNetwork,
        random: Random,
        note: Callable[[str], None],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._nodes = cluster.nodes
        self._network = network
        self._random = random
        self._note = note
        self._affected: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run until cancelled; `heal` ends the faults in progress."""
        while True:
            await asyncio.sleep(self._random.expovariate(1 / MEAN_GAP_S))
            if self._random.random() < 0.2:
                self._network.conditions = Conditions.drawn(self._random)
                self._note(f"network: {self._network.conditions}")
            count = 2 if self._random.random() < 0.25 else 1
            for _ in range(min(count, MOST_AT_ONCE - len(self._affected))):
                self._begin()

    def _begin(self) -> None:
        whole = [each for each in sorted(self._nodes) if each not in self._affected]
        node = self._nodes[self._random.choice(whole)]
        kind = self._random.choice(list(Kind))
        seconds = self._random.uniform(SHORTEST_S, LONGEST_S)
        self._note(f"{node} is {kind.value} for {seconds:.1f} s")
        self.counts[kind.value] += 1
        task = asyncio.get_running_loop().create_task(self._strike(node, kind, seconds))
        self._affected[node.id] = task
        task.add_done_callback(lambda done: self._affected.pop(node.id, None))

    async def _strike(self, node: SimulatedNode, kind: Kind, seconds: float) -> None:
        cuts = self.cuts_of(node.id, kind)
        try:
            if kind is Kind.KILL:
                node.kill()
            elif kind is Kind.RESTART:
                await asyncio.wait_for(node.stop(), seconds + LONGEST_S)
            elif kind is Kind.PAUSE:
                node.pause()
            for cut in cuts:
                self._network.cut(*cut)
            await asyncio.sleep(seconds)
        except TimeoutError:
            self._note(f"{node} does not stop, and is killed")
        finally:
            for cut in cuts:
                self._network.heal(*cut)
            if kind is Kind.PAUSE:
                node.resume()
            elif kind in (Kind.KILL, Kind.RESTART):
                node.kill()
                node.start()
            self._note(f"{node} is well again")

    def cuts_of(self, node: int, kind: Kind) -> list[tuple[int, int]]:
        """The (source, target) pairs between which no data is delivered."""
        others = [each for each in sorted(self._nodes) if each != node]
        out = [(node, other) for other in others]
        into = [(other, node) for other in others]
        match kind:
            case Kind.ISOLATE:
                return [*out, *into, (node, CLIENTS), (CLIENTS, node)]
            case Kind.CUT:
                return [*out, *into]
            case Kind.CUT_OUT:
                return out
            case Kind.CUT_IN:
                return into
            case Kind.CUT_PAIR:
                other = self._random.choice(others)
                return [(node, other), (other, node)]
            case _:
                return []

    async def heal(self) -> None:
        """End all faults in progress; the network is a good one from now on."""
        tasks = list(self._affected.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._network.conditions = Conditions()
