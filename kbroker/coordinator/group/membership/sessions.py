"""Deadlines after which members of one shard's groups are removed: the session timeout without a
request, or the time to revoke the requested partitions.

Both use the monotonic clock and start again when the log is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from kbroker.coordinator.runtime.deadlines import Deadline, Deadlines
from kbroker.coordinator.runtime.result import Result

RETRY_MS: Final = 1_000
"""The time after which the removal of a member is retried if its tombstones could not be
written.
"""


GiveUp = Callable[[str, str], list[Result]]
"""The key of a member: (group id, member id)."""


class MemberSessions:
    """Deadlines by (group id, member id). give_up: returns the removal of a member whose session
    has expired; on_late: that of a member that did not revoke in time.
    """

    __slots__ = ("_deadlines", "_give_up", "_on_late", "_rebalances", "_sessions")

    def __init__(self, deadlines: Deadlines, *, give_up: GiveUp, on_late: GiveUp) -> None:
        self._deadlines = deadlines
        self._give_up = give_up
        self._on_late = on_late
        self._sessions: dict[tuple[str, str], Deadline] = {}
        self._rebalances: dict[tuple[str, str], tuple[object, Deadline]] = {}
        """For members that must revoke partitions: the assignment that requires it, and its
        deadline.
        """

    def renew(self, group_id: str, member_id: str, until_ms: int) -> None:
        """A request of the member arrived: its session ends at until_ms."""
        key = (group_id, member_id)
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = Deadline(partial(self._over, self._give_up, *key))
        self._deadlines.set(session, until_ms)

    def expect_return(
        self, group_id: str, member_id: str, assignment: object, until_ms: int
    ) -> None:
        """The member must revoke the partitions of this current assignment before until_ms.

        The timeout starts once per assignment, compared by identity: heartbeats that change nothing
        do not extend it, a further revocation in the same member epoch starts it again.
        """
        key = (group_id, member_id)
        watched = self._rebalances.get(key)
        if watched is not None and watched[0] is assignment:
            return
        deadline = watched[1] if watched else Deadline(partial(self._over, self._on_late, *key))
        self._rebalances[key] = (assignment, deadline)
        self._deadlines.set(deadline, until_ms)

    def returned(self, group_id: str, member_id: str) -> None:
        """The member has no partitions to revoke."""
        watched = self._rebalances.pop((group_id, member_id), None)
        if watched is not None:
            self._deadlines.cancel(watched[1])

    def forget(self, group_id: str, member_id: str) -> None:
        """The member left the group."""
        self.returned(group_id, member_id)
        session = self._sessions.pop((group_id, member_id), None)
        if session is not None:
            self._deadlines.cancel(session)

    def retry(self, group_id: str, member_id: str, now_ms: int) -> None:
        """The tombstones of the member could not be written: try again later."""
        self.renew(group_id, member_id, now_ms + RETRY_MS)

    def clear(self) -> None:
        """The shard is unloaded."""
        for session in self._sessions.values():
            self._deadlines.cancel(session)
        for _, deadline in self._rebalances.values():
            self._deadlines.cancel(deadline)
        self._sessions.clear()
        self._rebalances.clear()

    @staticmethod
    def _over(action: GiveUp, group_id: str, member_id: str, now_ms: int) -> list[Result]:
        return action(group_id, member_id)
