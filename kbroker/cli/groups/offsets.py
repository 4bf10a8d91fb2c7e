"""The committed offsets of a group; of a share group its start offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cli.groups.share import is_share_group, share_partitions

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.model import TopicPartition


async def committed_offsets(client: Client, name: str) -> dict[TopicPartition, int]:
    """All committed offsets of a group."""
    from kbroker.client.cluster import check
    from kbroker.model import TopicPartition
    from kbroker.protocol.messages.coordinators.offsets import (
        OffsetFetchRequest,
        OffsetFetchResponse,
    )

    request = OffsetFetchRequest(
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None)]
    )
    response = await client.to_coordinator(name, request, OffsetFetchResponse, max_version=9)
    found: dict[TopicPartition, int] = {}
    for group in response.groups:
        check(group.error_code, f"group {name}")
        for topic in group.topics:
            for answer in topic.partitions:
                if answer.committed_offset >= 0:
                    place = TopicPartition(topic.name, answer.partition_index)
                    found[place] = answer.committed_offset
    return found


async def group_offsets(client: Client, name: str) -> dict[TopicPartition, int]:
    """All committed offsets of a group; of a share group its start offsets."""
    if not await is_share_group(client, name):
        return await committed_offsets(client, name)
    found = await share_partitions(client, name)
    return {place: one.start for place, one in found.items() if one.start is not None}
