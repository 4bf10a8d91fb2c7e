"""A group of any type with its members: classic, consumer (KIP-848), share (KIP-932) and streams
(KIP-1071).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.model import TopicPartition
    from kbroker.protocol.messages.coordinators.consumer_groups import ConsumerGroupDescribeResponse
    from kbroker.protocol.messages.coordinators.groups import DescribeGroupsResponse
    from kbroker.protocol.messages.coordinators.share_groups import ShareGroupDescribeResponse
    from kbroker.protocol.messages.coordinators.streams_groups import StreamsGroupDescribeResponse


class MemberView(NamedTuple):
    """One member. partitions: those it reads; of a streams member those of its active tasks."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: Sequence[TopicPartition]


class GroupView(NamedTuple):
    """A group as its coordinator describes it."""

    state: str
    is_share: bool
    members: Sequence[MemberView]


async def group_view(client: Client, name: str) -> GroupView:
    """Raises KafkaError, GROUP_ID_NOT_FOUND for a group of no type."""
    from kbroker.client.cluster import check
    from kbroker.protocol.errors import ErrorCode
    from kbroker.protocol.messages.coordinators.groups import (
        DescribeGroupsRequest,
        DescribeGroupsResponse,
    )

    share = await described_share_group(client, name)
    if share is not None:
        return GroupView(share.group_state, True, [_share_member(each) for each in share.members])
    response = await client.to_coordinator(
        name, DescribeGroupsRequest(groups=[name]), DescribeGroupsResponse
    )
    (group,) = response.groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        found = await _consumer_view(client, name) or await _streams_view(client, name)
        if found is not None:
            return found
    check(group.error_code, group.error_message or f"group {name}")
    is_consumer = group.protocol_type == "consumer"
    members = [_classic_member(each, is_consumer=is_consumer) for each in group.members]
    return GroupView(group.group_state, False, members)


async def described_share_group(
    client: Client, name: str
) -> ShareGroupDescribeResponse.DescribedGroup | None:
    """The share group of this name; None if there is none."""
    from kbroker.client.cluster import check
    from kbroker.protocol.errors import ErrorCode, KafkaError
    from kbroker.protocol.messages.coordinators.share_groups import (
        ShareGroupDescribeRequest,
        ShareGroupDescribeResponse,
    )

    request = ShareGroupDescribeRequest(group_ids=[name])
    try:
        response = await client.to_coordinator(name, request, ShareGroupDescribeResponse)
    except KafkaError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return None  # a broker from before share groups
        raise
    (group,) = response.groups
    if group.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    check(group.error_code, group.error_message or f"group {name}")
    return group


def _assigned(
    topics: Sequence[
        ShareGroupDescribeResponse.TopicPartitions | ConsumerGroupDescribeResponse.TopicPartitions
    ],
) -> list[TopicPartition]:
    from kbroker.model import TopicPartition

    return [
        TopicPartition(topic.topic_name, index) for topic in topics for index in topic.partitions
    ]


def _share_member(member: ShareGroupDescribeResponse.Member) -> MemberView:
    return MemberView(
        member.member_id,
        None,
        member.client_id,
        member.client_host,
        _assigned(member.assignment.topic_partitions),
    )


def _classic_member(
    member: DescribeGroupsResponse.DescribedGroupMember, *, is_consumer: bool
) -> MemberView:
    """is_consumer: whether the assignment is that of a consumer, and can be read."""
    from kbroker.client.group import decode_versioned
    from kbroker.model import TopicPartition
    from kbroker.protocol.messages.coordinators.consumer_protocol import ConsumerProtocolAssignment

    partitions: list[TopicPartition] = []
    if is_consumer and member.member_assignment:
        assignment = decode_versioned(ConsumerProtocolAssignment, member.member_assignment)
        partitions = [
            TopicPartition(topic.topic, partition)
            for topic in assignment.assigned_partitions
            for partition in topic.partitions
        ]
    return MemberView(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, partitions
    )


async def _consumer_view(client: Client, name: str) -> GroupView | None:
    from kbroker.client.cluster import check
    from kbroker.protocol.errors import ErrorCode
    from kbroker.protocol.messages.coordinators.consumer_groups import (
        ConsumerGroupDescribeRequest,
        ConsumerGroupDescribeResponse,
    )

    request = ConsumerGroupDescribeRequest(group_ids=[name])
    response = await client.to_coordinator(name, request, ConsumerGroupDescribeResponse)
    (group,) = response.groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    check(group.error_code, group.error_message or f"group {name}")
    return GroupView(group.group_state, False, [_consumer_member(each) for each in group.members])


def _consumer_member(member: ConsumerGroupDescribeResponse.Member) -> MemberView:
    return MemberView(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        _assigned(member.assignment.topic_partitions),
    )


async def _streams_view(client: Client, name: str) -> GroupView | None:
    from kbroker.client.cluster import check
    from kbroker.protocol.errors import ErrorCode
    from kbroker.protocol.messages.coordinators.streams_groups import (
        StreamsGroupDescribeRequest,
        StreamsGroupDescribeResponse,
    )

    request = StreamsGroupDescribeRequest(group_ids=[name])
    response = await client.to_coordinator(name, request, StreamsGroupDescribeResponse)
    (group,) = response.groups
    if group.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    check(group.error_code, group.error_message or f"group {name}")
    members = [
        MemberView(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            await _task_partitions(client, group, member),
        )
        for member in group.members
    ]
    return GroupView(group.group_state, False, members)


async def _task_partitions(
    client: Client,
    group: StreamsGroupDescribeResponse.DescribedGroup,
    member: StreamsGroupDescribeResponse.Member,
) -> list[TopicPartition]:
    """The partitions that a member's active tasks read."""
    from kbroker.model import TopicPartition

    inputs = {
        one.subtopology_id: [
            *one.source_topics,
            *(topic.name for topic in one.repartition_source_topics),
        ]
        for one in (group.topology.subtopologies if group.topology else None) or ()
    }
    found: list[TopicPartition] = []
    for tasks in member.assignment.active_tasks:
        for topic in inputs.get(tasks.subtopology_id, ()):
            known = (await client.topic(topic)).partitions
            found += [TopicPartition(topic, each) for each in tasks.partitions if each in known]
    return found
