"""Moves one member of a consumer group from its current to its target assignment (KIP-848).

STABLE -> UNREVOKED_PARTITIONS -> UNRELEASED_PARTITIONS -> STABLE

A member first revokes the partitions that are not in its target; its epoch is kept until it
confirms that. Then it moves to the target's epoch and gets the partitions that other members have
released; it waits for the others. A partition belongs to a member from the record that assigns it
until the record that removes it from both `assigned` and `revoking`.

Partitions of topics to which a member no longer subscribes are revoked at once, even if they are in
its target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum

import msgspec
from msgspec.structs import replace

from kbroker.coordinator.group.membership.assignment import Assignment
from kbroker.coordinator.group.membership.epochs import STATIC_LEAVE_EPOCH
from kbroker.model import Uuid

Owned = Mapping[Uuid, Mapping[int, int]]
"""Partition -> the member epoch in which it was assigned, by topic id; topics without partitions
are left out.
"""


class MemberState(IntEnum):
    """The member state as it is stored in the log."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class CurrentAssignment(msgspec.Struct, frozen=True):
    """A member's current assignment. A new member has epoch 0 and no partitions."""

    member_epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Owned = msgspec.field(default_factory=dict)
    revoking: Owned = msgspec.field(default_factory=dict)

    def is_at(self, epoch: int) -> bool:
        """Whether the member has reached its target in that epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def owns_all(self, partitions: Mapping[Uuid, frozenset[int]]) -> bool:
        """Whether all of these partitions are assigned to it."""
        return all(
            partition in self.assigned.get(topic_id, {})
            for topic_id, indexes in partitions.items()
            for partition in indexes
        )

    def held(self) -> dict[Uuid, frozenset[int]]:
        """All partitions that it owns, including those that it must revoke."""
        held: dict[Uuid, frozenset[int]] = {}
        for owned in (self.assigned, self.revoking):
            for topic_id, partitions in owned.items():
                held[topic_id] = held.get(topic_id, frozenset()) | frozenset(partitions)
        return held

    def away(self) -> CurrentAssignment:
        """The assignment of a static member that has left temporarily: it keeps its partitions."""
        return CurrentAssignment(
            STATIC_LEAVE_EPOCH, self.previous_epoch, MemberState.STABLE, self._of_old()
        )

    def returned(self) -> CurrentAssignment:
        """The assignment of the member that replaces a static member."""
        return CurrentAssignment(0, 0, MemberState.STABLE, self._of_old())

    def _of_old(self) -> Owned:
        return {topic: dict.fromkeys(partitions, 0) for topic, partitions in self.assigned.items()}


def places_of(owned: Mapping[Uuid, Iterable[int]]) -> set[tuple[Uuid, int]]:
    """All (topic id, partition) in it."""
    return {(topic_id, index) for topic_id, partitions in owned.items() for index in partitions}


def reconcile(
    current: CurrentAssignment,
    *,
    target_epoch: int,
    target: Assignment,
    is_free: Callable[[Uuid, int], bool],
    is_subscribed: Callable[[Uuid], bool],
    subscription_changed: bool,
    reported: Mapping[Uuid, frozenset[int]] | None,
) -> CurrentAssignment:
    """The next assignment of a member that sent a heartbeat; current itself if nothing changes.

    is_free: no other member has that partition. is_subscribed: the member subscribes to that topic.
    subscription_changed: by this heartbeat. reported: the partitions that the member reports, None
    if it did not.
    """
    match current.state:
        case MemberState.STABLE:
            if current.member_epoch == target_epoch:
                if subscription_changed:
                    return _without_unsubscribed(current, is_subscribed, reported)
                return current
        case MemberState.UNREVOKED_PARTITIONS:
            if _has_any(current.revoking, reported):
                if subscription_changed:
                    return _without_unsubscribed(current, is_subscribed, reported)
                return current
        case _:
            pass
    target = {topic_id: wanted for topic_id, wanted in target.items() if is_subscribed(topic_id)}
    return _next(current, target_epoch, target, is_free, reported)


def _without_unsubscribed(
    current: CurrentAssignment,
    is_subscribed: Callable[[Uuid], bool],
    reported: Mapping[Uuid, frozenset[int]] | None,
) -> CurrentAssignment:
    """Revoke the partitions of topics that the member no longer subscribes to, in its epoch."""
    gone = {
        topic_id: partitions
        for topic_id, partitions in current.assigned.items()
        if not is_subscribed(topic_id)
    }
    if not gone:
        return current
    kept = {key: value for key, value in current.assigned.items() if key not in gone}
    revoking = dict(current.revoking)
    for topic_id, partitions in gone.items():
        revoking[topic_id] = {**revoking.get(topic_id, {}), **partitions}
    if _has_any(revoking, reported):
        return replace(
            current,
            previous_epoch=current.member_epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            revoking=revoking,
        )
    return replace(current, previous_epoch=current.member_epoch, assigned=kept)


def _next(
    current: CurrentAssignment,
    target_epoch: int,
    target: Assignment,
    is_free: Callable[[Uuid, int], bool],
    reported: Mapping[Uuid, frozenset[int]] | None,
) -> CurrentAssignment:
    kept: dict[Uuid, dict[int, int]] = {}
    revoking: dict[Uuid, dict[int, int]] = {}
    for topic_id, partitions in current.assigned.items():
        wanted = target.get(topic_id, frozenset())
        for partition, epoch in partitions.items():
            side = kept if partition in wanted else revoking
            side.setdefault(topic_id, {})[partition] = epoch
    if revoking and _has_any(revoking, reported):
        return replace(
            current,
            previous_epoch=current.member_epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            revoking=revoking,
        )
    is_waiting = False
    got_any = False
    for topic_id, wanted in target.items():
        for partition in sorted(wanted.difference(kept.get(topic_id, {}))):
            if is_free(topic_id, partition):
                kept.setdefault(topic_id, {})[partition] = target_epoch
                got_any = True
            else:
                is_waiting = True
    state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
    if (
        current.state is state
        and current.member_epoch == target_epoch
        and not (got_any or revoking or current.revoking)
    ):
        return current
    return CurrentAssignment(target_epoch, current.member_epoch, state, kept)


def _has_any(owned: Owned, reported: Mapping[Uuid, frozenset[int]] | None) -> bool:
    """Whether the member still owns any of these; True if it did not report."""
    if reported is None:
        return True
    return any(not reported.get(topic, frozenset()).isdisjoint(owned[topic]) for topic in owned)
