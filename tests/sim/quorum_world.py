"""A quorum of simulated nodes under drawn faults, with clients that propose records: one seed.

A run has two parts. First faults strike, clients propose, and nodes make snapshots, resign, stop in
order and change the voters. Then everything heals, and within a bounded time one leader must commit
a last record that all nodes apply. The invariants of `quorum_checks` hold after every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from kbroker.model import ZERO_UUID, Uuid
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.quorum import (
    AddRaftVoterRequest,
    DescribeQuorumRequest,
    RemoveRaftVoterRequest,
)
from kbroker.quorum.raft.effects import Effect, RaftResponse
from kbroker.quorum.raft.node import RaftNode
from kbroker.quorum.raft.raft_config import RaftConfig
from kbroker.quorum.raft.raft_log import RaftLog
from kbroker.quorum.raft.states.control_state import ControlState
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, Voter, VoterEndpoint, VoterSet
from kbroker.simulation.garbage import rare_collections
from tests.sim.faults import Faults, FaultyNode
from tests.sim.node_disks import NodeDisks
from tests.sim.quorum_checks import Ledger
from tests.sim.quorum_driver_node import DriverNode
from tests.sim.quorum_mirror import Batches
from tests.sim.quorum_node import QuorumNode
from tests.sim.quorum_replica import LISTENER, SimReplica, Watchers
from tests.sim.simulation import Simulation, SimulationFailure, failure_line

NAME = "quorum"
CLUSTER_ID = "simulated"
HOST = "sim"
FAULTY_UNITS = (3.0, 14.0)
"""How long faults strike, in election timeouts."""
SETTLE_UNITS = 60.0
UNITS_MS = (100, 300, 1_000)
STABLE_SHARE = 0.1
STABLE_UNITS = 20
DRIVER_SHARE = 0.1
"""In how many seeds the nodes run kbroker's driver and storage, and speak over its channel."""


def directory_of(node_id: int) -> Uuid:
    """A directory id."""
    return bytes([node_id]) * 16


def voter_of(node_id: int, directory_id: Uuid) -> Voter:
    """A voter with its one listener."""
    return Voter(node_id, directory_id, (VoterEndpoint(LISTENER, HOST, node_id),))


class QuorumWorld:
    """One seed. make_node: the core's class, another one for a mutant. uses_driver: whether the
    nodes run the driver and its storage; None: the seed decides.
    """

    def __init__(
        self,
        seed: int,
        *,
        is_traced: bool = False,
        make_node: Callable[..., RaftNode] = RaftNode,
        uses_driver: bool | None = None,
    ) -> None:
        self.simulation = Simulation(seed, is_traced=is_traced)
        self.random = random = self.simulation.random("world")
        self.unit_ms = random.choice(UNITS_MS)
        self.kraft_version = random.choice((0, 1))
        voter_count = random.choice((1, 2, 3, 3, 3, 3, 4, 5))
        observer_count = random.choice((0, 0, 1, 2))
        self.changes_voters = random.random() < 0.5
        self.auto_join = self.changes_voters and random.random() < 0.3
        self.brokers: frozenset[int] = frozenset()
        """Observers that sync nothing, as they can never vote."""
        if not self.changes_voters and random.random() < 0.5:
            self.brokers = frozenset(range(voter_count + 1, voter_count + observer_count + 1))
        self._lost_keys: list[ReplicaKey] = []
        """Replicas whose disks were replaced."""
        self._joining: Counter[ReplicaKey] = Counter()
        """How often a client has asked to add replicas as voters, without an answer so far."""
        self.can_clean = random.random() < 0.5
        is_driver_seed = random.random() < DRIVER_SHARE
        self.uses_driver = is_driver_seed if uses_driver is None else uses_driver
        self._disks = NodeDisks()
        self._make_node = make_node
        self._known = Batches()
        self.nodes: dict[int, SimReplica] = {}
        self.ledger = Ledger(self.nodes)
        self.voters = VoterSet(
            voter_of(node_id, directory_of(node_id) if self.kraft_version else ZERO_UUID)
            for node_id in range(1, voter_count + 1)
        )
        watchers = Watchers(
            self.ledger.check, self.ledger.acknowledge, self.ledger.started, self._ended
        )
        all_nodes = range(1, voter_count + observer_count + 1)
        old_nodes = frozenset(
            node_id
            for node_id in all_nodes
            if random.random() < random.choice((0.0, 0.0, 0.0, 0.3))
        )
        for node_id in all_nodes:
            self.nodes[node_id] = self._make_replica(node_id, watchers, old_nodes)
        self.faults = Faults(
            list(self.nodes.values()),
            self.simulation.network,
            self.simulation.timers,
            self.simulation.random("faults"),
            self.simulation.note,
            unit_ms=self.unit_ms,
            favourites=self._favourites,
        )
        self._is_quiet = False
        self.changed_voters_count = 0

    def _make_replica(
        self, node_id: int, watchers: Watchers, old_nodes: frozenset[int]
    ) -> SimReplica:
        if self.uses_driver:
            return DriverNode(
                node_id,
                directory_of(node_id),
                self.simulation,
                known=self._known,
                disks=self._disks,
                raft_config=self._raft_config,
                static_voters=() if self.kraft_version else list(self.voters),
                can_clean=self.can_clean,
                watchers=watchers,
                old_nodes=old_nodes,
            )
        return QuorumNode(
            node_id,
            directory_of(node_id),
            self.simulation,
            known=self._known,
            make_core=self._core,
            watchers=watchers,
            old_nodes=old_nodes,
        )

    def _core(self, node: QuorumNode) -> RaftNode:
        """The core of a node that starts, as `quorum/driver` makes it."""
        log = node.log
        control = ControlState(VoterSet() if self.kraft_version else self.voters)
        latest = max(log.snapshots, default=None)
        if latest is not None:
            control.load_snapshot(latest, log.snapshots[latest].content.configuration)
        node.applied_offset = 0 if latest is None else latest.end_offset
        for batch in log.batches:
            if batch.voters is not None and batch.base_offset >= node.applied_offset:
                control.add_batch(batch.data)
        return self._make_node(
            self._raft_config(node),
            log=RaftLog(
                start_offset=log.start_offset,
                end_offset=log.end_offset,
                epochs=log.epochs(),
                snapshots={each: len(stored.data) for each, stored in log.snapshots.items()},
            ),
            control=control,
            election=log.state,
            random=Random(node.random.random()),
            high_watermark=node.applied_offset,
        )

    def _raft_config(self, node: SimReplica) -> RaftConfig:
        unit_ms = self.unit_ms
        return RaftConfig(
            node.key,
            CLUSTER_ID,
            listener_name=LISTENER,
            endpoints=voter_of(node.node_id, node.directory_id).endpoints,
            bootstrap_servers=tuple(
                (HOST, each) for each in self.nodes if each not in self.brokers
            ),
            can_be_voter=node.node_id not in self.brokers,
            auto_join=self.auto_join,
            election_timeout_ms=unit_ms,
            fetch_timeout_ms=2 * unit_ms,
            election_backoff_max_ms=unit_ms,
            request_timeout_ms=2 * unit_ms,
            retry_backoff_ms=20,
            fetch_max_wait_ms=unit_ms // 2,
            fetch_max_bytes=self.simulation.random("fetch").choice((1, 500, 1 << 20)),
            fetch_snapshot_max_bytes=self.simulation.random("part").choice((100, 1 << 20)),
        )

    def _ended(self, node: SimReplica) -> None:
        """The others may see that its connections are closed."""
        for other in self.nodes.values():
            if other is not node and other.process is not None and self.random.random() < 0.5:
                delay_ms = self.simulation.network.delay_ms()
                other.process.call_later(delay_ms, partial(other.abandon, node.node_id))

    # -- one run ----------------------------------------------------------------------------------

    def run(self) -> None:
        """The whole run. Raises SimulationFailure."""
        try:
            with self._disks.installed(), rare_collections():
                self._run()
        except Exception as error:
            line = failure_line(NAME, self.simulation.seed, self.simulation, error)
            raise SimulationFailure(line) from error

    def _run(self) -> None:
        for node in self.nodes.values():
            node.format(self.voters, self.kraft_version)
            node.start()
        self.simulation.timers.call_later(
            self.unit_ms * self.random.choice((0.0, 3.0, 6.0)), self.faults.start
        )
        self._at_times(self.random.choice((0.1, 0.5)), self._client)
        self._at_times(self.random.choice((1.0, 3.0)), self._maintain)
        if self.changes_voters:
            self._at_times(0.7, self._change_voters)
            self._at_times(2.0, self._upgrade)
        self._every(self.unit_ms, self._look_at_leaders)
        self.simulation.run(int(self.unit_ms * self.random.uniform(*FAULTY_UNITS)))
        self._is_quiet = True
        self.faults.heal()
        self._settle()

    def _at_times(self, mean_units: float, event: Callable[[], None]) -> None:
        """event at drawn times, while faults strike."""

        def happen() -> None:
            if not self._is_quiet:
                event()
                self._at_times(mean_units, event)

        delay_ms = self.random.expovariate(1 / (mean_units * self.unit_ms))
        self.simulation.timers.call_later(delay_ms, happen)

    def _every(self, period_ms: int, event: Callable[[], None]) -> None:
        def happen() -> None:
            event()
            self._every(period_ms, event)

        self.simulation.timers.call_later(period_ms, happen)

    def _running(self) -> list[SimReplica]:
        return [node for node in self.nodes.values() if node.is_running]

    def _leaders(self) -> list[SimReplica]:
        return [
            node
            for node in self.nodes.values()
            if node.is_leader and node.is_running and not node.is_stopping
        ]

    def _favourites(self) -> list[FaultyNode]:
        return [node for node in self._leaders() if len(self.nodes) > 1]

    def _client(self) -> None:
        """Propose records at a leader, perhaps one that was overtaken and does not know it yet."""
        leaders = self._leaders()
        if leaders:
            self.random.choice(leaders).propose(self.random.choice((1, 1, 3)))

    def _look_at_leaders(self) -> None:
        self.ledger.leaders_have_a_majority(2 * self.unit_ms)
        self.ledger.fetches_are_answered_in_time(self.unit_ms // 10)

    def _maintain(self) -> None:
        """What nodes do by themselves, or by order of an operator."""
        running = self._running()
        if not running:
            return
        node = self.random.choice(running)
        match self.random.choice(("snapshot", "snapshot", "resign", "stop", "describe", "wipe")):
            case "snapshot":
                node.write_snapshot()
                if self.can_clean and node.is_running:
                    node.clean()
            case "resign":
                self._resign()
            case "stop" if not node.is_stopping:
                node.shut_down(2 * self.unit_ms)
                again_ms = self.random.uniform(0, 4 * self.unit_ms)
                self.simulation.timers.call_later(again_ms, node.start)
            case "describe":
                topic = DescribeQuorumRequest.TopicData(
                    topic_name="__cluster_metadata",
                    partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)],
                )
                node.client_request(DescribeQuorumRequest(topics=[topic]), lambda response: None)
            case "wipe" if self.changes_voters:
                self._wipe(node)

    def _change_voters(self) -> None:
        """An operator adds or removes a voter, at a node that leads."""
        leaders = self._leaders()
        if not leaders:
            return
        leader = self.random.choice(leaders)
        outside = [node for node in self.nodes.values() if not leader.voters.is_voter(node.key)]
        request: AddRaftVoterRequest | RemoveRaftVoterRequest
        if outside and self.random.random() < 0.6:
            added = self.random.choice(outside)
            key = added.key
            request = AddRaftVoterRequest(
                cluster_id=CLUSTER_ID,
                timeout_ms=5 * self.unit_ms,
                voter_id=key.id,
                voter_directory_id=key.directory_id,
                listeners=[
                    AddRaftVoterRequest.Listener(name=each.name, host=each.host, port=each.port)
                    for each in voter_of(*key).endpoints
                ],
            )
        else:
            # with an empty disk among the voters, no other one may go
            lost = [key for key in leader.voters.keys if key in self._lost_keys]
            key = self.random.choice(lost or leader.voters.keys)
            if key == leader.key and len(leader.voters) == 2:
                # if it fails before the other one has the record, neither can be elected: the
                # one with the longer log is no voter by it (in Kafka too; Raft, section 4.2.2)
                return
            request = RemoveRaftVoterRequest(
                cluster_id=CLUSTER_ID, voter_id=key.id, voter_directory_id=key.directory_id
            )
        is_added = isinstance(request, AddRaftVoterRequest)
        if is_added:
            self._joining[key] += 1
        offset = leader.log.end_offset

        def reply(response: RaftResponse) -> None:
            self.simulation.note(f"voter {key.id}, added: {is_added}: {response}")
            self._joining[key] -= is_added
            if not response.error_code:
                self.changed_voters_count += 1
                self.ledger.voter_changed(key, offset, is_added=is_added)

        leader.client_request(request, reply)

    def _upgrade(self) -> None:
        """An operator finalizes kraft.version 1."""

        def upgrade(leader: SimReplica, now_ms: int) -> list[Effect]:
            try:
                return leader.core.upgrade_kraft_version(1, now_ms)
            except KafkaError as error:
                self.simulation.note(f"node {leader.node_id}: {error}")
                return []

        for leader in self._leaders():
            leader.step(partial(upgrade, leader))

    def _wipe(self, node: SimReplica) -> None:
        """One disk is replaced by an empty one, once, if the other voters can do without it."""
        voters = [each.voters for each in self.nodes.values() if each.start_count]
        is_safe = all(len(each) >= 3 or not each.is_voter(node.key) for each in voters)
        # with its disk goes what lets it be a voter, and the leader cannot tell in time
        is_safe = is_safe and not self._joining[node.key]
        # one that is no voter may be asking for it by itself
        if self.auto_join:
            is_safe = is_safe and all(each.is_voter(node.key) for each in voters)
        # nor while a change of the voters is not committed: they may have to do without a node more
        logged = [batch for each in self.nodes.values() for batch in each.log.batches]
        is_safe = is_safe and not any(
            batch.voters is not None and batch.base_offset >= self.ledger.committed_end_offset
            for batch in logged
        )
        if self.kraft_version and not self._lost_keys and is_safe:
            self._lost_keys.append(node.key)
            self.ledger.lost_logs[node.key] = node.log
            node.wipe(bytes([100 + node.node_id]) * 16)
            node.start()

    def _resign(self) -> None:
        for leader in self._leaders():
            epoch = leader.epoch
            leader.step(partial(leader.core.resign, epoch))

    def _start_all(self) -> None:
        """Also those that were stopping when everything healed."""
        for node in self.nodes.values():
            if node.process is None:
                node.start()

    def _settle(self) -> None:
        """Progress: a last record is committed and applied by all nodes."""
        simulation, limit_ms = self.simulation, int(SETTLE_UNITS * self.unit_ms)
        count = len(self.ledger.acknowledged)

        def is_acknowledged() -> bool:
            self._start_all()
            if len(self.ledger.acknowledged) > count:
                return True
            for leader in self._leaders():
                if not leader.proposals:
                    leader.propose(1)
            return False

        if not simulation.run_until(is_acknowledged, limit_ms):
            assert self._last_voter_lost_its_record(), "no record is committed any more"
            return
        end_offset = self.ledger.acknowledged[-1].end_offset

        def is_applied() -> bool:
            self._start_all()
            return all(
                node.process is not None and node.applied_offset >= end_offset
                for node in self.nodes.values()
            )

        if not simulation.run_until(is_applied, limit_ms):
            behind = [node for node in self.nodes.values() if node.applied_offset < end_offset]
            raise AssertionError(
                f"{[node.node_id for node in behind]} do not apply offset {end_offset - 1}"
            )
        self.ledger.acknowledged_is_committed()

    def _last_voter_lost_its_record(self) -> bool:
        """The leader of two voters removed the other one, to which the record of it came before the
        leader's power went, and the unflushed record with it. Now the one with the longer log is no
        voter by it and stands for no election, and the other one cannot be elected without its
        vote. So it is in Kafka, whose leader serves what it has not flushed (Raft, 4.2.2, has
        removed servers stand).
        """
        for removed in self.nodes.values():
            for last in self.nodes.values():
                if (
                    list(removed.voters.keys) == [last.key]
                    and {*last.voters.keys} == {last.key, removed.key}
                    and removed.log.end_offset > last.log.end_offset
                ):
                    return True
        return False

    def counts(self) -> dict[str, int]:
        """What happened in this run, by kind."""
        nodes = self.nodes.values()
        return {
            "epochs": len(self.ledger.leaders),
            "acknowledged": len(self.ledger.acknowledged),
            "restarts": sum(node.start_count - 1 for node in nodes),
            "truncations": sum(node.counts["Truncate"] for node in nodes),
            "snapshots fetched": sum(node.counts["InstallSnapshot"] for node in nodes),
            "voters changed": self.changed_voters_count,
            "proposals lost": sum(node.lost_proposals for node in nodes),
        }


def run_seed(seed: int, *, uses_driver: bool | None = None) -> QuorumWorld:
    """One seed. Raises SimulationFailure with its line."""
    world = QuorumWorld(seed, uses_driver=uses_driver)
    world.run()
    return world
