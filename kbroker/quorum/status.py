"""The status of the metadata quorum as one node knows it, in the form of Kafka's
KafkaRaftMetrics.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.quorum.raft.states.epoch_states import Follower, voted_key_of
from kbroker.quorum.raft.states.quorum_state import QuorumState

NO_VOTE = -1


class QuorumStatus(NamedTuple):
    """state: `observer` for a follower that is no voter, else the replica's state in lower case.
    leader_id: -1 if it is unknown. voted_id: the candidate voted for in this epoch, -1 for none.
    log_end_offset: exclusive. log_end_epoch: that of the last record.
    """

    state: str
    leader_id: int
    epoch: int
    voted_id: int
    high_watermark: int
    log_end_offset: int
    log_end_epoch: int
    voter_count: int


def quorum_status(quorum: QuorumState) -> QuorumStatus:
    """The status of one replica."""
    state = quorum.state
    voted = voted_key_of(state)
    is_observer = isinstance(state, Follower) and not quorum.is_voter
    return QuorumStatus(
        state="observer" if is_observer else type(state).__name__.lower(),
        leader_id=quorum.leader_id,
        epoch=quorum.epoch,
        voted_id=NO_VOTE if voted is None else voted.id,
        high_watermark=quorum.high_watermark,
        log_end_offset=quorum.log.end_offset,
        log_end_epoch=quorum.log.last_epoch,
        voter_count=len(quorum.voters.ids),
    )
