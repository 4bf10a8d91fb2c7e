"""How a node's core starts, for each shell that runs one: the driver, and the simulation.

Kafka's node does not start if it voted for itself and is not a voter any more. This one does.
"""

from __future__ import annotations

import logging

from kbroker.quorum.raft.effects import Effect
from kbroker.quorum.raft.node import RaftNode
from kbroker.quorum.raft.states.quorum_state import VotedButNotVoter

logger = logging.getLogger(__name__)


def start_core(core: RaftNode, now_ms: int) -> list[Effect]:
    """The core's first event. Returns its effects.

    A node that voted for itself, and was removed or lost its voter record by truncation in the same
    epoch, starts unattached. If it refused to start, it could never start again, as nothing would
    change its disk. The vote stays in `quorum-state`, so that the node gives no second one in that
    epoch.
    """
    try:
        return core.start(now_ms)
    except VotedButNotVoter as refusal:
        logger.warning(
            "%s. It starts unattached, where Kafka's node does not start: it keeps that vote, so "
            "that it votes for no other node in epoch %d, and follows the leader once it finds it",
            refusal,
            refusal.epoch,
        )
        return core.start_unattached(now_ms)
