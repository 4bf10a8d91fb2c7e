"""Deadlines for requests of classic members of a consumer group: a member that was told to rejoin
must send JoinGroup, and then SyncGroup, each within its rebalance timeout.
"""

from __future__ import annotations

from enum import Enum
from functools import partial

from kbroker.coordinator.group.membership.sessions import GiveUp
from kbroker.coordinator.runtime.deadlines import Deadline, Deadlines
from kbroker.coordinator.runtime.result import Result


class ExpectedRequest(Enum):
    """The next request of a classic member in a consumer group."""

    JOIN = "JoinGroup"
    SYNC = "SyncGroup"


class ExpectedRequests:
    """Deadlines by (group id, member id, request). on_late: returns the removal of a member that
    missed one.
    """

    __slots__ = ("_deadlines", "_expected", "_on_late")

    def __init__(self, deadlines: Deadlines, on_late: GiveUp) -> None:
        self._deadlines = deadlines
        self._on_late = on_late
        self._expected: dict[tuple[str, str, ExpectedRequest], Deadline] = {}

    def expect(
        self, group_id: str, member_id: str, request: ExpectedRequest, until_ms: int, *, anew: bool
    ) -> None:
        """The member must send that request before until_ms. anew: an existing deadline is moved;
        otherwise it is kept.
        """
        key = (group_id, member_id, request)
        deadline = self._expected.get(key)
        if deadline is None:
            deadline = Deadline(partial(self._over, group_id, member_id))
            self._expected[key] = deadline
        elif not anew:
            return
        self._deadlines.set(deadline, until_ms)

    def received(self, group_id: str, member_id: str, request: ExpectedRequest) -> None:
        """The member sent that request."""
        deadline = self._expected.pop((group_id, member_id, request), None)
        if deadline is not None:
            self._deadlines.cancel(deadline)

    def forget(self, group_id: str, member_id: str) -> None:
        """The member left the group."""
        for request in ExpectedRequest:
            self.received(group_id, member_id, request)

    def clear(self) -> None:
        """The shard is unloaded."""
        for deadline in self._expected.values():
            self._deadlines.cancel(deadline)
        self._expected.clear()

    def _over(self, group_id: str, member_id: str, now_ms: int) -> list[Result]:
        return self._on_late(group_id, member_id)
