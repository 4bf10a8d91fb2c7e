"""`kbroker groups` and share groups (KIP-932): what `kafka-share-groups` does.

A share group commits no offsets: it has a start offset per partition, before which every record is
acknowledged or archived. The commands show, reset and delete that start offset as the committed
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kbroker.cli.groups.views import described_share_group

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.model import TopicPartition


class SharePartitionRow(NamedTuple):
    """start: None before the first member has read; lag: None if it is not known."""

    start: int | None
    lag: int | None


async def is_share_group(client: Client, name: str) -> bool:
    """Whether a share group with this id exists."""
    return await described_share_group(client, name) is not None


async def share_partitions(
    client: Client, name: str, *, leaderless: bool = False
) -> dict[TopicPartition, SharePartitionRow]:
    """Every partition that has a share-partition state. leaderless: those without a leader too, of
    which nothing is known; otherwise they raise KafkaError(LEADER_NOT_AVAILABLE).
    """
    from kbroker.client.cluster import check
    from kbroker.model import TopicPartition
    from kbroker.protocol.errors import ErrorCode
    from kbroker.protocol.messages.coordinators.share_groups import (
        DescribeShareGroupOffsetsRequest,
        DescribeShareGroupOffsetsResponse,
    )

    asked = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup(
        group_id=name, topics=None
    )
    request = DescribeShareGroupOffsetsRequest(groups=[asked])
    response = await client.to_coordinator(name, request, DescribeShareGroupOffsetsResponse)
    (group,) = response.groups
    check(group.error_code, group.error_message or f"group {name}")
    found: dict[TopicPartition, SharePartitionRow] = {}
    for topic in group.topics:
        for partition in topic.partitions:
            place = TopicPartition(topic.topic_name, partition.partition_index)
            if not (leaderless and partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE):
                check(partition.error_code, f"{place.topic}-{place.partition}")
            start, lag = partition.start_offset, partition.lag
            found[place] = SharePartitionRow(
                start if start >= 0 else None, lag if lag >= 0 else None
            )
    return found


async def alter_share_offsets(
    client: Client, name: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Set the start offsets of a group without members, which need not exist yet."""
    from kbroker.client.cluster import check, group_by_topic
    from kbroker.model import TopicPartition
    from kbroker.protocol.messages.coordinators.share_groups import (
        AlterShareGroupOffsetsRequest,
        AlterShareGroupOffsetsResponse,
    )

    kind = AlterShareGroupOffsetsRequest
    request = kind(
        group_id=name,
        topics=[
            kind.AlterShareGroupOffsetsRequestTopic(
                topic_name=topic,
                partitions=[
                    kind.AlterShareGroupOffsetsRequestPartition(
                        partition_index=index, start_offset=offsets[TopicPartition(topic, index)]
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in group_by_topic(offsets).items()
        ],
    )
    response = await client.to_coordinator(name, request, AlterShareGroupOffsetsResponse)
    check(response.error_code, response.error_message or f"group {name}")
    for answer in response.responses:
        for partition in answer.partitions:
            check(partition.error_code, f"{answer.topic_name}-{partition.partition_index}")


async def delete_share_offsets(client: Client, name: str, topics: Sequence[str]) -> None:
    """Delete the states of topics of a group without members."""
    from kbroker.client.cluster import check
    from kbroker.protocol.messages.coordinators.share_groups import (
        DeleteShareGroupOffsetsRequest,
        DeleteShareGroupOffsetsResponse,
    )

    kind = DeleteShareGroupOffsetsRequest
    request = kind(
        group_id=name,
        topics=[kind.DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics],
    )
    response = await client.to_coordinator(name, request, DeleteShareGroupOffsetsResponse)
    check(response.error_code, response.error_message or f"group {name}")
    for answer in response.responses:
        check(answer.error_code, answer.topic_name)
