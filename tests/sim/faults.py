"""Faults drawn from a seed: what goes wrong with nodes, disks and network, until it all heals.

`Faults` draws which kinds a seed has and how often they strike, then one after the other. Each
lasts for a drawn time. `heal` ends them all: nodes run, disks work and the network is good.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Protocol

from tests.sim.disk import SimDisk
from tests.sim.network import SimNetwork
from tests.sim.process import SimProcess
from tests.sim.timers import SimTimers

MEAN_GAPS = (0.3, 1.0, 3.0)
LONGEST = (0.5, 2.0, 6.0, 15.0)
FAVOURITES_SHARE = 0.4


class FaultyNode(Protocol):
    """A node as the faults see it. process: None while it is down."""

    @property
    def node_id(self) -> int: ...
    @property
    def disk(self) -> SimDisk: ...
    @property
    def process(self) -> SimProcess | None: ...
    def kill(self, *, power_loss: bool) -> None: ...
    def start(self) -> None:
        """Start a node that is down; no effect on one that runs."""
        ...


class Faults:
    """The faults of one seed. unit_ms: how long things take in this cluster, such as an election;
    what is drawn is in proportion. favourites: the nodes that faults strike more often, such as
    leaders. note: told each of them, for the trace.
    """

    def __init__(
        self,
        nodes: list[FaultyNode],
        network: SimNetwork,
        timers: SimTimers,
        random: Random,
        note: Callable[[str], None],
        *,
        unit_ms: float,
        favourites: Callable[[], list[FaultyNode]] = list,
    ) -> None:
        self._nodes = nodes
        self._network = network
        self._timers = timers
        self._random = random
        self._note = note
        self._favourites = favourites
        self._is_over = False
        kinds: dict[str, Callable[[FaultyNode, float], None]] = {
            "kill": self._kill,
            "power loss": self._power_loss,
            "pause": self._pause,
            "clock jump": self._clock_jump,
            "slow disk": self._slow_disk,
            "disk fault": self._disk_fault,
            "crash": self._crash,
        }
        if len(nodes) > 1:
            kinds |= {
                "isolate": self._isolate,
                "one-way cut": self._one_way_cut,
                "two-way cut": self._two_way_cut,
                "reset": self._reset,
            }
        self._kinds = {name: kinds[name] for name in sorted(kinds) if random.random() < 0.5}
        self._mean_gap_ms = unit_ms * random.choice(MEAN_GAPS)
        self._longest_ms = unit_ms * random.choice(LONGEST)

    def start(self) -> None:
        """Begin to strike."""
        if self._kinds:
            self._later(self._random.expovariate(1 / self._mean_gap_ms), self._strike)

    def heal(self) -> None:
        """End all faults; nodes that are down start."""
        self._note("all faults heal")
        self._is_over = True
        self._network.heal_all()
        for node in self._nodes:
            node.disk.mend()
            node.disk.crash_after = None
            node.disk.slow_ms = 0.0
            if node.process is not None and node.process.is_paused:
                node.process.resume()
            node.start()

    def _later(self, delay_ms: float, event: Callable[[], None]) -> None:
        def happen() -> None:
            if not self._is_over:
                event()

        self._timers.call_later(delay_ms, happen)

    def _strike(self) -> None:
        name = self._random.choice(list(self._kinds))
        node = self._random.choice(self._nodes)
        favourites = self._favourites()
        if favourites and self._random.random() < FAVOURITES_SHARE:
            node = self._random.choice(favourites)
        lasts_ms = self._random.uniform(0, self._longest_ms)
        self._note(f"{name} at node {node.node_id} for {lasts_ms:.0f} ms")
        self._kinds[name](node, lasts_ms)
        self._later(self._random.expovariate(1 / self._mean_gap_ms), self._strike)

    # -- nodes ------------------------------------------------------------------------------------

    def _kill(self, node: FaultyNode, lasts_ms: float) -> None:
        node.kill(power_loss=False)
        self._later(lasts_ms, node.start)

    def _power_loss(self, node: FaultyNode, lasts_ms: float) -> None:
        node.kill(power_loss=True)
        self._later(lasts_ms, node.start)

    def _pause(self, node: FaultyNode, lasts_ms: float) -> None:
        process = node.process
        if process is not None and not process.is_paused:
            process.pause()
            self._later(lasts_ms, process.resume)

    def _clock_jump(self, node: FaultyNode, lasts_ms: float) -> None:
        del lasts_ms
        if node.process is not None:
            node.process.jump()

    # -- disks ------------------------------------------------------------------------------------

    def _slow_disk(self, node: FaultyNode, lasts_ms: float) -> None:
        node.disk.slow_ms = self._random.choice((20.0, 500.0, 3_000.0))
        self._later(lasts_ms, partial(setattr, node.disk, "slow_ms", 0.0))

    def _disk_fault(self, node: FaultyNode, lasts_ms: float) -> None:
        """The node is expected to end by it; it starts once the disk works again."""
        name = self._random.choice(("full", "broken for writes", "broken at fsync", "dead"))
        node.disk.inject(name, self._random.randrange(4))

        def mend() -> None:
            node.disk.mend()
            node.start()

        self._later(lasts_ms, mend)

    def _crash(self, node: FaultyNode, lasts_ms: float) -> None:
        """A loss of power at one of the next operations of the disk, within a step of the node."""
        node.disk.crash_after = self._random.randrange(12)
        self._later(lasts_ms, node.start)

    # -- network ----------------------------------------------------------------------------------

    def _another(self, node: FaultyNode) -> int:
        return self._random.choice(
            [each.node_id for each in self._nodes if each.node_id != node.node_id]
        )

    def _cut(self, source: int, target: int, lasts_ms: float) -> None:
        self._network.cut(source, target)
        self._later(lasts_ms, partial(self._network.heal, source, target))

    def _one_way_cut(self, node: FaultyNode, lasts_ms: float) -> None:
        self._cut(node.node_id, self._another(node), lasts_ms)

    def _two_way_cut(self, node: FaultyNode, lasts_ms: float) -> None:
        other = self._another(node)
        self._cut(node.node_id, other, lasts_ms)
        self._cut(other, node.node_id, lasts_ms)

    def _isolate(self, node: FaultyNode, lasts_ms: float) -> None:
        """Cut a node off from all others, or only its messages to them, or only theirs to it."""
        directions = self._random.choice(("both", "from", "to"))
        for other in self._nodes:
            if other.node_id != node.node_id:
                if directions != "to":
                    self._cut(node.node_id, other.node_id, lasts_ms)
                if directions != "from":
                    self._cut(other.node_id, node.node_id, lasts_ms)

    def _reset(self, node: FaultyNode, lasts_ms: float) -> None:
        del lasts_ms
        self._network.break_connections(node.node_id, self._another(node))
