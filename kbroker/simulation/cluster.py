"""The nodes of a simulated cluster: each is the node that `kbroker serve` runs, on a simulated
loop, network and clock, with its data in real files. A kill keeps the written data, as when a
process is killed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextvars import Context
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from kbroker.model import InvariantError, StartupError, random_uuid, uuid_to_string
from kbroker.node.node import Broker
from kbroker.quorum.formatting.format import FormatOptions, format_directories
from kbroker.settings.broker import BrokerConfig
from kbroker.simulation.event_loop import SimulatedLoop
from kbroker.simulation.network import HOST
from kbroker.simulation.process import THREAD_S, SimulatedProcess, context_of
from kbroker.simulation.resources import SimulatedResources

logger = logging.getLogger(__name__)

CONTROLLERS: Final = 3
"""The maximum number of controllers, which are the first nodes."""
FIRST_BROKER_PORT: Final = 9_000
FIRST_CONTROLLER_PORT: Final = 19_000
RESTART_S: Final = 1.0
"""The time after which a node is started again if it ended because its start failed."""
CLOCKS_AHEAD_S: Final = (-1_800.0, -60.0, -1.0, 0.0, 1.0, 60.0, 1_800.0)
"""The maximum error of wall clocks, below message.timestamp.after.max.ms and
producer.id.expiration.ms.
"""

SETTINGS: Final[Mapping[str, str]] = {
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.election.backoff.max.ms": "500",
    "controller.quorum.request.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "replica.socket.timeout.ms": "3000",
    "replica.fetch.backoff.ms": "200",
    "auto.create.topics.enable": "false",
    "log.segment.bytes": str(1 << 20),
    # more entries than such a segment has: a killed node reads its preallocated indexes to the end
    "log.index.size.max.bytes": str(1 << 16),
    "log.retention.ms": "-1",
    # A compacted replica has the same records as another, but not the same bytes.
    "log.cleaner.enable": "false",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
}
"""Timeouts below the defaults, so that more happens in a simulated minute."""
DRAWN_SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    # Shorter than broker.session.timeout.ms: the leader removes a dead follower from the ISR.
    # Longer: the controller does, which fences its broker.
    "replica.lag.time.max.ms": ("2000", "10000"),
}
"""Settings with one value per cluster, drawn from these."""


def replication_settings(nodes: int) -> dict[str, str]:
    """Three replicas if there are as many nodes, with min.insync.replicas for one missing
    replica.
    """
    replicas = min(nodes, 3)
    in_sync = max(replicas - 1, 1)
    return {
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
    }


class SimulatedNode:
    """One node, over several processes. failed: called with the node and an error after which it
    cannot continue and which no fault explains.
    """

    def __init__(
        self,
        node_id: int,
        config: BrokerConfig,
        loop: SimulatedLoop,
        random: Random,
        failed: Callable[[SimulatedNode, BaseException], None],
    ) -> None:
        self.id = node_id
        self.config = config
        self.lives = 0
        self._loop = loop
        self._random = random
        self._failed = failed
        self._process = SimulatedProcess(node_id)
        self._process.is_alive = False
        self._context = Context()
        self._broker: Broker | None = None
        self._is_wanted = False

    @property
    def is_running(self) -> bool:
        """Whether its process is alive and not paused."""
        return self._process.is_alive and not self._process.is_paused

    def start(self) -> None:
        """Start a new process."""
        self.lives += 1
        self._is_wanted = True
        self._process = process = SimulatedProcess(self.id)
        self._context = context_of(process)
        self._context.run(self._loop.create_task, self._serve())

    async def _serve(self) -> None:
        resources = SimulatedResources(
            self.config, self._loop.network, Random(self._random.random())
        )
        resources.clock_ahead_s = self._random.choice(CLOCKS_AHEAD_S)
        self._broker = broker = Broker(self.config, resources=resources)
        try:
            await broker.start()
        except StartupError as error:
            logger.warning("node %d failed to start: %s", self.id, error)
            again = partial(self._start_again, self._process)
            self._loop.call_later(RESTART_S, again, context=Context())
            return
        except InvariantError as error:
            self._failed(self, error)
            return
        self._failed(self, await broker.wait_failed())

    def _start_again(self, process: SimulatedProcess) -> None:
        """Start after a process that could not; no effect if another was started meanwhile."""
        if self._is_wanted and self._process is process:
            self._loop.end(process)
            self.start()

    def kill(self) -> None:
        """Kill the process, as with SIGKILL."""
        self._is_wanted = False
        if not self._process.is_alive:
            return
        broker, self._broker = self._broker, None
        self._loop.end(self._process)
        if broker is not None:
            self._context.run(broker.kill)  # closes its files

    def stop(self) -> asyncio.Future[None]:
        """Stop the process, as with SIGTERM. The future is done when the process has ended."""
        self._is_wanted = False
        stopped: asyncio.Future[None] = self._loop.create_future()
        broker, process = self._broker, self._process

        def ended(task: asyncio.Task[None]) -> None:
            self._loop.end(process)
            if not stopped.done():
                stopped.set_result(None)

        if broker is None or not process.is_alive:
            stopped.set_result(None)
        else:
            task = self._context.run(self._loop.create_task, broker.stop())
            task.add_done_callback(ended, context=Context())
        return stopped

    def pause(self) -> None:
        """Pause the process, as with SIGSTOP."""
        self._loop.pause(self._process)

    def resume(self) -> None:
        """Resume the process, as with SIGCONT."""
        self._loop.resume(self._process)

    def slow_down(self, thread_s: float = THREAD_S) -> None:
        """Set the time that work on the node's disk takes from now on; by default the usual
        time.
        """
        self._process.thread_s = thread_s

    def log_bytes(self, folder: str) -> bytes:
        """The segments of a partition, in order."""
        paths = sorted((Path(self.config.log_dirs[0]) / folder).glob("*.log"))
        return b"".join(path.read_bytes() for path in paths)

    def __str__(self) -> str:
        return f"node {self.id}"


class SimulatedCluster:
    """The formatted nodes. failed: see `SimulatedNode`."""

    def __init__(
        self,
        folder: Path,
        loop: SimulatedLoop,
        random: Random,
        *,
        nodes: int,
        failed: Callable[[SimulatedNode, BaseException], None],
    ) -> None:
        ids = range(1, nodes + 1)
        controllers = list(ids)[:CONTROLLERS]
        voters = ",".join(f"{each}@{HOST}:{FIRST_CONTROLLER_PORT + each}" for each in controllers)
        cluster_id = uuid_to_string(random_uuid(random))
        self.bootstrap_servers = ",".join(f"{HOST}:{FIRST_BROKER_PORT + each}" for each in ids)
        drawn = {name: random.choice(values) for name, values in DRAWN_SETTINGS.items()}
        self.nodes: dict[int, SimulatedNode] = {}
        for node_id in ids:
            config = BrokerConfig.from_properties(
                {
                    **_roles(node_id, is_controller=node_id in controllers),
                    "controller.quorum.voters": voters,
                    "log.dirs": str(folder / str(node_id)),
                    **SETTINGS,
                    **drawn,
                    **replication_settings(nodes),
                }
            )
            format_directories(config, FormatOptions(cluster_id=cluster_id), random=random)
            self.nodes[node_id] = SimulatedNode(
                node_id,
                config,
                loop,
                Random(random.random()),
                failed,
            )


def _roles(node_id: int, *, is_controller: bool) -> dict[str, str]:
    listeners = [f"PLAINTEXT://{HOST}:{FIRST_BROKER_PORT + node_id}"]
    if is_controller:
        listeners.append(f"CONTROLLER://{HOST}:{FIRST_CONTROLLER_PORT + node_id}")
    return {
        "node.id": str(node_id),
        "process.roles": "broker,controller" if is_controller else "broker",
        "listeners": ",".join(listeners),
        "controller.listener.names": "CONTROLLER",
    }
