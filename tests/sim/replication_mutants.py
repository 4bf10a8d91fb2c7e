"""Defects put into replication, each of which the simulation must find: the proof that its faults
and checks are able to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from unittest import mock

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.replication import follower, partition_read
from kbroker.replication.followed_partition import Effect, FollowedPartition, Truncation
from kbroker.replication.isr import InSyncReplicas, IsrProposal
from kbroker.replication.isr_changes import IsrChanges
from kbroker.replication.partition import Partition
from kbroker.replication.replica_log import ReplicaLog

Mutant = Callable[[], AbstractContextManager[object]]


def epoch_check_skipped() -> AbstractContextManager[object]:
    """A leader looks at the fetch offset of a follower, not at its last fetched epoch (KIP-101)."""
    return mock.patch.object(
        partition_read, "_diverging_epoch", lambda partition, wanted: partition_read.NO_EPOCH
    )


def high_watermark_from_a_diverging_answer() -> AbstractContextManager[object]:
    """A follower takes over the high watermark before it truncates (KAFKA-14704)."""
    original = follower.Follower._fetched

    def fetched(
        core: follower.Follower,
        followed: FollowedPartition,
        data: FetchResponse.PartitionData,
        now_ms: int,
    ) -> Iterator[Effect]:
        if not data.error_code and data.diverging_epoch.epoch >= 0:
            followed.partition.follower_advanced(data.high_watermark, 0)
        return original(core, followed, data, now_ms)

    return mock.patch.object(follower.Follower, "_fetched", fetched)


def committed_instead_of_maximal_isr() -> AbstractContextManager[object]:
    """The high watermark does not wait for a follower that the controller may already count."""

    def propose(replicas: InSyncReplicas, proposal: IsrProposal) -> None:
        replicas.pending = proposal

    return mock.patch.object(InSyncReplicas, "propose", propose)


def truncation_to_the_wrong_epochs_end() -> AbstractContextManager[object]:
    """A follower cuts its log where the leader's epoch ends, though its own ends earlier."""

    def truncation(log: ReplicaLog, leader_epoch: int, end_offset: int) -> Truncation:
        del leader_epoch
        return Truncation(min(end_offset, log.log_end_offset), is_complete=True)

    return mock.patch.object(follower, "truncation", truncation)


def shrunk_isr_counts_at_once() -> AbstractContextManager[object]:
    """The high watermark passes a member before the controller has removed it."""
    original = InSyncReplicas.propose

    def propose(replicas: InSyncReplicas, proposal: IsrProposal) -> None:
        original(replicas, proposal)
        replicas.maximal = frozenset(member for member, _ in proposal.isr)

    return mock.patch.object(InSyncReplicas, "propose", propose)


def high_watermark_moves_below_min_isr() -> AbstractContextManager[object]:
    """A leader commits what fewer than min.insync.replicas have (KIP-966)."""
    return mock.patch.object(Partition, "is_under_min_isr", property(lambda partition: False))


def lagging_follower_joins() -> AbstractContextManager[object]:
    """A follower is proposed though it has not reached the start of this leadership."""
    original = InSyncReplicas.may_add

    def may_add(replicas: InSyncReplicas, replica_id: int, *, required_offset: int) -> bool:
        del required_offset
        return original(replicas, replica_id, required_offset=0)

    return mock.patch.object(InSyncReplicas, "may_add", may_add)


def earlier_lives_count() -> AbstractContextManager[object]:
    """Fetches of an earlier life of a broker count, and their epoch is not told to the controller
    (before KIP-903).
    """

    def epochs_of(replicas: InSyncReplicas, members: Iterable[int]) -> tuple[tuple[int, int], ...]:
        return tuple((member, -1) for member in sorted(members))

    def is_eligible(replicas: InSyncReplicas, replica_id: int) -> bool:
        return replicas._brokers.live_epoch(replica_id) is not None

    stack = ExitStack()
    stack.enter_context(mock.patch.object(InSyncReplicas, "is_stale", lambda *_: False))
    stack.enter_context(mock.patch.object(InSyncReplicas, "is_eligible", is_eligible))
    stack.enter_context(mock.patch.object(InSyncReplicas, "epochs_of", epochs_of))
    return stack


def unanswered_proposal_withdrawn() -> AbstractContextManager[object]:
    """A leader that gets no answer takes its proposal for one that was not carried out."""

    def failed(changes: IsrChanges, now_ms: int) -> None:
        in_flight, changes._in_flight = changes._in_flight, {}
        for owner, proposal in in_flight.values():
            owner.isr_refused(proposal, ErrorCode.OPERATION_NOT_ATTEMPTED)

    return mock.patch.object(IsrChanges, "failed", failed)


MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        epoch_check_skipped,
        high_watermark_from_a_diverging_answer,
        committed_instead_of_maximal_isr,
        truncation_to_the_wrong_epochs_end,
        shrunk_isr_counts_at_once,
        high_watermark_moves_below_min_isr,
        lagging_follower_joins,
        earlier_lives_count,
        unanswered_proposal_withdrawn,
    )
}
