"""The ConsumerGroupDescribe response of a consumer group (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kbroker.coordinator.group.consumer.context import (
    ConsumerSettings,
)
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.consumer.plan import (
    assignor_name,
)
from kbroker.coordinator.group.membership.assignment import Assignment
from kbroker.coordinator.topics import ClusterTopic
from kbroker.model import Uuid
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupDescribeResponse,
)

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1
"""The member types of ConsumerGroupDescribe: the protocol that the member uses."""

DescribedConsumerGroup = tuple[
    ConsumerGroupDescribeResponse.DescribedGroup, Iterator[ConsumerGroupDescribeResponse.Member]
]
"""A group without members, and an iterator that creates its members one by one."""

_Described = ConsumerGroupDescribeResponse.DescribedGroup
_Places = ConsumerGroupDescribeResponse.TopicPartitions


def describe_consumer_group(
    group: ConsumerGroup, topics: Mapping[Uuid, ClusterTopic], settings: ConsumerSettings
) -> DescribedConsumerGroup:
    """topics: those of the cluster, by id."""
    described = _Described(
        group_id=group.group_id,
        group_state=group.state(),
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=assignor_name(group.members, settings),
    )
    members = (
        ConsumerGroupDescribeResponse.Member(
            member_id=member_id,
            instance_id=metadata.instance_id,
            rack_id=metadata.rack_id,
            member_epoch=group.current(member_id).member_epoch,
            client_id=metadata.client_id,
            client_host=metadata.client_host,
            subscribed_topic_names=metadata.subscribed_topic_names,
            subscribed_topic_regex=metadata.subscribed_topic_regex,
            assignment=_described(group.current(member_id).held(), topics),
            target_assignment=_described(group.targets.get(member_id, {}), topics),
            member_type=CLASSIC_MEMBER if group.is_classic(member_id) else CONSUMER_MEMBER,
        )
        for member_id, metadata in list(group.members.items())
    )
    return described, members


def _described(
    assignment: Assignment, topics: Mapping[Uuid, ClusterTopic]
) -> ConsumerGroupDescribeResponse.Assignment:
    return ConsumerGroupDescribeResponse.Assignment(
        topic_partitions=[
            _Places(topic_id=topic_id, topic_name=topic.name, partitions=sorted(partitions))
            for topic_id, partitions in assignment.items()
            if (topic := topics.get(topic_id)) is not None
        ]
    )
