"""The StreamsGroupDescribe response of a streams group (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kbroker.coordinator.group.streams.group import StreamsGroup
from kbroker.coordinator.group.streams.records import StreamsMember, Topology
from kbroker.coordinator.group.streams.tasks import Tasks, TaskSet
from kbroker.protocol.messages.coordinators.streams_groups import StreamsGroupDescribeResponse

_Assignment = StreamsGroupDescribeResponse.Assignment
_Member = StreamsGroupDescribeResponse.Member
_TaskIds = StreamsGroupDescribeResponse.TaskIds
_TopicInfo = StreamsGroupDescribeResponse.TopicInfo


DescribedStreamsGroup = tuple[StreamsGroupDescribeResponse.DescribedGroup, Iterator[_Member]]
"""A group without members, and an iterator that creates its members one by one."""


def described_streams(group: StreamsGroup) -> DescribedStreamsGroup:
    """One group, and its members, which are created one by one."""
    described = StreamsGroupDescribeResponse.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state(),
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        topology=_topology(group),
    )
    members = (
        _member(group, member_id, metadata) for member_id, metadata in list(group.members.items())
    )
    return described, members


def _topology(group: StreamsGroup) -> StreamsGroupDescribeResponse.Topology | None:
    """The topology, with the partition counts of internal topics once they are decided."""
    topology, configured = group.topology, group.configured
    if topology is None:
        return None
    counts: dict[str, int] = {}
    if configured is not None and configured.is_ready:
        for one in configured.subtopologies.values():
            counts.update(one.partition_counts)
    return StreamsGroupDescribeResponse.Topology(
        epoch=topology.epoch,
        subtopologies=[
            StreamsGroupDescribeResponse.Subtopology(
                subtopology_id=one.subtopology_id,
                source_topics=sorted(one.source_topics),
                repartition_sink_topics=sorted(one.repartition_sink_topics),
                state_changelog_topics=_topics(one.state_changelog_topics, counts),
                repartition_source_topics=_topics(one.repartition_source_topics, counts),
            )
            for one in sorted(topology.subtopologies, key=lambda one: one.subtopology_id)
        ],
    )


def _topics(infos: Iterable[Topology.TopicInfo], counts: Mapping[str, int]) -> list[_TopicInfo]:
    return [
        _TopicInfo(
            name=info.name,
            partitions=counts.get(info.name, info.partitions),
            replication_factor=info.replication_factor,
            topic_configs=[
                StreamsGroupDescribeResponse.KeyValue(key=config.key, value=config.value)
                for config in info.topic_configs
            ],
        )
        for info in sorted(infos, key=lambda info: info.name)
    ]


def _member(group: StreamsGroup, member_id: str, metadata: StreamsMember) -> _Member:
    current = group.current(member_id)
    endpoint = metadata.user_endpoint
    held = current.assigned
    active = {name: frozenset(dated) for name, dated in held.active.items()}
    return _Member(
        member_id=member_id,
        member_epoch=current.member_epoch,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        topology_epoch=metadata.topology_epoch,
        process_id=metadata.process_id,
        user_endpoint=None
        if endpoint is None
        else StreamsGroupDescribeResponse.Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[
            StreamsGroupDescribeResponse.KeyValue(key=tag.key, value=tag.value)
            for tag in metadata.client_tags
        ],
        assignment=_assignment(TaskSet(active, held.standby, held.warmup)),
        target_assignment=_assignment(group.targets.get(member_id, TaskSet())),
    )


def _assignment(tasks: TaskSet) -> _Assignment:
    return _Assignment(
        active_tasks=_task_ids(tasks.active),
        standby_tasks=_task_ids(tasks.standby),
        warmup_tasks=_task_ids(tasks.warmup),
    )


def _task_ids(tasks: Tasks) -> list[_TaskIds]:
    return [
        _TaskIds(subtopology_id=name, partitions=sorted(partitions))
        for name, partitions in sorted(tasks.items())
    ]
