"""The context of a decision about a member: everything it needs besides its group and its
request.
"""

from __future__ import annotations

import msgspec

from kbroker.coordinator.topics import ClusterTopics


class AssignmentContext(msgspec.Struct, kw_only=True):
    """The cluster's topics, the time, the client, and the configuration of the group. wall_ms: the
    current time.

    heartbeat_interval_ms, assignment_interval_ms: those of this group. Each group type adds fields.
    Created for each heartbeat, and read-only by convention: a frozen dataclass takes three times as
    long to create.
    """

    topics: ClusterTopics
    wall_ms: int
    client_id: str
    client_host: str
    heartbeat_interval_ms: int
    assignment_interval_ms: int

    def may_assign(self, last_assignment_ms: int) -> bool:
        """Whether the assignment interval has passed since the last target assignment, by the wall
        clock, which may have been set back. Because of the interval many joins lead to one
        assignment.
        """
        since_ms = self.wall_ms - last_assignment_ms
        return since_ms >= self.assignment_interval_ms or since_ms < 0
