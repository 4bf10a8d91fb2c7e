"""The port to the states of the share partitions that this broker leads, on any coordinator."""

from __future__ import annotations

from typing import Protocol

from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.share_partition_state import SharePlace, StateFound, StateWrite


class SharePersister(Protocol):
    """Errors are those of the share coordinator, after retries of retriable ones."""

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        """Read the state for a new leader of the partition; earlier leader epochs are fenced
        afterwards.
        """
        ...

    def write(self, key: SharePlace, write: StateWrite) -> Deferred[ErrorCode]:
        """Store a change of the state."""
        ...
