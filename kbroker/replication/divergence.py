"""Where to truncate a log that has diverged from the log it copies: a follower's log from its
leader's, a future log from the current one (KIP-101, KIP-279).
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.replication.leaders.replica_log import ReplicaLog


class Truncation(NamedTuple):
    """Where to truncate a log. is_complete: the logs agree after it; otherwise the leader has to be
    asked again, for the epoch that is then the latest.
    """

    offset: int
    is_complete: bool


def truncation(log: ReplicaLog, leader_epoch: int, end_offset: int) -> Truncation:
    """Where to cut a log so that it agrees with a leader whose largest epoch up to the one asked
    for is leader_epoch, ending at end_offset (exclusive). KIP-101, KIP-279.
    """
    own_log_end = log.log_end_offset
    own_epoch, own_end = log.leader_epochs.end_offset_for(leader_epoch, own_log_end)
    if own_end >= 0 and own_epoch != leader_epoch:
        return Truncation(min(own_end, own_log_end), is_complete=False)
    if own_end >= 0:
        end_offset = min(end_offset, own_end)
    return Truncation(min(end_offset, own_log_end), is_complete=True)


def truncation_to_source(log: ReplicaLog, source: ReplicaLog) -> Truncation | None:
    """Where to truncate a copy of source so that it agrees with source: the part of the leader and
    `truncation` in one step. None: neither the latest epoch of the copy nor an earlier one can be
    compared, since one of the logs has no epochs.

    A source that is itself a follower may have lost the latest epoch of its copy, which a leader
    that is asked never has; then the latest epoch of the source is the one to compare.
    """
    epoch, newest = log.leader_epochs.latest_epoch, source.leader_epochs.latest_epoch
    if epoch is None or newest is None:
        return None
    known, end_offset = source.leader_epochs.end_offset_for(
        min(epoch, newest), source.log_end_offset
    )
    return truncation(log, known, end_offset)
