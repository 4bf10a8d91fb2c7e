"""Reads the state of a cluster's partitions and groups over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kbroker.client.cluster import LATEST_TIMESTAMP, READ_COMMITTED, Client, check
from kbroker.model import StartupError, TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.coordinators.offsets import OffsetFetchRequest, OffsetFetchResponse
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse

PAUSE_S: Final = 0.2
UNAVAILABLE: Final = (KafkaError, StartupError)
"""Errors while the cluster cannot answer."""


@dataclass(frozen=True)
class PartitionState:
    """isr: node ids."""

    isr: frozenset[int]
    high_watermark: int
    last_stable_offset: int


async def create_topics(bootstrap: str, topics: Mapping[str, int], replicas: int) -> None:
    """Create topics once there are at least as many brokers as replicas. topics: their partition
    counts. Raises TimeoutError after a minute.
    """
    made = [
        CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=replicas
        )
        for name, partitions in topics.items()
    ]

    async def create() -> None:
        async with Client(bootstrap, timeout_s=5.0) as client:
            metadata = await client.metadata([])
            if len(metadata.brokers) < replicas:
                raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "too few brokers")
            response = await client.to_controller(
                CreateTopicsRequest(topics=made), CreateTopicsResponse
            )
            for topic in response.topics:
                if topic.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    check(topic.error_code, topic.error_message)

    async with asyncio.timeout(60):
        while True:
            try:
                return await create()
            except UNAVAILABLE:
                await asyncio.sleep(PAUSE_S)


async def partition_states(bootstrap: str) -> dict[TopicPartition, PartitionState]:
    """The state of all partitions, including those of internal topics. A replica is in sync if all
    brokers say so: one that was cut off does not know yet what has changed. Raises UNAVAILABLE.
    """
    async with Client(bootstrap, timeout_s=5.0) as client:
        isr = _isr(await client.metadata(None))
        latest = dict.fromkeys(isr, LATEST_TIMESTAMP)
        ends = await client.list_offsets(latest)
        stable = await client.list_offsets(latest, isolation_level=READ_COMMITTED)
        # Behind the offsets: one may have passed a replica that has just left.
        for node_id in sorted(client.brokers):
            told = _isr(
                await client.to_node(node_id, MetadataRequest(topics=None), MetadataResponse)
            )
            isr = {each: replicas & told.get(each, replicas) for each, replicas in isr.items()}
        return {
            each: PartitionState(isr[each], ends[each].offset, stable[each].offset) for each in isr
        }


def _isr(metadata: MetadataResponse) -> dict[TopicPartition, frozenset[int]]:
    return {
        TopicPartition(topic.name, partition.partition_index): frozenset(partition.isr_nodes)
        for topic in metadata.topics
        if topic.name is not None
        for partition in topic.partitions
    }


def out_of_sync(states: Mapping[TopicPartition, PartitionState], replicas: int) -> list[str]:
    """The partitions with fewer replicas in sync than that."""
    return [
        f"{partition} has ISR {sorted(state.isr)}"
        for partition, state in states.items()
        if len(state.isr) < replicas
    ]


def unhealed(states: Mapping[TopicPartition, PartitionState], replicas: int) -> list[str]:
    """The partitions with fewer replicas in sync than that, or with an open transaction."""
    return out_of_sync(states, replicas) + [
        f"{partition} has an open transaction at {state.last_stable_offset}"
        for partition, state in states.items()
        if len(state.isr) >= replicas and state.last_stable_offset < state.high_watermark
    ]


async def committed_offsets(
    bootstrap: str, group: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """A group's committed offsets, None where there is none. Raises UNAVAILABLE."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id=group,
        topics=[
            OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)
            for topic, indexes in by_topic.items()
        ],
    )
    request = OffsetFetchRequest(groups=[asked], require_stable=True)
    async with Client(bootstrap, timeout_s=5.0) as client:

        async def attempt() -> OffsetFetchResponse:
            response = await client.to_coordinator(
                group, request, OffsetFetchResponse, max_version=9
            )
            for answered in response.groups:
                if answered.error_code:
                    client.forget_coordinator(group)
                check(answered.error_code, f"group {group}")
                for topic in answered.topics:
                    for partition in topic.partitions:
                        check(partition.error_code, f"{topic.name} of group {group}")
            return response

        response = await client.retry(attempt, timeout_s=30.0)
    return {
        TopicPartition(topic.name, partition.partition_index): (
            partition.committed_offset if partition.committed_offset >= 0 else None
        )
        for answered in response.groups
        for topic in answered.topics
        for partition in topic.partitions
    }
