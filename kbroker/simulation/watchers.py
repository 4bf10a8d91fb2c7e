"""Simulated clients that detect violations which only a fault at the right time causes: reads from
followers, and committed offsets over time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kbroker.client.cluster import Client, check
from kbroker.client.consumer import Consumer, ConsumerConfig
from kbroker.model import StartupError, TopicPartition
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.coordinators.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.simulation.consumers import Reads
from kbroker.simulation.workload import EVENTS, LEDGER, PARTITIONS, Workload
from kbroker.testing.history.operations import OffsetCommit, OffsetFetch

READ_TIMEOUT_S: Final = 1.0
OFFSET_TIMEOUT_S: Final = 0.25
"""Shorter than a coordinator's timeout: an unanswered commit is given up."""
PAUSE_S: Final = 0.25
COMMIT_AGAIN_S: Final = 1.0
"""The pause after a failed commit. A coordinator answers no fetch while a commit is in progress, so
a new coordinator is to be asked before anything is committed there.
"""
FETCH_AGAIN_S: Final = 0.02
PLACE: Final = TopicPartition(EVENTS, 0)
NAMED_OFFSETS_VERSION: Final = 9


class _ClientOfOneNode(Client):
    """A client that treats one node as the leader of all partitions."""

    node_id = -1

    async def leader(self, topic_partition: TopicPartition) -> int:
        """See `Client`."""
        await self.topic(topic_partition.topic)
        return self.node_id


class ReplicaReader:
    """Reads both topics from one node, as leader or follower (KIP-392). It may miss records, but
    every record it reads must equal that of the leader.
    """

    def __init__(self, workload: Workload, node_id: int) -> None:
        self._name = f"reader of node {node_id}"
        self._reads = Reads(workload, self._name, committed_only=False)
        self._bootstrap = workload.bootstrap_servers
        self._node_id = node_id

    async def run(self) -> None:
        """Run until cancelled."""
        config = ConsumerConfig(auto_offset_reset="none")
        positions = {
            TopicPartition(topic, index): 0
            for topic in (EVENTS, LEDGER)
            for index in range(PARTITIONS)
        }
        while True:
            try:
                async with _ClientOfOneNode(
                    self._bootstrap, client_id=self._name, timeout_s=READ_TIMEOUT_S
                ) as client:
                    client.node_id = self._node_id
                    consumer = Consumer(client, config)
                    consumer.positions.update(positions)
                    while True:
                        self._reads.take(await consumer.poll())
                        positions.update(consumer.positions)
            except (KafkaError, StartupError):
                # Also OFFSET_OUT_OF_RANGE: a follower that is behind the leader.
                await asyncio.sleep(PAUSE_S)


class OffsetWatcher:
    """Commits increasing offsets for its own group, and fetches the committed offset continuously,
    to detect one that goes back.
    """

    def __init__(self, workload: Workload, group: str) -> None:
        self._workload = workload
        self._group = group
        self._next_offset = 1

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._repeat(self._commit, after_error_s=COMMIT_AGAIN_S))
            both.create_task(self._repeat(self._fetch, after_error_s=FETCH_AGAIN_S))

    async def _repeat(
        self, attempt: Callable[[Client], Awaitable[None]], *, after_error_s: float
    ) -> None:
        while True:
            try:
                async with Client(
                    self._workload.bootstrap_servers,
                    client_id=self._group,
                    timeout_s=OFFSET_TIMEOUT_S,
                ) as client:
                    while True:
                        await attempt(client)
                        await asyncio.sleep(PAUSE_S)
            except (KafkaError, StartupError):
                await asyncio.sleep(after_error_s)

    async def _commit(self, client: Client) -> None:
        commit = OffsetCommit(self._group, PLACE, self._next_offset, self._workload.now_ms())
        self._next_offset += 1
        self._workload.history.commits.append(commit)
        committed = OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=PLACE.partition,
            committed_offset=commit.offset,
            committed_metadata="",
        )
        request = OffsetCommitRequest(
            group_id=self._group,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=PLACE.topic, partitions=[committed]
                )
            ],
        )
        response = await client.to_coordinator(
            self._group, request, OffsetCommitResponse, max_version=NAMED_OFFSETS_VERSION
        )
        check(response.topics[0].partitions[0].error_code)
        commit.ended_ms = self._workload.now_ms()

    async def _fetch(self, client: Client) -> None:
        began_ms = self._workload.now_ms()
        asked = OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=self._group,
            topics=[
                OffsetFetchRequest.OffsetFetchRequestTopics(
                    name=PLACE.topic, partition_indexes=[PLACE.partition]
                )
            ],
        )
        response = await client.to_coordinator(
            self._group,
            OffsetFetchRequest(groups=[asked], require_stable=True),
            OffsetFetchResponse,
            max_version=NAMED_OFFSETS_VERSION,
        )
        (group,) = response.groups
        check(group.error_code)
        found = group.topics[0].partitions[0]
        check(found.error_code)
        offset = found.committed_offset if found.committed_offset >= 0 else None
        self._workload.history.fetches.append(
            OffsetFetch(self._group, PLACE, offset, began_ms, self._workload.now_ms())
        )
