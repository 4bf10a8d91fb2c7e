"""The members of a classic group, the protocols that all of them support, and the topics to which
they subscribe.
"""

from __future__ import annotations

from collections.abc import Collection

from kbroker.coordinator.group.classic.member import Member
from kbroker.coordinator.group.membership.embedded_protocol import subscription_of
from kbroker.coordinator.group.membership.join import Join
from kbroker.model import InvariantError
from kbroker.protocol.errors import ErrorCode, MalformedRequest


class Members:
    """Members by id, in the order of joining; static_members: member id by instance id."""

    __slots__ = ("_protocol_counts", "members", "static_members")

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self._protocol_counts: dict[str, int] = {}

    def add(self, member: Member) -> None:
        """Append a new member."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._count_protocols(member, 1)

    def remove(self, member: Member) -> None:
        """The member left the group."""
        del self.members[member.member_id]
        if member.instance_id is not None:
            self.static_members.pop(member.instance_id, None)
        self._count_protocols(member, -1)

    def replace(self, old: Member, new: Member) -> None:
        """Replace a static member by its new entry, in the same position."""
        members = list(self.members.values())
        self._count_protocols(old, -1)
        self.members.clear()
        for member in members:
            kept = new if member is old else member
            self.members[kept.member_id] = kept
        self.static_members[new.instance_id or ""] = new.member_id
        self._count_protocols(new, 1)

    def protocol_if_replaced(self, group_id: str, old: Member, new: Member) -> str:
        """The protocol that `select_protocol` would return after `replace`."""
        self._count_protocols(old, -1)
        self._count_protocols(new, 1)
        members = [new if member is old else member for member in self.members.values()]
        name = self._select(group_id, members)
        self._count_protocols(new, -1)
        self._count_protocols(old, 1)
        return name

    def set_protocols(self, member: Member, protocols: list[tuple[str, bytes]]) -> None:
        """Set the protocols that a member supports."""
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether that member is in the group and currently owns its instance id."""
        if instance_id is not None:
            owner = self.static_members.get(instance_id)
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def supports(self, join: Join, protocol_type: str | None) -> bool:
        """Whether the joining member supports a protocol that all members support. protocol_type:
        that of the group.
        """
        if not self.members:
            return bool(join.protocol_type and join.protocols)
        if join.protocol_type != protocol_type:
            return False
        size = len(self.members)
        own = self.members.get(join.member_id)
        if own is None or size > 1:
            return any(self._protocol_counts.get(name) == size for name, _ in join.protocols)
        return bool(join.protocols)

    def select_protocol(self, group_id: str) -> str:
        """The protocol with the most votes among those that all members support; of several the
        first voted for.
        """
        return self._select(group_id, self.members.values())

    def _select(self, group_id: str, members: Collection[Member]) -> str:
        size = len(members)
        candidates = frozenset(
            name for name, count in self._protocol_counts.items() if count == size
        )
        if not candidates:
            raise InvariantError(f"group {group_id}: no protocol is known to all members")
        votes: dict[str, int] = {}
        for member in members:
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        return max(votes, key=votes.__getitem__)

    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def subscribed_topics(self, protocol_name: str) -> frozenset[str] | None:
        """Topics that a member subscribes to with that protocol of consumers; None if a
        subscription cannot be decoded.
        """
        topics: set[str] = set()
        for member in self.members.values():
            try:
                subscription = subscription_of(member.metadata(protocol_name))
            except MalformedRequest:
                return None
            topics.update(subscription.topics)
        return frozenset(topics)

    def _count_protocols(self, member: Member, step: int) -> None:
        counts = self._protocol_counts
        for name in {name for name, _ in member.protocols}:
            count = counts.get(name, 0) + step
            if count:
                counts[name] = count
            else:
                del counts[name]
