"""One simulated cluster: its nodes and clients run with faults for some simulated minutes, then all
faults are healed, and the history of the clients is checked (`kbroker/testing/history`).

A run is determined by the seed, the settings and the version.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from kbroker.model import TopicPartition
from kbroker.replication.followers import follower_log
from kbroker.simulation.aimed_faults import REPLICAS, AimedFaults
from kbroker.simulation.cluster import SimulatedCluster, SimulatedNode
from kbroker.simulation.consumers import Member, Reader, Reads
from kbroker.simulation.event_loop import SimulatedLoop
from kbroker.simulation.faults import CLIENTS, Faults
from kbroker.simulation.garbage import rare_collections
from kbroker.simulation.network import SimulatedNetwork
from kbroker.simulation.process import SimulatedProcess, context_of
from kbroker.simulation.producers import TransactionalProducer, fetch_committed, produce
from kbroker.simulation.watchers import OffsetWatcher, ReplicaReader
from kbroker.simulation.workload import EVENTS, LEDGER, PARTITIONS, Workload
from kbroker.testing.cluster_state import (
    UNAVAILABLE,
    PartitionState,
    create_topics,
    out_of_sync,
    partition_states,
    unhealed,
)
from kbroker.testing.history.operations import Guarantee, ReplicaLog
from kbroker.testing.history.stored import Fate, stored_records
from kbroker.testing.history.verdict import anomalies

HEAL_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 45.0
"""Shorter than `workload.DELIVERY_TIMEOUT_S`, so that no writer gives up during that time."""
ASK_EVERY_S: Final = 1.0
ANSWER_TIMEOUT_S: Final = 35.0
"""After all faults are healed, each request is answered within this time: a change of a transaction
waits for its replicas for 30 s, and nothing waits longer.
"""
ORDINARY_ANSWER_S: Final = 10.0
"""Requests that are unanswered after this time are waited for at the end: a rebalance takes 8 s at
most.
"""
WATCHED_GROUPS: Final = ("watched-1", "watched-2")
"""Groups of which each of the two partitions of the offsets topic has one."""
AIMED_EVERY: Final = 8
FIRST_AIMED: Final = 3
"""One of AIMED_EVERY seeds begins with aimed faults and additional watching clients; FIRST_AIMED is
the first such seed.
"""
MEMORY_FOLDER: Final = Path("/dev/shm")
"""The nodes' data is stored there if it exists: simulated nodes do not wait for a real disk."""


@dataclass(frozen=True)
class Options:
    """minutes: simulated time with faults; longer with aimed ones. transactions: whether there are
    transactional producers.
    """

    seed: int = 1
    nodes: int = 3
    minutes: float = 1.0
    transactions: bool = True

    @property
    def is_aimed(self) -> bool:
        """See `aimed_faults`, which need three replicas."""
        return self.seed % AIMED_EVERY == FIRST_AIMED and self.nodes >= REPLICAS

    def line(self) -> str:
        """The command that repeats the run."""
        words = ["kbroker sim", f"--seed {self.seed}", f"--nodes {self.nodes}"]
        words.append(f"--minutes {self.minutes:g}")
        if not self.transactions:
            words.append("--no-transactions")
        return " ".join(words)


@dataclass
class RunOutcome:
    """anomalies: violations, a line each. trace: the events, in order."""

    options: Options
    anomalies: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """In simulated time."""
    steps: int = 0

    @property
    def failure_line(self) -> str:
        """The first anomaly, and the command that repeats it."""
        more = len(self.anomalies) - 1
        others = f" (and {more} more)" if more else ""
        return f"seed {self.options.seed}: {self.anomalies[0]}{others}; {self.options.line()}"


class _Failed(Exception):
    """Ends the run early."""


class ClusterRun:
    """See the module. note: called with each line of the trace."""

    def __init__(self, options: Options, note: Callable[[str], None] = lambda line: None) -> None:
        self.outcome = RunOutcome(options)
        self._options = options
        self._note_line = note
        self._network = SimulatedNetwork(self._random("network"))
        self._loop = SimulatedLoop(self._network)
        self._loop.set_exception_handler(self._loop_exception)
        self._violation: asyncio.Future[str] = self._loop.create_future()

    def _random(self, purpose: str) -> Random:
        """A separate stream of random numbers for each purpose."""
        return Random(f"{self._options.seed} {purpose}")

    def run(self) -> RunOutcome:
        """Run the simulation."""
        with _folder() as folder, _watched_cuts(self._violated):
            cluster = SimulatedCluster(
                folder,
                self._loop,
                self._random("cluster"),
                nodes=self._options.nodes,
                failed=self._node_failed,
            )
            try:
                task = context_of(SimulatedProcess(CLIENTS)).run(
                    self._loop.create_task, self._live(cluster)
                )
                self._loop.run_until_complete(task)
            except _Failed as failure:
                self.outcome.anomalies.append(str(failure))
            finally:
                self.outcome.seconds = self._loop.time()
                self.outcome.steps = self._loop.step_count
                self._end(cluster)
        return self.outcome

    def _end(self, cluster: SimulatedCluster) -> None:
        """Close the files of the nodes."""

        async def kill_all() -> None:
            for node in cluster.nodes.values():
                node.kill()
            await self._loop.cancel_all()

        self._loop.set_exception_handler(lambda loop, context: None)
        self._loop.run_until_complete(kill_all())
        self._loop.close()

    # -- the trace --------------------------------------------------------------------------------

    def _note(self, text: str) -> None:
        line = f"{self._loop.time():9.3f} {text}"
        self.outcome.trace.append(line)
        self._note_line(line)

    def _violated(self, text: str) -> None:
        """Record a violation, which ends the run."""
        self._note(f"violation: {text}")
        if not self._violation.done():
            self._violation.set_result(text)

    def _node_failed(self, node: SimulatedNode, error: BaseException) -> None:
        self._violated(f"{node} has failed: {type(error).__name__}: {error}")

    def _loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Any: asyncio's. An exception that was never retrieved is not a violation: the task that
        waited for it was killed.
        """
        error = context.get("exception")
        if error is not None and "never retrieved" not in context["message"]:
            self._violated(f"{context['message']}: {type(error).__name__}: {error}")

    # -- phases -----------------------------------------------------------------------------------

    async def _live(self, cluster: SimulatedCluster) -> None:
        life: asyncio.Future[None] = self._loop.create_task(self._life(cluster))
        ends: list[asyncio.Future[Any]] = [life, self._violation]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._violation.done():
            life.cancel()
            await asyncio.wait([life])
            raise _Failed(self._violation.result())
        try:
            await life
        except BaseExceptionGroup as group:
            raise _Failed(_text_of(group)) from group

    async def _life(self, cluster: SimulatedCluster) -> None:
        workload = Workload(
            cluster.bootstrap_servers, self._random("clients"), self._note, self._violated
        )
        for node in cluster.nodes.values():
            node.start()
        topics = {EVENTS: PARTITIONS, LEDGER: PARTITIONS}
        await create_topics(cluster.bootstrap_servers, topics, min(self._options.nodes, 3))
        readers = _consumers(workload)
        async with asyncio.TaskGroup() as clients:
            reading = [clients.create_task(reader.run()) for reader in readers]
            writing = [clients.create_task(writer) for writer in self._writers(workload)]
            faults = Faults(cluster, self._network, self._random("faults"), self._note)
            aimed = AimedFaults(cluster, self._network, self._random("aim"), self._note)
            watching = [clients.create_task(each) for each in self._watchers(cluster, workload)]

            ends_s = self._loop.time() + self._options.minutes * 60
            if self._options.is_aimed:
                await aimed.run()
            striking = clients.create_task(faults.run())
            await asyncio.sleep(max(ends_s - self._loop.time(), 0.0))
            striking.cancel()
            await faults.heal()
            self._note("everything heals")
            down = await self._take_one_down(cluster)
            workload.is_stopping = True
            answering = clients.create_task(self._watch_answers(self._loop.time()))
            await self._written(writing)
            if down is not None:
                self._note(f"{down} begins again")
                down.start()
            states = await self._healed(cluster)
            await self._everything_read(cluster, states, [reader.reads for reader in readers])
            await self._everything_answered()
            for task in (*reading, *watching, answering):
                task.cancel()
        await self._judge(cluster, workload)
        self.outcome.counts = workload.counts + faults.counts + aimed.counts

    def _writers(self, workload: Workload) -> Iterator[Coroutine[Any, Any, None]]:
        yield produce(workload, "idempotent-1", Guarantee.IDEMPOTENT)
        yield produce(workload, "idempotent-2", Guarantee.IDEMPOTENT)
        yield produce(workload, "plain", Guarantee.AT_LEAST_ONCE)
        if self._options.transactions:
            yield TransactionalProducer(workload, "transactional-1", is_new_protocol=True).run()
            yield TransactionalProducer(workload, "transactional-2", is_new_protocol=False).run()

    def _watchers(
        self, cluster: SimulatedCluster, workload: Workload
    ) -> Iterator[Coroutine[Any, Any, None]]:
        """Clients that observe the state that aimed faults may damage."""
        if self._options.is_aimed:
            for group in WATCHED_GROUPS:
                yield OffsetWatcher(workload, group).run()
            for node_id in cluster.nodes:
                yield ReplicaReader(workload, node_id).run()

    async def _take_one_down(self, cluster: SimulatedCluster) -> SimulatedNode | None:
        """Kill a node, in every other seed, while the writers end: the other nodes must be
        sufficient. First wait until all replicas are in sync, so that no partition needs the node.
        """
        random = self._random("down")
        if random.random() < 0.5:
            return None
        replicas = min(self._options.nodes, 3)

        async def problems() -> Sequence[str]:
            try:
                states = await partition_states(cluster.bootstrap_servers)
            except UNAVAILABLE as error:
                return [str(error)]
            return out_of_sync(states, replicas)

        await self._until(problems, "in sync")
        node = cluster.nodes[random.choice(sorted(cluster.nodes))]
        self._note(f"{node} is killed while the writers end")
        node.kill()
        return node

    async def _written(self, writing: Sequence[asyncio.Task[None]]) -> None:
        """Wait until the writers have finished their operations. Raises _Failed."""
        _, late = await asyncio.wait(writing, timeout=STOP_TIMEOUT_S)
        if late:
            raise _Failed(f"{len(late)} writers do not end within {STOP_TIMEOUT_S:.0f} s")

    async def _until(
        self, problems: Callable[[], Coroutine[Any, Any, Sequence[str]]], what: str
    ) -> None:
        """Wait until there is no problem. Raises _Failed."""
        deadline_s = self._loop.time() + HEAL_TIMEOUT_S
        while found := await problems():
            if self._loop.time() > deadline_s:
                shown = "; ".join(found[:5])
                raise _Failed(f"not {what} within {HEAL_TIMEOUT_S:.0f} s: {shown}")
            await asyncio.sleep(ASK_EVERY_S)

    async def _watch_answers(self, healed_s: float) -> None:
        """Watch for unanswered requests until cancelled. healed_s: when the last fault ended."""
        while True:
            since_s = self._loop.time() - ANSWER_TIMEOUT_S
            if healed_s <= since_s:
                for request in self._network.unanswered():
                    if request.sent_s <= since_s:
                        self._violated(f"not answered for {ANSWER_TIMEOUT_S:.0f} s: {request}")
            await asyncio.sleep(ASK_EVERY_S)

    async def _everything_answered(self) -> None:
        """Wait until no request waits longer than usual; `_watch_answers` fails the run for those
        that wait too long.
        """

        async def problems() -> Sequence[str]:
            before_s = self._loop.time() - ORDINARY_ANSWER_S
            return [str(each) for each in self._network.unanswered() if each.sent_s <= before_s]

        await self._until(problems, "everything answered")

    async def _healed(self, cluster: SimulatedCluster) -> dict[TopicPartition, PartitionState]:
        """Wait until all replicas are in sync and no transaction is open. Returns the
        partitions.
        """
        states: dict[TopicPartition, PartitionState] = {}
        replicas = min(self._options.nodes, 3)

        async def problems() -> Sequence[str]:
            try:
                states.update(await partition_states(cluster.bootstrap_servers))
            except UNAVAILABLE as error:
                return [str(error)]
            return unhealed(states, replicas)

        await self._until(problems, "healed")
        return states

    async def _everything_read(
        self,
        cluster: SimulatedCluster,
        states: dict[TopicPartition, PartitionState],
        readers: Sequence[Reads],
    ) -> None:
        """Wait until each reader and each group has read all records that are visible to it."""
        ends: dict[TopicPartition, int] = {}
        for partition, state in states.items():
            if partition.topic in (EVENTS, LEDGER):
                node = cluster.nodes[min(state.isr)]
                log = node.log_bytes(str(partition))
                records = stored_records(log, state.high_watermark)
                visible = [record.offset for record in records if record.fate is Fate.COMMITTED]
                ends[partition] = visible[-1] if visible else -1

        async def problems() -> Sequence[str]:
            latest: dict[str, dict[TopicPartition, int]] = {}
            for reader in readers:
                found = latest.setdefault(reader.group or reader.name, {})
                for partition, offset in reader.latest.items():
                    found[partition] = max(found.get(partition, -1), offset)
            groups = {reader.group for reader in readers}
            return [
                f"{name} has read {partition} up to {found.get(partition, -1)} of {end}"
                for name, found in latest.items()
                for partition, end in ends.items()
                if found.get(partition, -1) < end
                and (partition.topic == EVENTS or name not in groups)
            ]

        await self._until(problems, "everything read")

    async def _judge(self, cluster: SimulatedCluster, workload: Workload) -> None:
        history = workload.history
        states = await self._healed(cluster)
        for partition, state in states.items():
            history.replicas[partition] = {
                str(cluster.nodes[each]): ReplicaLog(
                    cluster.nodes[each].log_bytes(str(partition)), state.high_watermark
                )
                for each in sorted(state.isr)
            }
        for group in sorted({commit.group for commit in history.commits}):
            places = {commit.partition for commit in history.commits if commit.group == group}
            await fetch_committed(workload, group, sorted(places))
        self.outcome.anomalies += anomalies(history)


def _text_of(error: BaseException) -> str:
    """The text of the first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, _Failed) else f"{type(error).__name__}: {error}"


def _consumers(workload: Workload) -> list[Member | Reader]:
    return [
        Member(workload, "member-1", "group"),
        Member(workload, "member-2", "group"),
        Reader(workload, "reader", committed_only=False),
        Reader(workload, "committed-reader", committed_only=True),
    ]


class _Cuts(logging.Handler):
    """Receives the log records of nodes that truncate committed records: if the same records are
    fetched again, nothing else shows that. violated: that of `ClusterRun`.
    """

    def __init__(self, violated: Callable[[str], None]) -> None:
        super().__init__()
        self._violated = violated

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        if record.msg is follower_log.BELOW_HIGH_WATERMARK:
            self._violated(record.getMessage())


@contextmanager
def _watched_cuts(violated: Callable[[str], None]) -> Iterator[None]:
    """Check that no node truncates committed records, as there are no unclean elections."""
    cuts = _Cuts(violated)
    follower_log.logger.addHandler(cuts)
    try:
        yield
    finally:
        follower_log.logger.removeHandler(cuts)


@contextmanager
def _folder() -> Iterator[Path]:
    """A temporary folder."""
    where = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="kbroker-sim-", dir=where))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def run_seed(options: Options, note: Callable[[str], None] = lambda line: None) -> RunOutcome:
    """Run a seed. Returns its outcome."""
    with rare_collections():
        return ClusterRun(options, note).run()
