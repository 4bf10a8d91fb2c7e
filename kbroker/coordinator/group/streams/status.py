"""The status codes of streams groups, which a response has beside the tasks. `topology` and
`membership` set them.
"""

from __future__ import annotations

from enum import IntEnum


class StreamsStatus(IntEnum):
    """Status codes of StreamsGroupHeartbeatResponse."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
