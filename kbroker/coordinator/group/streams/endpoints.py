"""The endpoints of a streams group's members (`application.server`) and the partitions of each, for
interactive queries between members (KIP-1071).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kbroker.coordinator.group.streams.records import StreamsMember
from kbroker.coordinator.group.streams.tasks import HeldTasks
from kbroker.coordinator.group.streams.topology import ConfiguredTopology
from kbroker.coordinator.topics import ClusterTopics
from kbroker.protocol.messages.coordinators.streams_groups import StreamsGroupHeartbeatResponse

_Endpoint = StreamsGroupHeartbeatResponse.EndpointToPartitions
_Places = StreamsGroupHeartbeatResponse.TopicPartition


def partitions_by_endpoint(
    members: Mapping[str, StreamsMember],
    held: Mapping[str, HeldTasks],
    *,
    last: str,
    configured: ConfiguredTopology,
    topics: ClusterTopics,
) -> list[_Endpoint]:
    """The partitions of each member with an endpoint; `last` is the member that sent the request,
    and comes last.
    """
    found = []
    for member_id in sorted(members, key=lambda one: one == last):
        endpoint = members[member_id].user_endpoint
        if endpoint is None:
            continue
        tasks = held.get(member_id, HeldTasks())
        active = {name: frozenset(dated) for name, dated in tasks.active.items()}
        found.append(
            _Endpoint(
                user_endpoint=StreamsGroupHeartbeatResponse.Endpoint(
                    host=endpoint.host, port=endpoint.port
                ),
                active_partitions=list(_places(active.items(), configured, topics)),
                standby_partitions=list(_places(tasks.standby.items(), configured, topics)),
            )
        )
    return found


def _places(
    tasks: Iterable[tuple[str, frozenset[int]]],
    configured: ConfiguredTopology,
    topics: ClusterTopics,
) -> Iterator[_Places]:
    """The partitions that a task reads: the one with its number of each topic, if the topic
    has it.
    """
    for name, partitions in tasks:
        subtopology = configured.subtopologies.get(name)
        for topic_name in sorted(subtopology.inputs) if subtopology is not None else ():
            topic = topics.topics.get(topic_name)
            if topic is not None:
                there = sorted(one for one in partitions if one in topic.partitions)
                yield _Places(topic=topic_name, partitions=there)
