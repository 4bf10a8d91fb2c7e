"""Defects put into replication, each of which the simulation or a comparison with Kafka's decisions
must find: the proof that faults and checks are able to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from unittest import mock

from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.replication.divergence import Truncation
from kbroker.replication.followers import follower
from kbroker.replication.followers.followed_partition import Effect, FollowedPartition
from kbroker.replication.leaders.isr import InSyncReplicas, IsrProposal
from kbroker.replication.leaders.replica_log import ReplicaLog
from kbroker.replication.partition import Partition
from kbroker.replication.reads import partition_read

Mutant = Callable[[], AbstractContextManager[object]]


def epoch_check_skipped() -> AbstractContextManager[object]:
    """A leader looks at the fetch offset of a follower, not at its last fetched epoch (KIP-101)."""
    return mock.patch.object(
        partition_read, "_diverging_epoch", lambda partition, wanted: partition_read.NO_EPOCH
    )


def high_watermark_from_a_diverging_answer() -> AbstractContextManager[object]:
    """A follower takes over the high watermark before it truncates (KAFKA-14704)."""
    original = follower.FollowedPartitions._fetched

    def fetched(
        core: follower.FollowedPartitions,
        followed: FollowedPartition,
        data: FetchResponse.PartitionData,
        now_ms: int,
    ) -> Iterator[Effect]:
        if not data.error_code and data.diverging_epoch.epoch >= 0:
            followed.partition.follower_advanced(data.high_watermark, 0)
        return original(core, followed, data, now_ms)

    return mock.patch.object(follower.FollowedPartitions, "_fetched", fetched)


def committed_instead_of_maximal_isr() -> AbstractContextManager[object]:
    """The high watermark does not wait for a follower that the controller may already count."""

    def propose(replicas: InSyncReplicas, proposal: IsrProposal) -> None:
        replicas.pending = proposal

    return mock.patch.object(InSyncReplicas, "propose", propose)


def known_metadata_end_what_is_pending() -> AbstractContextManager[object]:
    """A leader forgets a proposal when the metadata arrive that it knows from the answer to the one
    before.
    """
    original = InSyncReplicas.place

    def place(in_sync: InSyncReplicas, replicas: Sequence[int], now_ms: int) -> None:
        in_sync.withdraw()
        original(in_sync, replicas, now_ms)

    return mock.patch.object(InSyncReplicas, "place", place)


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


MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        epoch_check_skipped,
        high_watermark_from_a_diverging_answer,
        shrunk_isr_counts_at_once,
        high_watermark_moves_below_min_isr,
    )
}
"""Found by the seeds."""

DECIDED_MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        committed_instead_of_maximal_isr,
        known_metadata_end_what_is_pending,
        truncation_to_the_wrong_epochs_end,
    )
}
"""Rarely or never found by the seeds, which take several faults within a second for them: found
where single decisions are compared, and by the seeds of one leader (`replication/test_isr_races`).
"""
