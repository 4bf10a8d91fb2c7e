"""The response of a consumer group to ConsumerGroupHeartbeat (KIP-848), and the removal of members.

Each function reads a `ConsumerGroup` and returns the records of the decision, in Kafka's order,
with the response; it changes nothing. A heartbeat has up to four steps, each based on the result of
the one before: the member, the group epoch, the target assignment, the current assignment. Regular
expressions are resolved independently of heartbeats (`regex_refresh`); `resolved` returns those
records.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kbroker.coordinator.group.consumer.context import ConsumerContext, ConsumerSettings
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.consumer.plan import ConsumerPlan, Reported, Update, regex_ends
from kbroker.coordinator.group.consumer.reconciliation import CurrentAssignment, Owned, reconcile
from kbroker.coordinator.group.consumer.records import (
    MemberMetadata,
    current_record,
    group_record,
    member_record,
    member_tombstones,
    regex_record,
    target_record,
)
from kbroker.coordinator.group.consumer.regex_refresh import RegexRefresh
from kbroker.coordinator.group.membership.errors import fenced_epoch, group_is_full, unknown_member
from kbroker.coordinator.group.membership.metadata_hash import metadata_hash
from kbroker.coordinator.group.membership.subscriptions import all_topics
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import CoordinatorResult
from kbroker.coordinator.topics import ClusterTopics
from kbroker.model import Uuid
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


class Step(NamedTuple):
    """The effect of an update on a member: its state before and after."""

    records: list[CoordinatorRecord]
    before: CurrentAssignment
    after: CurrentAssignment
    epoch: int
    target_epoch: int


def heartbeat(
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    context: ConsumerContext,
    *,
    unsettled: bool = False,
) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
    """A heartbeat of a new or existing member. unsettled: the current target was not computed for
    these members. Raises KafkaError.
    """
    member_id = request.member_id or context.new_member_id()
    replaced = _find_member(group, request, member_id, context.settings)
    former = group.members.get(replaced or member_id)
    metadata = _updated(former, request, context)
    update = Update(member_id, replaced, metadata, reported_of(request))
    step = advance(group, update, context, unsettled=unsettled)
    response = ConsumerGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=step.after.member_epoch,
        heartbeat_interval_ms=context.heartbeat_interval_ms,
    )
    if _is_full(request) or _partitions(step.after.assigned) != _partitions(step.before.assigned):
        response.assignment = _assignment(step.after.assigned)
    return CoordinatorResult(step.records, response)


def advance(
    group: ConsumerGroup,
    update: Update,
    context: ConsumerContext,
    *,
    assign: bool = True,
    unsettled: bool = False,
) -> Step:
    """The steps for the member, the group epoch, the target assignment and the current assignment.
    assign: whether a new target may be computed; unsettled: whether it must be.
    """
    group_id, member_id, replaced = group.group_id, update.member_id, update.replaced
    records: list[CoordinatorRecord] = []
    former = group.members.get(replaced or member_id)
    current, target = group.current(member_id), group.targets.get(member_id)
    if replaced is not None:
        current, target = group.current(replaced).returned(), group.targets.get(replaced, {})
        records += member_tombstones(group_id, replaced)
    if replaced is not None or update.metadata != former:
        records.append(member_record(group_id, member_id, update.metadata))
    if replaced is not None and target is not None:
        records.append(target_record(group_id, member_id, target))
        records.append(current_record(group_id, member_id, current))
    plan = ConsumerPlan(group, update, context)
    change = _change(group, former, update.metadata)
    records += plan.advance(changed=unsettled or change.moves_epoch, assign=assign)
    after = current
    if assign or plan.target_epoch == plan.epoch:
        after = reconcile(
            current,
            target_epoch=plan.target_epoch,
            target=plan.target,
            is_free=group.is_free_for(replaced or member_id),
            is_subscribed=plan.is_subscribed,
            subscription_changed=change.is_one,
            reported=update.reported,
        )
    if after is not current:
        records.append(current_record(group_id, member_id, after))
    return Step(records, current, after, plan.epoch, plan.target_epoch)


class _Change(NamedTuple):
    """A change of a member's subscription. moves_epoch: the group epoch rises with it at once."""

    is_one: bool
    moves_epoch: bool


def _change(group: ConsumerGroup, former: MemberMetadata | None, new: MemberMetadata) -> _Change:
    """As in Kafka, a regular expression that is not resolved yet does not raise the epoch: its
    resolution will. Nor does another assignor, which takes effect with the next assignment.
    """
    names = [] if former is None else former.subscribed_topic_names
    old_regex = "" if former is None else former.subscribed_topic_regex or ""
    regex = new.subscribed_topic_regex or ""
    names_changed, regex_changed = new.subscribed_topic_names != names, regex != old_regex
    is_resolved = not regex or regex in group.regexes
    return _Change(
        names_changed or regex_changed,
        names_changed or (regex_changed and is_resolved),
    )


def check_leave(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> None:
    """Check whether this member may leave. Raises KafkaError."""
    _check_static(group, request)
    if request.member_id not in group.members:
        raise unknown_member(group.group_id, request.member_id)


def leave_for_a_while(group: ConsumerGroup, member_id: str) -> list[CoordinatorRecord]:
    """A static member leaves temporarily."""
    return [current_record(group.group_id, member_id, group.current(member_id).away())]


def removal(
    group: ConsumerGroup, member_ids: Collection[str], topics: ClusterTopics
) -> list[CoordinatorRecord]:
    """The removal of members, and the next group epoch."""
    records: list[CoordinatorRecord] = []
    for member_id in member_ids:
        records += member_tombstones(group.group_id, member_id)
    rest = group.subscriptions.without(member_ids)
    records += regex_ends(group, rest)
    new_hash = group.metadata_hash
    is_same = len(rest) == len(group.subscriptions.distinct())
    if not (is_same and group.is_hash_current and group.seen_topics is topics.topics):
        new_hash = metadata_hash(all_topics(rest, group.resolved), topics)
    records.append(group_record(group.group_id, group.epoch + 1, new_hash))
    return records


def resolved(
    group: ConsumerGroup, refresh: RegexRefresh, topics: ClusterTopics
) -> list[CoordinatorRecord]:
    """The records of a refresh of the group's regular expressions: the topics of those that members
    still subscribe to, and the group epoch. topics: the cluster's current topics.
    """
    records: list[CoordinatorRecord] = []
    regexes, found = dict(group.resolved), False
    for regex, names in sorted(refresh.resolved.items()):
        if regex not in group.subscriptions.regexes or (
            regex in group.regexes and group.regexes[regex].topics == names
        ):
            continue
        found = found or regexes.get(regex, frozenset()) != frozenset(names)
        regexes[regex] = frozenset(names)
        records.append(regex_record(group.group_id, regex, names, refresh.offset, refresh.wall_ms))
    names_now = all_topics(group.subscriptions.distinct(), regexes)
    new_hash = metadata_hash(names_now, topics)
    if found or new_hash != group.metadata_hash:
        records.append(group_record(group.group_id, group.epoch + 1, new_hash))
    return records


def reported_of(request: ConsumerGroupHeartbeatRequest) -> Reported:
    """The assignment that the member reports; None if the request has none."""
    if request.topic_partitions is None:
        return None
    return {topic.topic_id: frozenset(topic.partitions) for topic in request.topic_partitions}


# -- steps of a heartbeat --------------------------------------------------------------------


def _find_member(
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    member_id: str,
    settings: ConsumerSettings,
) -> str | None:
    """Check the sender. Returns the id of the static member that it replaces, if it replaces
    one.
    """
    if request.member_epoch != 0:
        _check_static(group, request)
        if member_id not in group.members:
            raise unknown_member(group.group_id, member_id)
        _check_epoch(group.current(member_id), request)
        return None
    owner = group.static_members.get(request.instance_id or "")
    if owner is not None and owner != member_id:
        if not (group.is_away(owner) or group.is_classic(owner)):
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {request.instance_id} cannot join the "
                f"group because the instance id is owned by {owner} member.",
            )
        return owner
    check_room(group, member_id, settings)
    return None


def check_room(group: ConsumerGroup, member_id: str, settings: ConsumerSettings) -> None:
    """Check whether the group has room for that member. Raises KafkaError."""
    if member_id not in group.members and len(group.members) >= settings.group_consumer_max_size:
        raise group_is_full("consumer", settings.group_consumer_max_size)


def _check_static(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> None:
    if request.instance_id is None:
        return
    owner = group.static_members.get(request.instance_id)
    if owner is None:
        message = f"Instance id {request.instance_id} is unknown."
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
    if owner != request.member_id:
        message = f"Static member {request.member_id} with instance id {request.instance_id}"
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"{message} was fenced by member {owner}.")


def _check_epoch(current: CurrentAssignment, request: ConsumerGroupHeartbeatRequest) -> None:
    """Check the member epoch. A member may be one epoch behind if it missed the response: then all
    partitions that it owns must be assigned to it.
    """
    epoch, reported = request.member_epoch, reported_of(request)
    if epoch == current.member_epoch:
        return
    if (
        epoch < current.member_epoch
        and epoch == current.previous_epoch
        and reported is not None
        and current.owns_all(reported)
    ):
        return
    raise fenced_epoch("consumer", epoch, current.member_epoch)


def _updated(
    former: MemberMetadata | None, request: ConsumerGroupHeartbeatRequest, context: ConsumerContext
) -> MemberMetadata:
    """A member's state after this request; null fields keep their values."""

    old = former or MemberMetadata(
        instance_id=None, rack_id=None, subscribed_topic_regex="", server_assignor=None
    )
    names = request.subscribed_topic_names
    timeout_ms = request.rebalance_timeout_ms
    return MemberMetadata(
        instance_id=_chosen(request.instance_id, old.instance_id),
        rack_id=_chosen(request.rack_id, old.rack_id),
        client_id=context.client_id,
        client_host=context.client_host,
        subscribed_topic_names=old.subscribed_topic_names if names is None else sorted(set(names)),
        subscribed_topic_regex=_chosen(request.subscribed_topic_regex, old.subscribed_topic_regex),
        rebalance_timeout_ms=old.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=_chosen(request.server_assignor, old.server_assignor),
        classic_member_metadata=None,
    )


def _chosen(said: str | None, known: str | None) -> str | None:
    return known if said is None else said


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the request has all fields, and so needs a full response."""
    return request.member_epoch == 0 or (
        request.rebalance_timeout_ms != -1
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
        and request.topic_partitions is not None
    )


def _partitions(owned: Owned) -> dict[Uuid, frozenset[int]]:
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}


def _assignment(owned: Owned) -> ConsumerGroupHeartbeatResponse.Assignment:
    return ConsumerGroupHeartbeatResponse.Assignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponse.TopicPartitions(
                topic_id=topic_id, partitions=sorted(partitions)
            )
            for topic_id, partitions in owned.items()
        ]
    )
