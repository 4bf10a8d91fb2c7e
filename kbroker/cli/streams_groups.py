"""Streams groups (KIP-1071) in `kbroker groups describe`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.model import TopicPartition
    from kbroker.protocol.messages.streams_groups import StreamsGroupDescribeResponse

Owner = tuple[str, str]
"""Member id and host."""


async def describe_streams_group(
    client: Client, name: str
) -> tuple[str, dict[TopicPartition, Owner]] | None:
    """State, and the owner of the task that reads each partition; None for any other group."""
    from kbroker.client.cluster import check
    from kbroker.protocol.errors import ErrorCode
    from kbroker.protocol.messages.streams_groups import (
        StreamsGroupDescribeRequest,
        StreamsGroupDescribeResponse,
    )

    request = StreamsGroupDescribeRequest(group_ids=[name])
    response = await client.to_coordinator(name, request, StreamsGroupDescribeResponse)
    (group,) = response.groups
    if group.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    check(group.error_code, group.error_message or f"group {name}")
    return group.group_state, await _owners(client, group)


async def _owners(
    client: Client, group: StreamsGroupDescribeResponse.DescribedGroup
) -> dict[TopicPartition, Owner]:
    from kbroker.model import TopicPartition

    inputs = {
        one.subtopology_id: [
            *one.source_topics,
            *(topic.name for topic in one.repartition_source_topics),
        ]
        for one in (group.topology.subtopologies if group.topology else None) or ()
    }
    owners: dict[TopicPartition, Owner] = {}
    for member in group.members:
        for tasks in member.assignment.active_tasks:
            for topic in inputs.get(tasks.subtopology_id, ()):
                partitions = (await client.topic(topic)).partitions
                for partition in tasks.partitions:
                    if partition in partitions:
                        place = TopicPartition(topic, partition)
                        owners[place] = (member.member_id, member.client_host)
    return owners
