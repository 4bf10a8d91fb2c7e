"""A consumer group after a member's update: epoch and target assignment. `membership` has the steps
before and after.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kbroker.coordinator.group.consumer.assignors import ASSIGNORS
from kbroker.coordinator.group.consumer.context import ConsumerContext, ConsumerSettings
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.consumer.records import (
    MemberMetadata,
    group_record,
    regex_tombstone,
    target_epoch_record,
    target_record,
)
from kbroker.coordinator.group.membership.assignment import Assignment, Subscriber
from kbroker.coordinator.group.membership.metadata_hash import metadata_hash
from kbroker.coordinator.group.membership.subscriptions import Subscription, all_topics
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.model import Uuid

Reported = Mapping[Uuid, frozenset[int]] | None


class Update(NamedTuple):
    """The state that a member reports. replaced: the id of the static member that it replaces;
    reported: the partitions that it claims to own.
    """

    member_id: str
    replaced: str | None
    metadata: MemberMetadata
    reported: Reported


class ConsumerPlan:
    """The group after a member's update: epoch and target."""

    def __init__(self, group: ConsumerGroup, update: Update, context: ConsumerContext) -> None:
        self._group = group
        self._update = update
        self._context = context
        metadata, subscriptions = update.metadata, group.subscriptions
        former = group.members.get(update.member_id)
        if former is not None and _alike(former, metadata):
            self._subscription = subscriptions.of(update.member_id)
        else:
            names, regex = metadata.subscribed_topic_names, metadata.subscribed_topic_regex
            self._subscription = subscriptions.find(names, regex or "")
        self.epoch = group.epoch
        self.target_epoch = group.target_epoch
        self._assigned: Mapping[str, Assignment] | None = None

    @property
    def target(self) -> Assignment:
        """The member's target assignment."""
        update = self._update
        if self._assigned is not None:
            return self._assigned.get(update.member_id, {})
        return self._group.targets.get(update.replaced or update.member_id, {})

    def is_subscribed(self, topic_id: Uuid) -> bool:
        """Whether the member subscribes to that topic of the cluster."""
        topic = self._context.topics.topics_by_id.get(topic_id)
        return topic is not None and self._subscription.has(topic.name, self._group.resolved)

    def advance(self, *, changed: bool, assign: bool) -> list[CoordinatorRecord]:
        """The records of both steps. changed: the epoch must rise. assign: False skips the target
        assignment.
        """
        group, topics = self._group, self._context.topics
        records: list[CoordinatorRecord] = []
        subscriptions = self._subscriptions()
        is_same = subscriptions is None
        if subscriptions is None:
            subscriptions = group.subscriptions.distinct()
        else:
            records += regex_ends(group, subscriptions)
        if changed or group.seen_topics is not topics.topics:
            records += self._next_epoch(subscriptions, changed=changed, is_same=is_same)
        if (
            assign
            and self.epoch > self.target_epoch
            and self._context.may_assign(self._group.target_timestamp_ms)
        ):
            records += self._assign(subscriptions)
        return records

    def _subscriptions(self) -> Collection[Subscription] | None:
        """The distinct subscriptions after the update; None: those of the group."""
        update, known = self._update, self._group.subscriptions
        former_id = update.replaced or update.member_id
        is_member = former_id in self._group.members
        if is_member and known.of(former_id) is self._subscription:
            return None
        rest = known.without((former_id,))
        if self._subscription not in rest:
            rest.append(self._subscription)
        elif len(rest) == len(known.distinct()):
            return None
        return rest

    def _next_epoch(
        self, subscriptions: Iterable[Subscription], *, changed: bool, is_same: bool
    ) -> list[CoordinatorRecord]:
        group, topics = self._group, self._context.topics
        new_hash = group.metadata_hash
        if not (is_same and group.is_hash_current and group.seen_topics is topics.topics):
            new_hash = metadata_hash(all_topics(subscriptions, group.resolved), topics)
        if not changed and new_hash == group.metadata_hash:
            return []
        self.epoch = group.epoch + 1
        return [group_record(group.group_id, self.epoch, new_hash)]

    def _assign(self, subscriptions: Iterable[Subscription]) -> list[CoordinatorRecord]:
        group, update = self._group, self._update
        topic_ids, partition_counts = self._topic_ids(subscriptions)
        members = {key: value for key, value in group.members.items() if key != update.replaced}
        members[update.member_id] = update.metadata
        targets = {key: value for key, value in group.targets.items() if key != update.replaced}
        if update.replaced is not None:
            targets[update.member_id] = group.targets.get(update.replaced, {})
        of = group.subscriptions.of
        subscribers = {
            member_id: Subscriber(
                name=metadata.instance_id or member_id,
                topics=topic_ids[
                    self._subscription if member_id == update.member_id else of(member_id)
                ],
                current=targets.get(member_id, {}),
            )
            for member_id, metadata in members.items()
        }
        name = assignor_name(members, self._context.settings)
        assigned = ASSIGNORS[name](subscribers, partition_counts)
        records = [
            target_record(group.group_id, member_id, assignment)
            for member_id, assignment in assigned.items()
            if targets.get(member_id) != assignment
        ]
        self._assigned = assigned
        self.target_epoch = self.epoch
        wall_ms = self._context.wall_ms
        return [*records, target_epoch_record(group.group_id, self.epoch, wall_ms)]

    def _topic_ids(
        self, subscriptions: Iterable[Subscription]
    ) -> tuple[dict[Subscription, frozenset[Uuid]], dict[Uuid, int]]:
        """The ids of the topics of each subscription, and the partition count of each topic.
        Subscriptions to the same topics share one set.
        """
        topics = self._context.topics.topics
        by_names: dict[frozenset[str], frozenset[Uuid]] = {}
        partition_counts: dict[Uuid, int] = {}
        topic_ids: dict[Subscription, frozenset[Uuid]] = {}
        for subscription in subscriptions:
            names = subscription.topics(self._group.resolved)
            ids = by_names.get(names)
            if ids is None:
                known = [topic for name in sorted(names) if (topic := topics.get(name)) is not None]
                partition_counts.update({one.topic_id: len(one.partitions) for one in known})
                ids = by_names[names] = frozenset(one.topic_id for one in known)
            topic_ids[subscription] = ids
        return topic_ids, partition_counts


def _alike(former: MemberMetadata, new: MemberMetadata) -> bool:
    return (
        former.subscribed_topic_names == new.subscribed_topic_names
        and former.subscribed_topic_regex == new.subscribed_topic_regex
    )


def assignor_name(members: Mapping[str, MemberMetadata], settings: ConsumerSettings) -> str:
    """The assignor that most members request; the first configured one if no member requests
    one.
    """
    votes: dict[str, int] = {}
    for metadata in members.values():
        wish = metadata.server_assignor
        if wish is not None and wish in ASSIGNORS:
            votes[wish] = votes.get(wish, 0) + 1
    default = settings.group_consumer_assignors[0]
    return min(votes, key=lambda name: (-votes[name], name)) if votes else default


def regex_ends(
    group: ConsumerGroup, subscriptions: Iterable[Subscription]
) -> list[CoordinatorRecord]:
    """The tombstones of regular expressions that none of these subscriptions has."""
    if not group.regexes:
        return []
    used = {subscription.regex for subscription in subscriptions}
    return [
        regex_tombstone(group.group_id, regex)
        for regex in sorted(group.regexes)
        if regex not in used
    ]
