"""A simulated node of the quorum as the faults, the checks and the world see it, over all its
processes. What it runs differs: `quorum_node` the core on a model of a log, `quorum_driver_node`
the driver and storage that a kbroker node has.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from kbroker.model import Uuid
from kbroker.quorum.raft.effects import Effect, RaftRequest, RaftResponse
from kbroker.quorum.raft.node import RaftNode
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, VoterSet
from tests.sim.disk import SimDisk
from tests.sim.process import SimProcess
from tests.sim.quorum_mirror import LogMirror
from tests.sim.simulation import Simulation

LISTENER = "CONTROLLER"


class Origin(NamedTuple):
    """A request that has arrived. source: the node or connection that it came from; arrived_ms:
    when, since the start of the simulation.
    """

    source: object
    arrived_ms: int
    request: RaftRequest
    version: int
    reply: Callable[[RaftResponse], None]


class Proposal(NamedTuple):
    """Records that were proposed and are not known to be committed."""

    base_offset: int
    end_offset: int
    epoch: int
    values: tuple[bytes, ...]


class Step(NamedTuple):
    """What a step of a node did. effects: those that were carried out, is_whole: all of them;
    answered: the requests that were answered, with their responses.
    """

    effects: list[Effect]
    answered: list[tuple[RaftRequest, RaftResponse]]
    voters_before: VoterSet
    is_whole: bool = True


Check = Callable[["SimReplica", Step], None]
"""Raises AssertionError if an invariant does not hold."""


class Watchers(NamedTuple):
    """Who is told what a node does. check: called after each step; acknowledge: with each proposal
    that the node saw committed while it led; started: before the first step of a process, which has
    loaded its snapshot; ended: when a process has ended.
    """

    check: Check
    acknowledge: Callable[[SimReplica, Proposal], None]
    started: Callable[[SimReplica], None]
    ended: Callable[[SimReplica], None]


class SimReplica(ABC):
    """key: this node with its present disk. log: what is in its files. high_watermark: of the
    present process, what its last Commit said. state: of the state machine, the values of committed
    records; applied_offset: it has them up to there; verified_offset: the checks have compared them
    up to there. fetched_ms: when each node last fetched from this one. counts: effects by name.
    old_nodes: those that refuse pre-votes.
    """

    log: LogMirror
    core: RaftNode

    def __init__(
        self,
        node_id: int,
        directory_id: Uuid,
        simulation: Simulation,
        *,
        watchers: Watchers,
        old_nodes: frozenset[int] = frozenset(),
    ) -> None:
        self.node_id = node_id
        self.directory_id = directory_id
        self.key = ReplicaKey(node_id, directory_id)
        self.simulation = simulation
        self.random = simulation.random(f"node {node_id}")
        self.disk = SimDisk(simulation.random(f"disk {node_id}"))
        self.process: SimProcess | None = None
        self.high_watermark = 0
        self.state: list[bytes] = []
        self.applied_offset = 0
        self.verified_offset = 0
        self.leader_id = -1
        self.unanswered: dict[int, Origin] = {}
        self.fetched_ms: dict[int, int] = {}
        self.proposals: deque[Proposal] = deque()
        self.is_stopping = False
        self.start_count = 0
        self.lost_proposals = 0
        self.counts: Counter[str] = Counter()
        self.old_nodes = old_nodes
        self._watchers = watchers
        self._check = watchers.check
        self._value_count = 0

    # -- what is known ----------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.core.quorum.epoch

    @property
    def is_leader(self) -> bool:
        return self.process is not None and self.core.is_leader

    @property
    def voters(self) -> VoterSet:
        """Those that count for this node."""
        return self.core.quorum.voters

    @property
    def is_running(self) -> bool:
        """Whether it runs and is not paused."""
        return self.process is not None and not self.process.is_paused

    # -- the life of a node -----------------------------------------------------------------------

    @abstractmethod
    def format(self, voters: VoterSet, kraft_version: int) -> None:
        """`kbroker format`: with kraft.version 1, the checkpoint 0-0 names the first voters."""

    @abstractmethod
    def start(self) -> None:
        """Start a node that is down; it stays down if its disk does not work."""

    def wipe(self, directory_id: Uuid) -> None:
        """Replace the disk by an empty one, formatted with `--no-initial-controllers`: this is
        another replica from now on.
        """
        self.kill(power_loss=True)
        self.simulation.note(f"node {self.node_id} gets an empty disk")
        self.directory_id = directory_id
        self.key = ReplicaKey(self.node_id, directory_id)
        self.disk = SimDisk(self.simulation.random(f"disk {self.node_id} {directory_id.hex()}"))
        self._disk_replaced()

    @abstractmethod
    def _disk_replaced(self) -> None:
        """The disk is another one, and empty."""

    def kill(self, *, power_loss: bool) -> None:
        """End the process; with a loss of power the disk keeps what was synced, and some more."""
        process = self.process
        if process is not None:
            self.simulation.note(f"node {self.node_id} ends, power loss: {power_loss}")
            process.kill()
            self.process = None
            self.simulation.network.detach(self.node_id, silently=power_loss)
            self.unanswered.clear()
            self.lost_proposals += len(self.proposals)
            self.proposals.clear()
            self.fetched_ms.clear()
            self._process_ended()
            self._watchers.ended(self)
        self.disk.restart(power_loss=power_loss)

    @abstractmethod
    def _process_ended(self) -> None:
        """Forget what the process had in memory."""

    # -- what happens in it -----------------------------------------------------------------------

    @abstractmethod
    def step(self, event: Callable[[int], list[Effect]]) -> None:
        """One event of the core, its effects, and the checks."""

    def propose(self, record_count: int) -> None:
        """Propose records, if this node leads."""
        values = []
        for _ in range(record_count):
            self._value_count += 1
            values.append(b"%d.%d.%d" % (self.node_id, self.start_count, self._value_count))
        self._propose(values)

    @abstractmethod
    def _propose(self, values: list[bytes]) -> None: ...

    @abstractmethod
    def client_request(self, request: RaftRequest, reply: Callable[[RaftResponse], None]) -> None:
        """A request of a client; reply may never be called."""

    @abstractmethod
    def shut_down(self, timeout_ms: int) -> None:
        """Stop in order: a leader resigns, then the process ends."""

    @abstractmethod
    def write_snapshot(self) -> None:
        """Make a snapshot of everything that is committed, if anything is new."""

    @abstractmethod
    def clean(self) -> None:
        """Retention: keep the newest snapshot and the log behind it."""

    @abstractmethod
    def abandon(self, source: object) -> None:
        """A connection is closed, or all those of a node: its requests need no answer."""


_NOISE = re.compile(
    r"\w+=(-1|0|b''|''|None|False|\[\]|\(\)|<ErrorCode.NONE: 0>)(, |(?=[)]))|"
    r"topic(_name)?='__cluster_metadata', |(topic|\w*directory)_id=b'[^']*'(, |(?=[)]))|"
    r"cluster_id='\w+', |host='\w+', |, kraft_version=\d, voter_ids=\([\d, ]+\)"
)


def short(effect: Effect) -> str:
    """An effect in a line of the trace: without the fields that say nothing."""
    text = _NOISE.sub("", repr(effect))
    return text if len(text) < 300 else f"{text[:300]}..."
