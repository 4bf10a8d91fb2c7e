"""A consumer group over the wire: its committed offsets and its members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import GROUP_COORDINATOR, TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kbroker.protocol.messages.coordinators.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kbroker.protocol.messages.coordinators.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.protocol.messages.coordinators.share_groups import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from kbroker.protocol.messages.coordinators.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)

from ..checkpoint import Offsets
from .client import BlockingClient

LAST_FETCH_VERSION: Final = 7
"""Of OffsetFetch: later ones ask for several groups, or by topic id."""
LAST_COMMIT_VERSION: Final = 9
"""Of OffsetCommit: later ones name topics by id."""
LAST_DESCRIBE_VERSION: Final = 5
"""Of DescribeGroups: a group of another type has the state Dead, as one that does not exist."""

DEAD: Final = "Dead"

_DESCRIBED_BY_TYPE: Final[tuple[tuple[str, type[Any], type[Any]], ...]] = (
    ("consumer", ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
    ("streams", StreamsGroupDescribeRequest, StreamsGroupDescribeResponse),
    ("share", ShareGroupDescribeRequest, ShareGroupDescribeResponse),
)
_NOT_OF_THE_TYPE: Final = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})


class GroupMember(NamedTuple):
    """A live member, as it names itself."""

    client_id: str
    host: str


class GroupView(NamedTuple):
    """A group as its coordinator describes it. kind: classic, consumer, streams or share; empty if
    it does not exist.
    """

    kind: str = ""
    members: tuple[GroupMember, ...] = ()


def committed_offsets(
    client: BlockingClient, group: str, partitions: Mapping[str, Iterable[int]] | None = None
) -> Offsets:
    """The committed offsets of a group, of all topics by default; empty if it does not exist.

    Offsets of a transaction that is not decided are waited for. Raises KafkaError once its retries
    end.
    """
    topics = None
    if partitions is not None:
        topics = [
            OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=sorted(each))
            for topic, each in sorted(partitions.items())
        ]
    request = OffsetFetchRequest(group_id=group, topics=topics, require_stable=True)
    return client.retry(partial(_fetch, client, group, request))


def _fetch(client: BlockingClient, group: str, request: OffsetFetchRequest) -> Offsets:
    response = client.to_coordinator(
        GROUP_COORDINATOR, group, request, OffsetFetchResponse, max_version=LAST_FETCH_VERSION
    )
    _check(client, group, response.error_code, f"group {group}")
    found: Offsets = {}
    for topic in response.topics:
        for answer in topic.partitions:
            place = TopicPartition(topic.name, answer.partition_index)
            _check(client, group, answer.error_code, f"offset of {place}, group {group}")
            if answer.committed_offset >= 0:
                found.setdefault(topic.name, {})[place.partition] = answer.committed_offset
    return found


def commit_offsets(client: BlockingClient, group: str, offsets: Offsets) -> None:
    """Commit offsets of a group that has no live members; it is created if it does not exist.

    Raises KafkaError once its retries end: UNKNOWN_MEMBER_ID if the group has live members.
    """
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata=""
                    )
                    for partition, offset in sorted(ends.items())
                ],
            )
            for topic, ends in sorted(offsets.items())
        ],
    )
    client.retry(partial(_commit, client, group, request))


def _commit(client: BlockingClient, group: str, request: OffsetCommitRequest) -> None:
    response = client.to_coordinator(
        GROUP_COORDINATOR, group, request, OffsetCommitResponse, max_version=LAST_COMMIT_VERSION
    )
    for topic in response.topics:
        for answer in topic.partitions:
            place = TopicPartition(topic.name, answer.partition_index)
            _check(client, group, answer.error_code, f"offset of {place}, group {group}")


def describe_group(client: BlockingClient, group: str) -> GroupView:
    """The type of a group and its members. Raises KafkaError once its retries end."""
    return client.retry(partial(_describe, client, group))


def _describe(client: BlockingClient, group: str) -> GroupView:
    response = client.to_coordinator(
        GROUP_COORDINATOR,
        group,
        DescribeGroupsRequest(groups=[group]),
        DescribeGroupsResponse,
        max_version=LAST_DESCRIBE_VERSION,
    )
    (described,) = response.groups
    _check(client, group, described.error_code, f"group {group}")
    if described.group_state != DEAD:
        members = (GroupMember(each.client_id, each.client_host) for each in described.members)
        return GroupView("classic", tuple(members))
    for kind, request_type, response_type in _DESCRIBED_BY_TYPE:
        connection = client.coordinator_connection(GROUP_COORDINATOR, group)
        try:
            connection.version_of(request_type.API_KEY)
        except KafkaError:
            continue  # a broker from before this type of group
        answer = client.to_coordinator(
            GROUP_COORDINATOR, group, request_type(group_ids=[group]), response_type
        )
        (found,) = answer.groups
        if found.error_code in _NOT_OF_THE_TYPE:
            continue
        _check(client, group, found.error_code, f"group {group}")
        members = (GroupMember(each.client_id, each.client_host) for each in found.members)
        return GroupView(kind, tuple(members))
    return GroupView()


def _check(client: BlockingClient, group: str, code: int, what: str) -> None:
    if code:
        # It may be the answer of a broker that is the coordinator no longer.
        client.forget_coordinator(GROUP_COORDINATOR, group)
        raise KafkaError(ErrorCode(code), what)
