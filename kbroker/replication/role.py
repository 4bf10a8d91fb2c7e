"""What a replica is to its partition; the transitions are in `partition`."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

NO_LEADER: Final = -1


class Role(IntEnum):
    OFFLINE = 0
    FOLLOWER = 1
    LEADER = 2
