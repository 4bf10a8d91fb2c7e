"""Limits on the memory that clients can take before it is in a record: ids of pending members, and
the metadata of members.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

_DIGEST_BYTES: Final = 16
MEMBERS_AT_LEAST: Final = 16
"""The number of members whose data is always accepted, independent of its size."""

Digest = bytes
"""Digest of a member id."""


def digest_of(member_id: str) -> Digest:
    """A digest of a member id, which may have a client id of up to 32 KiB as its prefix."""
    return blake2b(member_id.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()


class PendingMembers:
    """The pending members of all groups of one shard: ids assigned by MEMBER_ID_REQUIRED (KIP-394)
    that have not joined, oldest first. Beyond the limit the oldest is removed: a client that joins
    with it gets UNKNOWN_MEMBER_ID and requests another id, so a flood of joins does not stop any
    client.
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
        """Add an assigned id. forget: removes it from its group (called with now_ms)."""
        self._pending[group_id, digest] = forget
        while len(self._pending) > self._limit:
            oldest = next(iter(self._pending))
            self._pending.pop(oldest)(now_ms)

    def remove(self, group_id: str, digest: Digest) -> None:
        """The member joined, or its session timeout has passed."""
        self._pending.pop((group_id, digest), None)


class MemberMemory:
    """Memory, in bytes, of the data of classic group members, over all groups of a coordinator."""

    __slots__ = ("_limit_bytes", "member_limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.member_limit_bytes = limit_bytes // MEMBERS_AT_LEAST
        """The limit for one member: by default four times what fits into a record."""
        self.used_bytes = 0

    def has_room(self, count: int) -> bool:
        """Whether there is room for so many more bytes. A count that is not positive is always
        accepted.
        """
        return count <= 0 or self.used_bytes + count <= self._limit_bytes

    def add(self, count: int) -> None:
        """Add bytes (negative: release them)."""
        self.used_bytes += count
