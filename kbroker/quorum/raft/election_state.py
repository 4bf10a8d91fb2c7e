"""The content of `quorum-state`: the highest epoch seen, its leader, this replica's vote in it."""

from __future__ import annotations

from typing import Final

import msgspec

from kbroker.model import ZERO_UUID, Uuid
from kbroker.quorum.raft.voters.voter_set import ReplicaKey

UNKNOWN_ID: Final = -1
"""No leader is known, or no vote was given."""

MAX_TOLD_EPOCH: Final = 1 << 30
"""A request with a later epoch is rejected: an epoch is an int32, and after the last one no
election would be possible. Kafka accepts any.
"""


class ElectionState(msgspec.Struct, frozen=True):
    """leader_id, voted_id: -1 for none. voted_directory_id: ZERO_UUID if unknown."""

    epoch: int = 0
    leader_id: int = UNKNOWN_ID
    voted_id: int = UNKNOWN_ID
    voted_directory_id: Uuid = ZERO_UUID

    @classmethod
    def of(cls, epoch: int, leader_id: int, voted: ReplicaKey | None) -> ElectionState:
        """The state of that epoch, leader and vote."""
        key = ReplicaKey(UNKNOWN_ID) if voted is None else voted
        return cls(epoch, leader_id, key.id, key.directory_id)

    @property
    def voted_key(self) -> ReplicaKey | None:
        """The candidate that this replica voted for; None if it did not vote."""
        if self.voted_id == UNKNOWN_ID:
            return None
        return ReplicaKey(self.voted_id, self.voted_directory_id)
