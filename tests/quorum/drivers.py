"""Quorum drivers on real directories that talk over real connections on the loopback, in one loop.

Each node has a server for the requests of the others: what a controller listener is, without a
node around it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import cast

from kbroker.client.channel.asyncio_streams import AsyncioStreams
from kbroker.client.channel.channel import Channel
from kbroker.model import ZERO_UUID, Uuid
from kbroker.node.loop.futures import as_future
from kbroker.node.loop.offload import ExecutorOffload
from kbroker.node.loop.timers import LoopTimers
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.schema import Request
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.framing import RequestHeader
from kbroker.quorum.disk.snapshots import build_snapshot, write_snapshot
from kbroker.quorum.disk.storage import QuorumStorage, metadata_log_config
from kbroker.quorum.driver import QuorumDriver
from kbroker.quorum.raft.control import QuorumConfiguration
from kbroker.quorum.raft.effects import RaftRequest
from kbroker.quorum.raft.offsets import BOOTSTRAP_ID
from kbroker.quorum.raft.raft_config import RaftConfig
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, Voter, VoterEndpoint
from kbroker.quorum.raft_transport import RaftTransport
from kbroker.settings.broker import BrokerConfig
from tests.sim.server import ALL_VERSIONS, ServerConnection, api_versions

LISTENER = "CONTROLLER"
CLUSTER_ID = "three drivers"
ELECTION_MS = 300


def directory_id(node_id: int) -> Uuid:
    return bytes([node_id]) * 16


class Accepted(asyncio.Protocol):
    """A connection to a node. It is also the stream of its `ServerConnection`."""

    def __init__(self, node: DriverNode) -> None:
        self._node = node
        self._server: ServerConnection | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server = ServerConnection(self, self._node.serve)
        self._node.accepted.add(self)

    def data_received(self, data: bytes) -> None:
        assert self._server is not None
        self._server.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._node.accepted.discard(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class DriverNode:
    """One node, over several processes. values: the records passed to its state machine, from the
    log start; led: the epochs in which it was notified that it leads.
    """

    def __init__(self, node_id: int, root: Path) -> None:
        self.node_id = node_id
        self.static_voters: tuple[Voter, ...] = ()
        self.root = root / str(node_id)
        self.accepted: set[Accepted] = set()
        self.port = 0
        self.values: list[bytes] = []
        self.snapshots: list[int] = []
        self.led: list[int] = []
        self.lost = 0
        self.is_running = False
        self.driver: QuorumDriver
        self._listening: asyncio.Server | None = None

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(lambda: Accepted(self), "127.0.0.1", self.port)
        self.port = self._listening.sockets[0].getsockname()[1]

    @property
    def endpoint(self) -> VoterEndpoint:
        return VoterEndpoint(LISTENER, "127.0.0.1", self.port)

    @property
    def voter(self) -> Voter:
        return Voter(self.node_id, directory_id(self.node_id), (self.endpoint,))

    def format(self, voters: Sequence[Voter]) -> None:
        """As `kbroker format --initial-controllers`; without voters, `--no-initial-controllers`."""
        folder = self.root / "__cluster_metadata-0"
        folder.mkdir(parents=True)
        if voters:
            path = folder / BOOTSTRAP_ID.file_name
            configuration = QuorumConfiguration(1, tuple(voters))
            content = build_snapshot(
                configuration, (), epoch=0, last_contained_timestamp_ms=0, now_ms=0
            )
            write_snapshot(path, path.with_suffix(".part"), content)

    def storage(self) -> QuorumStorage:
        return QuorumStorage(
            self.root,
            node_id=self.node_id,
            directory_id=directory_id(self.node_id),
            log_config=metadata_log_config(BrokerConfig.from_properties({"node.id": "1"})),
            retention_bytes=0,
            static_voters=self.static_voters,
        )

    async def start(self, bootstrap: Sequence[DriverNode] = (), **settings: bool) -> None:
        if self._listening is None:
            await self.listen()
        loop = asyncio.get_running_loop()
        timers, random = LoopTimers(loop), Random(self.node_id)

        def open_transport() -> RaftTransport:
            streams = AsyncioStreams(loop)
            name = f"node {self.node_id}"
            return RaftTransport(Channel(streams, timers, random, client_id=name))

        self.values.clear()
        self.driver = driver = QuorumDriver(
            self.storage(),
            RaftConfig(
                ReplicaKey(self.node_id, directory_id(self.node_id)),
                CLUSTER_ID,
                listener_name=LISTENER,
                endpoints=(self.endpoint,),
                bootstrap_servers=tuple(("127.0.0.1", each.port) for each in bootstrap),
                election_timeout_ms=ELECTION_MS,
                fetch_timeout_ms=2 * ELECTION_MS,
                election_backoff_max_ms=ELECTION_MS,
                request_timeout_ms=2 * ELECTION_MS,
                fetch_snapshot_max_bytes=100,
                **settings,
            ),
            timers=timers,
            offload=ExecutorOffload(ThreadPoolExecutor(1)),
            random=random,
            open_transport=open_transport,
        )
        driver.feed.on_commit(self._committed)
        driver.feed.on_snapshot(self._snapshot)
        driver.feed.on_leadership_gained(self.led.append)
        driver.feed.on_leadership_lost(self._lost)
        await as_future(driver.start())
        self.is_running = True

    def _committed(self, base_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        self.values += records

    def _snapshot(self, records: Iterable[bytes], end_offset: int, epoch: int) -> None:
        self.values = list(records)
        self.snapshots.append(end_offset)

    def _lost(self) -> None:
        self.lost += 1

    def serve(self, connection: ServerConnection, header: RequestHeader, request: Request) -> None:
        if header.api_key == ApiKey.API_VERSIONS:
            connection.answer(header, api_versions(ALL_VERSIONS))
            return
        self.driver.handle(
            cast(RaftRequest, request), listener_name=LISTENER, version=header.api_version
        ).on_done(lambda response: connection.answer(header, response), lambda error: None)

    async def stop(self) -> None:
        """Stop cleanly: the other nodes are notified."""
        await as_future(self.driver.stop())
        self._close()
        assert self.driver.failure is None

    def kill(self) -> None:
        """End as by kill -9: what was written stays, connections break."""
        self.driver.kill()
        self._close()
        self.driver._offload.close()
        self.driver._storage.log.release()

    def _close(self) -> None:
        self.is_running = False
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for connection in list(self.accepted):
            connection.close()


class DriverCluster:
    """Nodes 1 to n, of which the first `voters` are voters; all of them, with kraft.version 0, if
    is_static.
    """

    def __init__(
        self, root: Path, count: int = 3, voters: int = 3, *, is_static: bool = False
    ) -> None:
        self.nodes = [DriverNode(node_id, root) for node_id in range(1, count + 1)]
        self._voters = voters
        self._is_static = is_static

    async def start(self) -> None:
        for node in self.nodes:
            await node.listen()
        initial = [node.voter for node in self.nodes[: self._voters]]
        for node in self.nodes:
            if self._is_static:
                node.static_voters = tuple(
                    Voter(each.node_id, ZERO_UUID, (each.endpoint,)) for each in self.nodes
                )
            node.format(initial if node.voter in initial and not self._is_static else ())
        for node in self.nodes:
            await node.start(self.nodes)

    def kill(self) -> None:
        for node in self.running:
            assert node.driver.failure is None
            node.kill()

    @property
    def running(self) -> list[DriverNode]:
        return [node for node in self.nodes if node.is_running]

    async def until(self, is_done: Callable[[], object]) -> None:
        """Let the nodes run until is_done. Fails after ten seconds."""
        async with asyncio.timeout(10):
            while not is_done():
                for node in self.running:
                    assert node.driver.failure is None, node.driver.failure
                await asyncio.sleep(0.002)

    async def leader(self) -> DriverNode:
        """The leader, once it knows all records that were committed before."""

        def found() -> list[DriverNode]:
            return [
                node
                for node in self.running
                if node.driver.is_leader and node.led and node.led[-1] == node.driver.epoch
            ]

        await self.until(found)
        return found()[0]

    async def append(self, *values: bytes) -> None:
        """Commit records through the current leader, and wait until all running nodes have them. On
        a busy machine the leader may change meanwhile; the new one may have committed them.
        """
        while True:
            leader = await self.leader()
            if leader.values[-len(values) :] == [*values]:
                break
            with suppress(KafkaError):
                await as_future(leader.driver.append(values))
        await self.until(lambda: len({tuple(node.values) for node in self.running}) == 1)
