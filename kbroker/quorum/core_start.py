"""Starts the core of a quorum node, for both of its shells: the driver and the simulation.

Kafka's node does not start if it voted for itself and is not a voter any more. kbroker's does.
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
    epoch, starts unattached. If it refused to start, it could never start again, since its disk
    would not change. The vote stays in `quorum-state`, so that the node does not vote again in that
    epoch.
    """
    try:
        return core.start(now_ms)
    except VotedButNotVoter as refusal:
        logger.warning(
            "%s. The node starts unattached (a Kafka node would not start): it keeps that vote, so "
            "that it votes for no other node in epoch %d, and follows the leader once it is known",
            refusal,
            refusal.epoch,
        )
        return core.start_unattached(now_ms)
