"""Memory that classic groups hold for clients before it is in a record: ids of members that have
not joined yet, and the metadata of members. It is bounded here.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

_DIGEST_BYTES: Final = 16
MEMBERS_AT_LEAST: Final = 16
"""So many members have room, however much each of them says."""

Digest = bytes
"""Of a member id."""


def digest_of(member_id: str) -> Digest:
    """Memory of a member id, which begins with a client id of up to 32 KiB."""
    return blake2b(member_id.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()


class PendingMembers:
    """The member ids given out by MEMBER_ID_REQUIRED (KIP-394) that have not come back, of all
    groups of one shard, oldest first. Beyond the limit the oldest is forgotten: a client that comes
    back with it is told UNKNOWN_MEMBER_ID and asks for another, so a flood of joins ends no client.
    """

    __slots__ = ("_limit", "_pending")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending: dict[tuple[str, Digest], Callable[[int], None]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(
        self, group_id: str, digest: Digest, forget: Callable[[int], None], now_ms: int
    ) -> None:
        """An id was given out. forget: makes its group forget it (now_ms is passed)."""
        self._pending[group_id, digest] = forget
        while len(self._pending) > self._limit:
            oldest = next(iter(self._pending))
            self._pending.pop(oldest)(now_ms)

    def remove(self, group_id: str, digest: Digest) -> None:
        """The member joined, or its session timeout is over."""
        self._pending.pop((group_id, digest), None)


class MemberMemory:
    """Bytes of what members of classic groups said, over all groups of a coordinator."""

    __slots__ = ("_limit_bytes", "member_limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.member_limit_bytes = limit_bytes // MEMBERS_AT_LEAST
        """One member may say no more: by default four times what a record can hold."""
        self.used_bytes = 0

    def has_room(self, count: int) -> bool:
        """Whether members may say so much more. Less, or as much as before, is always taken."""
        return count <= 0 or self.used_bytes + count <= self._limit_bytes

    def add(self, count: int) -> None:
        """Add bytes (negative: release them)."""
        self.used_bytes += count
