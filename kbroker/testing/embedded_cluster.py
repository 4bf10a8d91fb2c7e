"""A cluster in the test's own process: one `EmbeddedBroker` per node, each on a thread of its own.

The neighbour is `embedded.py`, a broker that is its whole cluster and starts faster.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from kbroker.client.cluster import Client, check
from kbroker.model import InvariantError, StartupError, TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.quorum.formatting.format import FormatOptions, format_directories
from kbroker.server.dispatch import Interceptor
from kbroker.settings.broker import BrokerConfig
from kbroker.testing.embedded import DEFAULTS, EmbeddedBroker
from kbroker.testing.ports import free_ports

T = TypeVar("T")

CLUSTER_ID: Final = "embedded-cluster"
MAX_CONTROLLERS: Final = 3
MAX_REPLICAS: Final = 3
TIMEOUT_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 0.02
"""The pause between two Metadata requests while waiting for a state of the cluster."""

NOT_AWAITED: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Retriable errors that are raised at once: `create_topic` returns when every broker knows it."""

TIMEOUTS: Final[Mapping[str, str]] = {
    "broker.heartbeat.interval.ms": "200",
    "broker.session.timeout.ms": "2000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.election.backoff.max.ms": "300",
    "controller.quorum.fetch.timeout.ms": "1000",
}
"""Shorter than Kafka's, so that a test need not wait 9 s until a killed broker is fenced, nor as
long until it may register again."""


class EmbeddedCluster:
    """Several brokers for tests, numbered from 1; the first three, or the only one, are controllers
    too. Two brokers have one controller. Use it as a context manager, or call `start` and `stop`.

        with EmbeddedCluster(brokers=3) as cluster:
            cluster.create_topic("events", partitions=3)
            leader = cluster.leader("events")
            cluster.nodes[leader].kill()
            assert cluster.leader("events") != leader
            cluster.nodes[leader].start()
            cluster.wait_in_sync()

    overrides: Kafka's property names, for every node; node_overrides: those of single nodes, by
    node id, which win. data: a folder to use and keep, with a log directory per node; without it a
    temporary one is made, and removed by `stop`. A cluster is started and stopped once; its nodes
    are killed, stopped and started again as often as a test needs. Methods may be called from any
    thread but those of the nodes.
    """

    def __init__(
        self,
        brokers: int = 3,
        overrides: Mapping[str, str] | None = None,
        *,
        node_overrides: Mapping[int, Mapping[str, str]] | None = None,
        data: str | Path | None = None,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"a cluster has at least one broker, not {brokers}")
        self.node_ids = tuple(range(1, brokers + 1))
        self.nodes: dict[int, EmbeddedBroker] = {}
        """By node id, from `start` on."""
        self._overrides = dict(overrides or {})
        self._node_overrides = {key: dict(each) for key, each in (node_overrides or {}).items()}
        if unknown := self._node_overrides.keys() - set(self.node_ids):
            raise ValueError(f"node_overrides of nodes that do not exist: {sorted(unknown)}")
        self._data = None if data is None else Path(data)
        self._folder: Path | None = None
        self._ports: dict[int, int] = {}

    @property
    def bootstrap_servers(self) -> str:
        """host:port of every broker, separated by commas; the same for the cluster's whole life."""
        if not self._ports:
            raise InvariantError("the embedded cluster has not been started")
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    # life

    def start(self) -> Self:
        """Format and start all nodes. Returns once every broker knows all the others. Raises
        StartupError.
        """
        if self._folder is not None:
            raise InvariantError("the embedded cluster has been started already")
        self._folder = self._data or Path(tempfile.mkdtemp(prefix="kbroker-cluster-"))
        try:
            self._make_nodes(self._folder)
            self._on_all(lambda node: node.start())
            self._wait(self._all_are_known, "all brokers are registered")
        except BaseException:
            self._kill()
            raise
        return self

    def start_all(self) -> None:
        """Start the nodes that do not run, and wait until all replicas are in sync. Raises
        StartupError, TimeoutError.
        """
        if len(self._running()) < len(self.nodes):
            self._on_all(lambda node: None if node.running else node.start())
            self._wait(self._all_are_known, "all brokers are registered")
        self.wait_in_sync()

    def stop(self) -> None:
        """Stop all nodes. A folder of the caller's gets a clean shutdown; with a temporary one,
        which is removed, the nodes are killed, which is faster.
        """
        if self._data is None:
            self._kill()
        else:
            self._on_all(lambda node: node.stop())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # use

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> str:
        """Create a topic, wait until every running broker knows the leaders of its partitions, and
        return its name. replication_factor: 3, or the number of brokers if that is smaller, by
        default. Raises KafkaError with what CreateTopics says.
        """
        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor or min(MAX_REPLICAS, len(self.node_ids)),
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                for key, value in (configs or {}).items()
            ],
        )

        async def create(client: Client) -> None:
            request = CreateTopicsRequest(topics=[topic])
            response = await client.to_controller(request, CreateTopicsResponse)
            for answered in response.topics:
                check(answered.error_code, answered.error_message)

        async def create_once_possible(client: Client) -> None:
            await client.retry(lambda: create(client))

        self._run(self._ask(create_once_possible))
        self._wait(lambda: self._is_led_everywhere(name), f"topic {name} has leaders")
        return name

    def leader(self, topic: str, partition: int = 0) -> int:
        """The node id of a partition's leader. After a kill it waits for another leader, which is a
        running node. Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION), and TimeoutError without a
        leader.
        """
        found: list[int] = []

        async def ask(client: Client) -> int:
            return await client.leader(TopicPartition(topic, partition))

        async def is_led() -> bool:
            found[:] = [await self._ask(ask)]
            return found[0] in self._running()

        self._wait(is_led, f"{topic}-{partition} has a leader")
        return found[0]

    def wait_in_sync(self, timeout_s: float = TIMEOUT_SECONDS) -> None:
        """Wait until all replicas of all partitions are in their ISR. Raises TimeoutError."""

        async def are_in_sync() -> bool:
            return all(
                len(partition.isr_nodes) == len(partition.replica_nodes)
                for metadata in await self._metadata_of_all()
                for topic in metadata.topics
                for partition in topic.partitions
            )

        self._wait(are_in_sync, "all replicas are in sync", timeout_s)

    def intercept(self, api_key: int, function: Interceptor) -> Callable[[], None]:
        """`EmbeddedBroker.intercept` on every node, also for requests of other nodes (Fetch of a
        follower). Returns a function that ends it.
        """
        ends = [node.intercept(api_key, function) for node in self.nodes.values()]

        def end() -> None:
            for each in ends:
                each()

        return end

    # nodes

    def _make_nodes(self, folder: Path) -> None:
        count = len(self.node_ids)
        controllers = self.node_ids[: MAX_CONTROLLERS if count >= MAX_CONTROLLERS else 1]
        ports = free_ports(count + len(controllers))
        self._ports = dict(zip(self.node_ids, ports, strict=False))
        controller_ports = dict(zip(controllers, ports[count:], strict=True))
        voters = ",".join(f"{each}@127.0.0.1:{controller_ports[each]}" for each in controllers)
        for node_id in self.node_ids:
            listeners = [f"PLAINTEXT://127.0.0.1:{self._ports[node_id]}"]
            if node_id in controller_ports:
                listeners.append(f"CONTROLLER://127.0.0.1:{controller_ports[node_id]}")
            settings = {
                **_defaults(count),
                **self._overrides,
                **self._node_overrides.get(node_id, {}),
                "node.id": str(node_id),
                "process.roles": "broker,controller" if node_id in controller_ports else "broker",
                "listeners": ",".join(listeners),
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": voters,
            }
            data = folder / f"node-{node_id}"
            config = BrokerConfig.from_properties({**settings, "log.dirs": str(data)})
            options = FormatOptions(cluster_id=CLUSTER_ID, ignore_formatted=True)
            format_directories(config, options, random=Random())
            self.nodes[node_id] = EmbeddedBroker(settings, data=data)

    def _running(self) -> list[int]:
        return [node_id for node_id, node in self.nodes.items() if node.running]

    def _on_all(self, function: Callable[[EmbeddedBroker], object]) -> None:
        """Call function with every node, all at once: controllers start only with a majority of
        them. Raises what the first one raised, once all have returned.
        """
        with ThreadPoolExecutor(len(self.node_ids)) as pool:
            calls = [pool.submit(function, node) for node in self.nodes.values()]
        for call in calls:
            call.result()

    def _kill(self) -> None:
        try:
            self._on_all(lambda node: node.kill())
        finally:
            if self._data is None and self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    # what the cluster says

    async def _ask(self, function: Callable[[Client], Awaitable[T]]) -> T:
        """Call function with a client of the running brokers. Raises what it raises."""
        running = self._running()
        if not running:
            raise InvariantError("no node of the embedded cluster is running")
        bootstrap = ",".join(f"127.0.0.1:{self._ports[each]}" for each in running)
        async with Client(bootstrap, timeout_s=TIMEOUT_SECONDS) as client:
            return await function(client)

    async def _metadata_of_all(self) -> list[MetadataResponse]:
        """Of all topics, from each running broker."""
        answers = []
        for node_id in self._running():
            async with Client(f"127.0.0.1:{self._ports[node_id]}", timeout_s=5.0) as client:
                answers.append(await client.metadata(None))
        return answers

    async def _all_are_known(self) -> bool:
        answers = await self._metadata_of_all()
        return all(len(metadata.brokers) == len(self.node_ids) for metadata in answers)

    async def _is_led_everywhere(self, name: str) -> bool:
        for metadata in await self._metadata_of_all():
            topics = [each for each in metadata.topics if each.name == name]
            if not topics or any(each.leader_id < 0 for each in topics[0].partitions):
                return False
        return True

    def _wait(
        self,
        is_done: Callable[[], Coroutine[Any, Any, bool]],  # Any: as asyncio declares it
        what: str,
        timeout_s: float = TIMEOUT_SECONDS,
    ) -> None:
        """Wait until is_done returns True. Raises TimeoutError, and KafkaError for an error that
        does not pass.
        """

        async def wait() -> None:
            until_s = time.monotonic() + timeout_s
            while True:
                try:
                    if await is_done():
                        return
                except StartupError:
                    pass  # a broker that does not listen yet, or no longer
                except KafkaError as error:
                    if not error.code.retriable or error.code in NOT_AWAITED:
                        raise
                if time.monotonic() > until_s:
                    raise TimeoutError(f"not within {timeout_s:g} s: {what}")
                await asyncio.sleep(PAUSE_SECONDS)

        self._run(wait())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """On a thread of its own, since the caller's may have a loop that runs."""
        with ThreadPoolExecutor(1, thread_name_prefix="kbroker-cluster") as pool:
            return pool.submit(asyncio.run, coroutine).result()


def _defaults(brokers: int) -> dict[str, str]:
    """What differs from Kafka's defaults, for the sake of quick tests and of few brokers."""
    replicas = str(min(MAX_REPLICAS, brokers))
    min_isr = "2" if brokers >= MAX_REPLICAS else "1"
    return {
        **DEFAULTS,
        **TIMEOUTS,
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": min_isr,
        "transaction.state.log.num.partitions": DEFAULTS["offsets.topic.num.partitions"],
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": min_isr,
        "share.coordinator.state.topic.num.partitions": DEFAULTS["offsets.topic.num.partitions"],
    }
