"""Sequences of faults that random faults rarely produce: successive leaders while a follower is
behind, a leader that does not get the response to its proposal, a deposed leader with records that
no other node has, a node that is killed when it receives a request for markers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from random import Random
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import Client, check
from kbroker.model import StartupError, TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from kbroker.quorum.raft.requests.messages import METADATA_PARTITION
from kbroker.simulation.cluster import (
    FIRST_BROKER_PORT,
    FIRST_CONTROLLER_PORT,
    SimulatedCluster,
    SimulatedNode,
)
from kbroker.simulation.faults import CLIENTS
from kbroker.simulation.network import Flow, SimulatedNetwork
from kbroker.simulation.workload import EVENTS, LEDGER

REPLICAS: Final = 3
FIRST_PAUSE_S: Final = 1.0
"""The clients are running after this time."""
LOOK_EVERY_S: Final = 0.005
STOP_TIMEOUT_S: Final = 5.0
EXPANSION_TIMEOUT_S: Final = 5.0
DEPOSED_S: Final = 4.5
"""A session timeout, plus the time that another leader needs to get ahead of the deposed one."""
FOLLOWS_S: Final = 1.0
SLOW_DISK_S: Final = 0.3
CUTS_S: Final = 1.0
MARKERS_S: Final = 0.1
"""How long after the end of a transaction its markers are written."""
MARKERS_TIMEOUT_S: Final = 6.0
OFFSETS_TOPIC: Final = "__consumer_offsets"


class Aim(Enum):
    """The sequence of faults."""

    SUCCESSION = "one leader after the other, while followers are behind"
    UNHEARD = "the answer to a proposal is not heard"
    DEPOSED = "a leader goes on while another is elected"
    MARKERS = "a node dies as it is asked for markers"


class Replicas(NamedTuple):
    """A partition with all replicas in sync. followers: in the order of its replicas."""

    partition: TopicPartition
    leader: int
    followers: tuple[int, ...]


class AimedFaults:
    """note: called with a line for each event. counts: of the sequences, by name."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        network: SimulatedNetwork,
        random: Random,
        note: Callable[[str], None],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._nodes = cluster.nodes
        self._bootstrap = cluster.bootstrap_servers
        config = next(iter(self._nodes.values())).config
        self._lag_max_s = config.get_int("replica.lag.time.max.ms") / 1000
        self._session_s = config.get_int("broker.session.timeout.ms") / 1000
        self._network = network
        self._random = random
        self._note = note

    async def run(self) -> None:
        """Run one sequence; at its end all of its faults are healed."""
        aims: dict[Aim, Callable[[], Coroutine[Any, Any, None]]] = {
            Aim.SUCCESSION: self._succession,
            Aim.UNHEARD: self._unheard,
            Aim.DEPOSED: self._deposed,
            Aim.MARKERS: self._markers,
        }
        if self._lag_max_s >= self._session_s:
            del aims[Aim.UNHEARD]  # its leader is fenced before the follower counts as lagging
        aim = self._random.choice(list(aims))
        await asyncio.sleep(FIRST_PAUSE_S)
        self._note(f"aim: {aim.value}")
        self.counts[aim.value] += 1
        try:
            await aims[aim]()
        except (KafkaError, StartupError, TimeoutError) as error:
            self._note(f"aim given up: {error!r}")

    # -- the sequences ----------------------------------------------------------------------------

    async def _succession(self) -> None:
        """The leader is shut down cleanly, then its successor. One follower lacks the last records
        of the first leader, and both others lack those of the second.
        """
        found = await self._drawn_replicas(has_all=lambda each: True)
        first, (second, last) = found.leader, found.followers
        behind = self._random.choice((second, last))
        self._note(f"{found.partition}: {first}, {second}, {last}; {behind} is behind")
        with (
            self._held(_replication(behind, first)),
            self._held(_replication(last, second), _replication(first, second)),
        ):
            await self._pause(0.3, 0.8)
            with self._stopped(first) as stopping:
                await stopping
                await self._pause(0.2, 0.5)
            await self._pause(0.3, 0.6)
            with self._stopped(second) as stopping:
                await stopping
                await self._pause(0.5, 1.0)

    async def _unheard(self) -> None:
        """A follower rejoins the ISR, but its leader does not get the response, and the follower
        stops fetching. Then the leader is killed.
        """
        controller = await self._controller()
        found = await self._drawn_replicas(has_all=lambda each: each.leader != controller)
        leader, follower = found.leader, found.followers[0]
        self._note(f"{found.partition}: {leader} adds {follower}, the controller is {controller}")
        proposals = Flow(ApiKey.ALTER_PARTITION, leader, _controller_port(controller))
        metadata = Flow(ApiKey.FETCH, leader, _controller_port(controller))
        fetches = _replication(follower, leader)
        with self._held(fetches):
            # The ISR is checked at intervals of half of replica.lag.time.max.ms.
            await asyncio.sleep(1.5 * self._lag_max_s + 0.5)
        begun_s = asyncio.get_running_loop().time()
        with self._held(metadata, proposals):
            async with asyncio.timeout(EXPANSION_TIMEOUT_S):
                await self._asked_since(proposals, begun_s)
            with self._held(fetches):
                await asyncio.sleep(self._lag_max_s + 0.5)
                with self._killed(leader):
                    await asyncio.sleep(DEPOSED_S)

    async def _deposed(self) -> None:
        """The leader of a partition is cut off from the other nodes but not from clients. When it
        has learnt that it is a follower, its first fetch and the truncation of its log are delayed,
        while readers wait at it for new records.
        """
        found = await self._drawn_replicas(has_all=lambda each: each.partition.topic == EVENTS)
        self._note(f"{found.partition}: {found.leader} is alone with the clients")
        others = [each for each in sorted(self._nodes) if each != found.leader]
        cuts = [(found.leader, each) for each in others] + [(each, found.leader) for each in others]
        with self._held(*(_replication(found.leader, each) for each in others)):
            for cut in cuts:
                self._network.cut(*cut)
            try:
                await asyncio.sleep(DEPOSED_S)
            finally:
                for cut in cuts:
                    self._network.heal(*cut)
            await asyncio.sleep(FOLLOWS_S)
        node = self._nodes[found.leader]
        node.slow_down(SLOW_DISK_S)
        try:
            await asyncio.sleep(CUTS_S)
        finally:
            node.slow_down()

    async def _markers(self) -> None:
        """Kill a leader that has written a transaction marker for a coordinator on another node,
        before any follower has the marker.
        """
        leaders = await self._leaders_of(LEDGER)
        ends = {
            node: Flow(ApiKey.END_TXN, CLIENTS, FIRST_BROKER_PORT + node) for node in self._nodes
        }
        async with asyncio.timeout(MARKERS_TIMEOUT_S):
            while True:
                now_s = asyncio.get_running_loop().time()
                for coordinator, flow in ends.items():
                    if self._network.last_asked_s(flow) > now_s - LOOK_EVERY_S:
                        targets = sorted(leaders - {coordinator})
                        if targets and await self._marked(
                            coordinator, self._random.choice(targets)
                        ):
                            return
                await asyncio.sleep(LOOK_EVERY_S)

    async def _marked(self, coordinator: int, target: int) -> bool:
        """Kill the target when it receives a request for a marker. Returns whether it
        received one.
        """
        began_s = asyncio.get_running_loop().time()
        markers = Flow(ApiKey.WRITE_TXN_MARKERS, coordinator, FIRST_BROKER_PORT + target)
        others = [each for each in sorted(self._nodes) if each != target]
        with self._held(*(_replication(each, target) for each in others)):
            await asyncio.sleep(MARKERS_S)
            if self._network.last_asked_s(markers) < began_s:
                return False
            self._note(f"{coordinator} has asked {target} for markers")
            with self._killed(target):
                await asyncio.sleep(DEPOSED_S)
        return True

    # -- steps of the sequences -------------------------------------------------------------------

    async def _asked_since(self, flow: Flow, begun_s: float) -> None:
        while True:
            if self._network.last_asked_s(flow) >= begun_s:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _pause(self, shortest_s: float, longest_s: float) -> None:
        await asyncio.sleep(self._random.uniform(shortest_s, longest_s))

    @contextmanager
    def _held(self, *flows: Flow) -> Iterator[None]:
        for flow in flows:
            self._network.hold_answers(flow)
        try:
            yield
        finally:
            for flow in flows:
                self._network.release_answers(flow)

    @contextmanager
    def _killed(self, node_id: int) -> Iterator[None]:
        node = self._nodes[node_id]
        self._note(f"{node} is killed")
        node.kill()
        try:
            yield
        finally:
            node.start()

    @contextmanager
    def _stopped(self, node_id: int) -> Iterator[Coroutine[Any, Any, None]]:
        """Yields a coroutine that waits until the node has stopped."""
        node = self._nodes[node_id]
        self._note(f"{node} stops")
        try:
            yield self._until_stopped(node)
        finally:
            node.kill()
            node.start()
            self._note(f"{node} begins again")

    async def _until_stopped(self, node: SimulatedNode) -> None:
        await asyncio.wait_for(node.stop(), STOP_TIMEOUT_S)

    # -- the state of the cluster -----------------------------------------------------------------

    async def _drawn_replicas(self, has_all: Callable[[Replicas], bool]) -> Replicas:
        """A random partition; one of the offsets topic as often as all others together. Raises
        KafkaError.
        """
        async with Client(self._bootstrap, timeout_s=STOP_TIMEOUT_S) as client:
            metadata = await client.metadata(None)
        found = [
            Replicas(
                TopicPartition(topic.name or "", partition.partition_index),
                partition.leader_id,
                _without(partition.leader_id, partition.replica_nodes),
            )
            for topic in metadata.topics
            for partition in topic.partitions
            if len(partition.isr_nodes) == REPLICAS and partition.leader_id >= 0
        ]
        usable = [each for each in found if has_all(each)]
        if not usable:
            raise TimeoutError("no partition that serves")
        offsets = [each for each in usable if each.partition.topic == OFFSETS_TOPIC]
        return self._random.choice(offsets if offsets and self._random.random() < 0.5 else usable)

    async def _leaders_of(self, topic: str) -> frozenset[int]:
        async with Client(self._bootstrap, timeout_s=STOP_TIMEOUT_S) as client:
            found = await client.topic(topic)
        return frozenset(each.leader_id for each in found.partitions.values())

    async def _controller(self) -> int:
        """The node id of the active controller."""
        asked = DescribeQuorumRequest.TopicData(
            topic_name=METADATA_PARTITION.topic,
            partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)],
        )
        async with Client(self._bootstrap, timeout_s=STOP_TIMEOUT_S) as client:
            response = await client.any(
                DescribeQuorumRequest(topics=[asked]), DescribeQuorumResponse
            )
        check(response.error_code, response.error_message)
        return response.topics[0].partitions[0].leader_id


def _without(leader: int, replicas: Sequence[int]) -> tuple[int, ...]:
    return tuple(each for each in replicas if each != leader)


def _replication(follower: int, leader: int) -> Flow:
    return Flow(ApiKey.FETCH, follower, FIRST_BROKER_PORT + leader)


def _controller_port(node: int) -> int:
    return FIRST_CONTROLLER_PORT + node
