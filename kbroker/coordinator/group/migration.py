"""Migration of groups with members between the classic and the consumer protocol (KIP-848): a
classic group of consumers becomes a consumer group when the first member joins with the consumer
protocol, and a classic group again when the last such member leaves.

For its members the group continues: assignments, member ids and the generation, which becomes the
epoch, are kept. As in Kafka one batch has the tombstones of the former group and the records of the
new one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from kbroker.coordinator.group.classic.group import ClassicGroup
from kbroker.coordinator.group.classic.groups import ClassicGroups
from kbroker.coordinator.group.classic.member import Member
from kbroker.coordinator.group.classic.state import GroupState
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.consumer.groups import ConsumerGroups, Replacements
from kbroker.coordinator.group.consumer.membership import heartbeat
from kbroker.coordinator.group.consumer.migration_policy import MigrationPolicy
from kbroker.coordinator.group.consumer.reconciliation import (
    CurrentAssignment,
    MemberState,
    places_of,
)
from kbroker.coordinator.group.consumer.records import (
    MemberMetadata,
    all_tombstones,
    current_record,
    group_record,
    member_record,
    target_epoch_record,
    target_record,
)
from kbroker.coordinator.group.membership.assignment import Assignment
from kbroker.coordinator.group.membership.embedded_protocol import (
    PROTOCOL_TYPE,
    assignment_bytes,
    assignment_of,
    partitions_by_id,
    subscription_of,
    version_of,
)
from kbroker.coordinator.group.membership.metadata_hash import metadata_hash
from kbroker.coordinator.group.records import group_metadata_record, group_tombstone
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import CoordinatorResult, Result
from kbroker.coordinator.topics import ClusterTopics
from kbroker.model import Uuid
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


class MigrationSettings(Protocol):
    """The part of the broker's configuration that migrations read."""

    @property
    def group_max_size(self) -> int: ...
    @property
    def group_consumer_max_size(self) -> int: ...
    @property
    def group_consumer_migration_policy(self) -> str: ...


class Migration:
    """The migrations of one shard. topics: returns the cluster's current topics."""

    __slots__ = ("_classic", "_settings", "_topics")

    def __init__(
        self,
        settings: MigrationSettings,
        classic: ClassicGroups,
        topics: Callable[[], ClusterTopics],
    ) -> None:
        self._settings = settings
        self._classic = classic
        self._topics = topics

    @property
    def policy(self) -> MigrationPolicy:
        """The broker's policy, which can change while it runs."""
        return MigrationPolicy(self._settings.group_consumer_migration_policy)

    def upgrade(
        self,
        consumer: ConsumerGroups,
        request: ConsumerGroupHeartbeatRequest,
        client_id: str,
        client_host: str,
    ) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
        """A member of the consumer protocol joins a classic group with members. Raises
        KafkaError(GROUP_ID_NOT_FOUND) if the group cannot become a consumer group.
        """
        group_id = request.group_id
        group = self._classic.groups[group_id]
        max_size = self._settings.group_consumer_max_size
        records, upgraded = upgrade(group, self._topics(), policy=self.policy, max_size=max_size)
        context = consumer.context_of(group_id, client_id, client_host)
        # During a rebalance the members' assignments are not a complete target.
        unsettled = group.state is not GroupState.STABLE
        result = heartbeat(upgraded, request, context, unsettled=unsettled)

        def on_written(now_ms: int) -> list[Result]:
            consumer.begin(group_id, now_ms)
            return []

        result = result._replace(
            records=[*records, *result.records],
            replies=group.dismiss(ErrorCode.REBALANCE_IN_PROGRESS),
        )
        return consumer.settling(group_id, result, context.topics, on_written)

    def downgrade(
        self,
        group: ConsumerGroup,
        leaving: Collection[str],
        replacements: Replacements,
        *,
        rebalance: bool,
    ) -> CoordinatorResult[None] | None:
        """A `consumer.groups.Downgrade`."""
        group_id, max_size = group.group_id, self._settings.group_max_size
        if not may_downgrade(group, leaving, replacements, policy=self.policy, max_size=max_size):
            return None
        classic = self._classic.detached(group_id)
        records = downgrade(
            group,
            classic,
            leaving=leaving,
            replacements=replacements,
            topics=self._topics(),
            rebalance=rebalance,
        )

        def on_written(now_ms: int) -> list[Result]:
            self._classic.groups[group_id] = classic
            return classic.begin(now_ms, rebalance=rebalance)

        return CoordinatorResult(records, None, on_written=on_written)


# -- from classic to consumer ----------------------------------------------------------------


def upgrade(
    group: ClassicGroup, topics: ClusterTopics, *, policy: MigrationPolicy, max_size: int
) -> tuple[list[CoordinatorRecord], ConsumerGroup]:
    """The records that convert it to a consumer group, and that group. All members are Stable, with
    their last assignments; members that are in a rebalance must rejoin.

    Raises KafkaError(GROUP_ID_NOT_FOUND) if it cannot be converted.
    """
    reason = None
    if not policy.may_upgrade:
        reason = "group.consumer.migration.policy forbids it"
    elif group.protocol_type != PROTOCOL_TYPE:
        reason = "its members are no consumers"
    elif len(group.members) > max_size:
        reason = "it has too many members"
    if reason is not None:
        raise _not_upgraded(group, reason)
    try:
        records = _consumer_records(group, topics)
    except MalformedRequest as error:
        raise _not_upgraded(group, f"a member's metadata cannot be read: {error}") from error
    upgraded = ConsumerGroup(group.group_id)
    for record in records:
        upgraded.replay_record(record)
    return [group_tombstone(group.group_id), *records], upgraded


def _not_upgraded(group: ClassicGroup, reason: str) -> KafkaError:
    message = f"Classic group {group.group_id} cannot become a consumer group: {reason}."
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _consumer_records(group: ClassicGroup, topics: ClusterTopics) -> list[CoordinatorRecord]:
    """The records in Kafka's order: members, epoch, target, current assignments."""
    group_id, generation = group.group_id, group.generation_id
    members = {key: _as_consumer(group, member) for key, member in group.members.items()}
    assigned = _held(group, topics)
    names = {name for metadata in members.values() for name in metadata.subscribed_topic_names}
    currents = {
        key: CurrentAssignment(
            generation,
            generation,
            MemberState.STABLE,
            {
                topic_id: dict.fromkeys(sorted(partitions), generation)
                for topic_id, partitions in assignment.items()
            },
        )
        for key, assignment in assigned.items()
    }
    return [
        *(member_record(group_id, key, metadata) for key, metadata in members.items()),
        group_record(group_id, generation, metadata_hash(names, topics)),
        *(target_record(group_id, key, assignment) for key, assignment in assigned.items()),
        target_epoch_record(group_id, generation, 0),
        *(current_record(group_id, key, current) for key, current in currents.items()),
    ]


def _as_consumer(group: ClassicGroup, member: Member) -> MemberMetadata:
    chosen = group.protocol_name or member.protocols[0][0]
    subscription = subscription_of(member.metadata(chosen))
    return MemberMetadata(
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(set(subscription.topics)),
        subscribed_topic_regex="",
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=None,
        classic_member_metadata=MemberMetadata.ClassicMemberMetadata(
            session_timeout_ms=member.session_timeout_ms,
            supported_protocols=[
                MemberMetadata.ClassicProtocol(name=name, metadata=metadata)
                for name, metadata in member.protocols
            ],
        ),
    )


def _held(group: ClassicGroup, topics: ClusterTopics) -> dict[str, Assignment]:
    """The partitions that each member owns or may still own, by member id: a cooperative member
    revokes partitions that have no owner in this generation only after it was told to. No partition
    has two members.
    """
    held: dict[str, dict[Uuid, frozenset[int]]] = {}
    taken: set[tuple[Uuid, int]] = set()
    for member_id, member in group.members.items():
        held[member_id] = _partitions_of(group, member.assignment, topics)
        taken |= places_of(held[member_id])
    for member_id, member in group.members.items():
        former = _partitions_of(group, member.former_assignment, topics)
        for topic_id, partition in sorted(places_of(former) - taken):
            mine = held[member_id]
            mine[topic_id] = mine.get(topic_id, frozenset()) | {partition}
            taken.add((topic_id, partition))
    return dict(held)


def _partitions_of(
    group: ClassicGroup, data: bytes, topics: ClusterTopics
) -> dict[Uuid, frozenset[int]]:
    if not data:
        return {}
    assignment = assignment_of(data)
    if assignment.user_data:
        raise _not_upgraded(group, "an assignor of its own would lose its user data")
    return partitions_by_id(assignment.assigned_partitions, topics.topics)


# -- from consumer to classic ----------------------------------------------------------------


def may_downgrade(
    group: ConsumerGroup,
    leaving: Collection[str],
    replacements: Replacements,
    *,
    policy: MigrationPolicy,
    max_size: int,
) -> bool:
    """Whether the group becomes a classic one when these members leave and join: at least one
    member remains, and all remaining ones are classic.
    """
    if not policy.may_downgrade:
        return False
    gone = {*leaving, *(former for former, _ in replacements.values())}
    count = len(replacements)
    for member_id in group.members:
        if member_id in gone:
            continue
        if not group.is_classic(member_id):
            return False  # mostly the first one
        count += 1
    return 0 < count <= max_size


def downgrade(
    group: ConsumerGroup,
    classic: ClassicGroup,
    *,
    leaving: Collection[str],
    replacements: Replacements,
    topics: ClusterTopics,
    rebalance: bool,
) -> list[CoordinatorRecord]:
    """Convert the rest of the group to `classic`, which was just created; returns the records.

    Each member gets its target, as in Kafka. Where a rebalance follows, it gets its current
    assignment, including the partitions to revoke, since the group may change again before all
    members have joined. Then the record has no leader, which tells a coordinator that loads it to
    start a rebalance: Kafka's coordinator makes the first member the leader, and the record of the
    next generation has a leader again.
    """
    replaced = {former for former, _ in replacements.values()}
    members = {
        member_id: metadata
        for member_id, metadata in group.members.items()
        if member_id not in leaving and member_id not in replaced
    }
    members.update({member_id: metadata for member_id, (_, metadata) in replacements.items()})
    classic.adopt(members, group.epoch)
    for member_id, member in classic.members.items():
        source = replacements[member_id][0] if member_id in replacements else member_id
        try:
            version = version_of(member.metadata(classic.protocol_name))
        except MalformedRequest:
            version = 0
        current = group.current(source)
        has = current.held() if rebalance else group.targets.get(source, {})
        member.assignment = assignment_bytes(has, topics.topics_by_id, version)
    assignments = {member.member_id: member.assignment for member in classic.members.values()}
    ids = [member_id for member_id in group.members if member_id not in replaced]
    value = classic.to_value(assignments)
    if rebalance:
        value.leader = None
    return [
        *all_tombstones(group.group_id, [*ids, *replacements], group.regexes),
        group_metadata_record(group.group_id, value),
    ]
