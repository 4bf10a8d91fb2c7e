"""Members of a consumer group (KIP-848) that still use the classic protocol, during an online
migration: the rules for their JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

For such a member the generation is its member epoch, and it is always a follower: the coordinator
assigns. Its JoinGroup corresponds to a full heartbeat of other members, its SyncGroup fetches the
partitions that it may own now. There is no rebalance of the whole group: a member is told to rejoin
(REBALANCE_IN_PROGRESS) when it has partitions to revoke or to get.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from kbroker.coordinator.group.consumer.context import (
    ConsumerContext,
)
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.consumer.membership import (
    check_room,
)
from kbroker.coordinator.group.consumer.plan import (
    Update,
)
from kbroker.coordinator.group.consumer.reconciliation import MemberState
from kbroker.coordinator.group.consumer.records import MemberMetadata
from kbroker.coordinator.group.membership.embedded_protocol import (
    PROTOCOL_TYPE,
    NamedTopic,
    assignment_bytes,
    partitions_by_id,
    subscription_of,
    version_of,
)
from kbroker.coordinator.group.membership.join import UNKNOWN_MEMBER, Join
from kbroker.model import Uuid
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.messages.coordinators.groups import (
    HeartbeatRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)

REQUIRES_MEMBER_ID_VERSION: Final = 4
"""From this JoinGroup version on a new dynamic member first gets its id and joins again
(KIP-394).
"""

_Classic = MemberMetadata.ClassicMemberMetadata


class Joining(msgspec.Struct, frozen=True):
    """An accepted JoinGroup. replaced: the member with the same instance id, of any protocol, that
    is replaced.
    """

    member_id: str
    replaced: str | None
    metadata: MemberMetadata
    owned: Mapping[Uuid, frozenset[int]]

    def update(self) -> Update:
        """The part of the request that changes the group."""
        return Update(self.member_id, self.replaced, self.metadata, self.owned)


def check_join(group: ConsumerGroup, join: Join, context: ConsumerContext) -> Joining:
    """Check whether this member may join, and with which id. Raises KafkaError; with
    MEMBER_ID_REQUIRED the message is the id.
    """
    is_unknown = join.member_id == UNKNOWN_MEMBER
    member_id = context.new_member_id() if is_unknown else join.member_id
    check_room(group, member_id, context.settings)
    if not _supports(group, join):
        message = f"Group {group.group_id} has no protocol in common with member {member_id}."
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
    replaced = None
    if join.instance_id is None:
        if is_unknown and join.version >= REQUIRES_MEMBER_ID_VERSION:
            raise KafkaError(ErrorCode.MEMBER_ID_REQUIRED, member_id)
    elif is_unknown:
        replaced = group.static_members.get(join.instance_id)
    else:
        check_member(group, member_id, join.instance_id)
    former = group.members.get(replaced or member_id)
    try:
        subscription = subscription_of(join.protocols[0][1])
    except MalformedRequest as error:
        message = f"The subscription of member {member_id} cannot be read: {error}"
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message) from error
    metadata = MemberMetadata(
        instance_id=join.instance_id if former is None else join.instance_id or former.instance_id,
        rack_id=subscription.rack_id or (former.rack_id if former is not None else None),
        client_id=join.client_id,
        client_host=join.client_host,
        subscribed_topic_names=sorted(set(subscription.topics)),
        subscribed_topic_regex="",
        rebalance_timeout_ms=join.rebalance_timeout_ms,
        server_assignor=None if former is None else former.server_assignor,
        classic_member_metadata=_Classic(
            session_timeout_ms=join.session_timeout_ms,
            supported_protocols=[
                MemberMetadata.ClassicProtocol(name=name, metadata=data)
                for name, data in join.protocols
            ],
        ),
    )
    owned = partitions_by_id(subscription.owned_partitions, context.topics.topics)
    return Joining(member_id, replaced, metadata, owned)


def join_response(joining: Joining, epoch: int) -> JoinGroupResponse:
    """The response to a classic member: it is a follower in the generation that equals its member
    epoch.
    """
    return JoinGroupResponse(
        generation_id=epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol_name(joining.metadata),
        member_id=joining.member_id,
    )


def protocol_name(metadata: MemberMetadata) -> str:
    """The protocol in the response to a classic member: its own first choice."""
    classic = metadata.classic_member_metadata
    return "" if classic is None else classic.supported_protocols[0].name


def _supports(group: ConsumerGroup, join: Join) -> bool:
    """Whether the member supports a protocol that all classic members support."""
    if join.protocol_type != PROTOCOL_TYPE:
        return False
    known = [
        {protocol.name for protocol in metadata.classic_member_metadata.supported_protocols}
        for metadata in group.members.values()
        if metadata.classic_member_metadata is not None
    ]
    return any(all(name in names for names in known) for name, _ in join.protocols)


def check_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
    """Check that the member is in the group and currently owns its instance id. Raises
    KafkaError.
    """
    if instance_id is not None:
        owner = group.static_members.get(instance_id)
        if owner is not None and owner != member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID, f"Instance {instance_id} is member {owner} now."
            )
        if owner is None:
            message = f"Group {group.group_id} has no instance {instance_id}."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
    elif member_id not in group.members:
        message = f"Group {group.group_id} has no member {member_id}."
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)


def _check_generation(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
) -> None:
    check_member(group, member_id, instance_id)
    if not group.is_classic(member_id):
        message = f"Member {member_id} does not speak the classic protocol."
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
    epoch = group.current(member_id).member_epoch
    if generation_id != epoch:
        message = f"Member {member_id} is of generation {epoch}, not {generation_id}."
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, message)


def check_sync(group: ConsumerGroup, request: SyncGroupRequest) -> None:
    """Check whether this member may fetch its assignment. Raises KafkaError; REBALANCE_IN_PROGRESS:
    it must rejoin first.
    """
    member_id = request.member_id
    _check_generation(group, member_id, request.group_instance_id, request.generation_id)
    if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (
        None,
        protocol_name(group.members[member_id]),
    ):
        message = f"Member {member_id} was told another protocol."
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
    current = group.current(member_id)
    if group.target_epoch > current.member_epoch and not group.is_unrevoked(member_id):
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)


def assignment_for(
    group: ConsumerGroup, member_id: str, topics: Mapping[Uuid, NamedTopic]
) -> bytes:
    """The partitions a classic member may own now, in the version of its subscription."""
    classic = group.members[member_id].classic_member_metadata
    assert classic is not None
    version = version_of(bytes(classic.supported_protocols[0].metadata))
    return assignment_bytes(group.current(member_id).assigned, topics, version)


def check_heartbeat(group: ConsumerGroup, request: HeartbeatRequest) -> bool:
    """Whether this member must rejoin: to reach the target, to revoke partitions, or because all
    partitions that it waits for are free. Raises KafkaError.
    """
    member_id = request.member_id
    _check_generation(group, member_id, request.group_instance_id, request.generation_id)
    current = group.current(member_id)
    if (
        current.member_epoch < group.target_epoch
        or current.state is MemberState.UNREVOKED_PARTITIONS
    ):
        return True
    if current.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    is_free = group.is_free_for(member_id)
    return all(
        is_free(topic_id, partition)
        for topic_id, partitions in group.targets.get(member_id, {}).items()
        for partition in partitions
    )


def member_that_leaves(group: ConsumerGroup, identity: LeaveGroupRequest.MemberIdentity) -> str:
    """The id of the member of a LeaveGroup; a static one may be identified by its instance id
    alone. Raises KafkaError.
    """
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if instance_id is not None and member_id == UNKNOWN_MEMBER:
        member_id = group.static_members.get(instance_id, UNKNOWN_MEMBER)
    check_member(group, member_id, instance_id)
    return member_id
