"""A cluster of simulated brokers under drawn faults, with producers that want acks=all: one seed.

A run has two parts. First faults strike (kills, losses of power, pauses, clocks that jump, cuts, a
bad network), leaders change, records are produced and deleted. Then everything heals, and within a
bounded time every replica must be in its ISR with the same bytes. `replication_checks` hold after
every step.

A broker that has died stays in doubt until it is registered again, as its log may lack its tail. At
most min.insync.replicas - 1 brokers are in doubt at a time, and one beside them is in the ISR or in
the ELR (KIP-966): Kafka promises nothing beyond that. With min.insync.replicas 1 no broker dies.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

from kbroker.log.results import Refused
from kbroker.model import TopicPartition
from kbroker.protocol.errors import KafkaError
from kbroker.replication.appends.append import PartitionAppendResult
from kbroker.simulation.garbage import rare_collections
from tests.sim.faults import Faults, FaultyNode
from tests.sim.network import Conditions
from tests.sim.node_disks import NodeDisks
from tests.sim.replication_broker import SimReplicaBroker
from tests.sim.replication_checks import CommittedLedger
from tests.sim.replication_controller import CONTROLLER_ID, SimController
from tests.sim.simulation import Simulation, SimulationFailure, failure_line

NAME = "replication"
TOPIC = "events"
UNIT_MS = 700
FAULTY_MS = (3_000, 12_000)
SETTLE_MS = 60_000
DELETE_SHARE = 0.01
SETTINGS = {
    "broker.session.timeout.ms": "1000",
    "replica.lag.time.max.ms": "300",
    "replica.fetch.wait.max.ms": "300",
    "replica.high.watermark.checkpoint.interval.ms": "300",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "log.flush.start.offset.checkpoint.interval.ms": "1000",
    "num.recovery.threads.per.data.dir": "1",
    "log.cleaner.enable": "false",
    "log.index.size.max.bytes": "2000",
    "metadata.max.idle.interval.ms": "0",
}


def conditions(random: Random) -> Conditions:
    """How bad the network is: brokers speak over connections, which lose little."""
    return Conditions(
        max_delay_ms=random.choice((1.0, 5.0, 40.0)),
        late=random.choice((0.0, 0.01, 0.1)),
        late_ms=random.choice((100.0, 1_000.0, 3_000.0)),
        loss=random.choice((0.0, 0.0, 0.01)),
        duplication=random.choice((0.0, 0.0, 0.02)),
    )


@contextmanager
def _silent() -> Iterator[None]:
    """Without log records: the trace tells a run, and formatting what faults log takes time."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


class BrokerFaults(Faults):
    """Faults of brokers, whose network includes the controller; their disks only lose power."""

    def _another(self, node: FaultyNode) -> int:
        if self._random.random() < 0.3:
            return CONTROLLER_ID
        return super()._another(node)

    def _one_way_cut(self, node: FaultyNode, lasts_ms: float) -> None:
        """Also for messages of the controller: the node's own heartbeats still arrive."""
        source, target = node.node_id, self._another(node)
        if self._random.random() < 0.5:
            source, target = target, source
        self._cut(source, target, lasts_ms)

    def _isolate(self, node: FaultyNode, lasts_ms: float) -> None:
        super()._isolate(node, lasts_ms)
        if self._random.random() < 0.5:
            self._cut(node.node_id, CONTROLLER_ID, lasts_ms)
            self._cut(CONTROLLER_ID, node.node_id, lasts_ms)

    def _disk_fault(self, node: FaultyNode, lasts_ms: float) -> None:
        self._power_loss(node, lasts_ms)

    def _crash(self, node: FaultyNode, lasts_ms: float) -> None:
        self._power_loss(node, lasts_ms)

    def _slow_disk(self, node: FaultyNode, lasts_ms: float) -> None:
        self._pause(node, lasts_ms)


class ReplicationWorld:
    """One seed."""

    def __init__(self, seed: int, *, is_traced: bool = False) -> None:
        self.simulation = Simulation(seed, is_traced=is_traced)
        self.random = random = self.simulation.random("world")
        self.ledger = CommittedLedger()
        self.disks = NodeDisks()
        self.controller = SimController(self.simulation, SETTINGS)
        self.min_isr = random.choice((1, 2, 2, 2))
        broker_ids = (1, 2, 3) if random.random() < 0.8 else (1, 2)
        self.brokers = {
            broker_id: SimReplicaBroker(
                broker_id,
                self.simulation,
                self.disks,
                SETTINGS,
                checked=self.ledger.check,
                may_kill=self._may_kill,
            )
            for broker_id in broker_ids
        }
        self.keys = [TopicPartition(TOPIC, index) for index in range(random.choice((1, 2)))]
        self.mean_gap_ms = random.choice((5.0, 20.0, 60.0))
        self.counts: Counter[str] = Counter()
        self._dead_epochs: dict[int, int] = {}
        """Brokers that died, with the epoch that the controller had registered for them."""
        self._value = 10_000_000
        self._last_records: set[TopicPartition] = set()
        self._is_quiet = False

    # -- a run ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises SimulationFailure."""
        try:
            with self.disks.installed(), rare_collections(), _silent():
                self._run()
        except Exception as error:
            line = failure_line(NAME, self.simulation.seed, self.simulation, error)
            raise SimulationFailure(line) from error

    def _run(self) -> None:
        simulation = self.simulation
        simulation.network.heal_all()  # until the topic is there
        self.controller.start()
        for broker in self.brokers.values():
            broker.start()
        self._until(lambda: all(b.is_serving for b in self.brokers.values()), "start")
        self._create_topic()
        self._until(self._is_in_sync, "have the topic")
        simulation.network.conditions = conditions(self.random)
        faults = BrokerFaults(
            list(self.brokers.values()),
            simulation.network,
            simulation.timers,
            simulation.random("faults"),
            simulation.note,
            unit_ms=UNIT_MS,
            favourites=self._leaders,
        )
        faults.start()
        self._produce()
        simulation.run(self.random.randint(*FAULTY_MS))
        self._is_quiet = True
        faults.heal()
        self._until(self._has_last_records, "take last records")
        self._until(self._is_in_sync, "be in sync")
        for key in self.keys:
            self._check_equal(key)
        self._count()

    def _create_topic(self) -> None:
        ids = sorted(self.brokers)
        assignments = [ids[index:] + ids[:index] for index in range(len(self.keys))]
        configs = {"min.insync.replicas": str(self.min_isr)}
        self.controller.create_topic(TOPIC, assignments, configs)

    def _until(self, is_done: Callable[[], bool], what: str) -> None:
        step_ms, left_ms = 100, SETTLE_MS
        while not is_done():
            assert left_ms > 0, f"the brokers do not {what}: {self._state()}"
            left_ms -= step_ms
            self.simulation.run(step_ms)

    def _state(self) -> str:
        return "; ".join(
            f"{broker.node_id}: {partition.topic_partition} {partition.role.name} of "
            f"{partition.leader} epoch {partition.leader_epoch}, isr {sorted(partition.isr)}, "
            f"{partition.high_watermark} of {partition.log.log_end_offset}"
            for broker in self.brokers.values()
            for partition in broker.partitions()
        )

    # -- faults -----------------------------------------------------------------------------------

    def _leaders(self) -> list[FaultyNode]:
        leaders = {self.controller.partition(key).leader for key in self.keys}
        return [self.brokers[each] for each in sorted(leaders & self.brokers.keys())]

    def _may_kill(self, broker: SimReplicaBroker) -> bool:
        """Whether what Kafka promises covers the death of this broker now; see the module."""
        registered = self.controller.image.brokers
        in_doubt = {broker.node_id} | {
            dead for dead, epoch in self._dead_epochs.items() if registered[dead].epoch == epoch
        }
        if len(in_doubt) >= self.min_isr:
            return False
        for key in self.keys:
            partition = self.controller.partition(key)
            if not {*partition.isr, *partition.elr} - in_doubt:
                return False
        self._dead_epochs[broker.node_id] = registered[broker.node_id].epoch
        return True

    # -- clients ----------------------------------------------------------------------------------

    def _produce(self) -> None:
        if self._is_quiet:
            return
        key = self.random.choice(self.keys)
        self._send(key)
        delay_ms = self.random.expovariate(1 / self.mean_gap_ms)
        self.simulation.timers.call_later(delay_ms, self._produce)

    def _send(self, key: TopicPartition) -> None:
        """Produce a record to the leader, or to a broker that may have been the leader."""
        broker_id = self.controller.partition(key).leader
        if broker_id not in self.brokers or self.random.random() < 0.1:
            broker_id = self.random.choice(sorted(self.brokers))
        broker = self.brokers[broker_id]
        self._value += 1
        if broker.process is not None:
            delete = self.random.random() < DELETE_SHARE and not self._is_quiet
            work = self._delete if delete else self._append
            broker.process.run(partial(work, broker, key, self._value))

    def _append(self, broker: SimReplicaBroker, key: TopicPartition, value: int) -> None:
        if not broker.is_serving:
            return

        def answered(result: PartitionAppendResult) -> None:
            if isinstance(result, Refused):
                self.counts[f"refused {result.error.name}"] += 1
                return
            self.ledger.check(broker)
            self.ledger.acknowledge(key, result.base_offset, b"%d" % value)
            if self._is_quiet:
                self._last_records.add(key)

        broker.append(key, value).on_done(answered)

    def _delete(self, broker: SimReplicaBroker, key: TopicPartition, value: int) -> None:
        partition = broker.replicas.partition(key) if broker.is_serving else None
        if partition is None:
            return
        offset = self.random.randint(0, partition.high_watermark)
        try:
            broker.replicas.delete_records(key, offset)
            self.counts["records deleted"] += 1
        except KafkaError:
            self.counts["deletion refused"] += 1

    # -- the end ----------------------------------------------------------------------------------

    def _has_last_records(self) -> bool:
        for key in self.keys:
            if key not in self._last_records:
                self._send(key)
        return len(self._last_records) == len(self.keys)

    def _is_in_sync(self) -> bool:
        for key in self.keys:
            image = self.controller.image.partition(*key)
            if image is None or len(image.isr) < len(self.brokers):
                return False
            for broker in self.brokers.values():
                partition = broker.replicas.partition(key) if broker.is_serving else None
                if partition is None or partition.high_watermark < partition.log.log_end_offset:
                    return False
            ends = {each.logs.logs[key].log_end_offset for each in self.brokers.values()}
            if len(ends) > 1:
                return False
        return True

    def _check_equal(self, key: TopicPartition) -> None:
        brokers = list(self.brokers.values())
        stored = {}
        for broker in brokers:
            self.disks.present = broker.disk  # whose files are read
            log = broker.logs.logs[key]
            stored[broker.node_id] = (
                log.log_start_offset,
                log.log_end_offset,
                dict(broker.stored(key, log.log_start_offset, log.log_end_offset)),
            )
        self.disks.present = None
        self.ledger.check_equal(key, stored)

    def _count(self) -> None:
        counts = self.counts
        counts["acknowledged"] = self.ledger.acknowledged
        counts["elections"] = sum(self.controller.partition(k).leader_epoch for k in self.keys)
        for broker in self.brokers.values():
            counts["restarts"] += broker.lives - 1
            counts["power losses"] += broker.power_losses
            counts["truncations"] += broker.truncations
            counts["begun anew"] += broker.starts_over


def run_seed(seed: int) -> ReplicationWorld:
    """Raises SimulationFailure."""
    world = ReplicationWorld(seed)
    world.run()
    return world
