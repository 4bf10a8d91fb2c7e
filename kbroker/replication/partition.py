"""One replica's view of a partition: leadership, epochs, ISR, high watermark and last stable
offset.

KIP-101 and KIP-320 (leader epochs), KIP-497 (ISR changes go through the controller), KIP-966 (no
progress below min.insync.replicas). A leader moves the high watermark by what its followers have
fetched, a follower by what its leader says.

    offline -> leader | follower      become_leader, become_follower (a newer leader epoch)
    leader <-> follower               the same
    any -> offline                    go_offline (log directory failed, log damaged), remove

This module decides only. The high watermark, the last stable offset and their watchers are in
`replica_ends`, reading in `fetch`. A leader's followers and ISR are in `isr`; what a follower
fetches is decided in `follower`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.metrics import TopicTraffic
from kbroker.model import InvariantError, TopicPartition, Uuid
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.leaders.isr import (
    AWAIT_METADATA,
    NOT_CARRIED_OUT,
    InSyncReplicas,
    IsrPorts,
    IsrProposal,
)
from kbroker.replication.leaders.remote_replica import RemoteReplica
from kbroker.replication.leaders.replica_ends import ReplicaEnds
from kbroker.replication.leaders.replica_log import ReplicaLog
from kbroker.replication.role import NO_LEADER, Role


class Partition(ReplicaEnds):
    """See the module's docstring. Fields are read freely, changed only by the methods."""

    __slots__ = (
        "_proposals",
        "commits_alone",
        "in_sync",
        "leader",
        "leader_epoch",
        "leader_epoch_start_offset",
        "min_isr",
        "node_id",
        "partition_epoch",
        "removed",
        "replicas",
        "role",
        "topic_id",
        "traffic",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: Uuid,
        node_id: int,
        log: ReplicaLog,
        *,
        high_watermark: int = 0,
        lag_max_ms: int = 30_000,
        isr_ports: IsrPorts | None = None,
        traffic: TopicTraffic | None = None,
    ) -> None:
        """traffic: the counts of the topic, which its partitions share."""
        super().__init__(topic_partition, log, high_watermark)
        self.traffic = TopicTraffic() if traffic is None else traffic
        self.topic_id = topic_id
        self.node_id = node_id
        brokers, self._proposals = isr_ports or IsrPorts()
        self.in_sync = InSyncReplicas(node_id, brokers, lag_max_ms)
        self.role = Role.OFFLINE
        self.removed = False
        self.commits_alone = False
        """Whether it leads, has no followers to wait for and satisfies min.insync.replicas."""
        self.leader = NO_LEADER
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.leader_epoch_start_offset = -1
        self.replicas: tuple[int, ...] = ()
        self.min_isr = 1

    # leadership

    def become_leader(
        self,
        *,
        leader_epoch: int,
        partition_epoch: int,
        replicas: Sequence[int],
        isr: Sequence[int],
        min_isr: int,
        now_ms: int,
    ) -> bool:
        """Become the leader, or apply newer metadata of the same leader epoch. Stale orders change
        nothing. An order with the known partition epoch leaves the ISR and its pending proposal as
        they are: the epoch came with the answer to the previous proposal, before the metadata.

        A leader that leads the next epoch as well continues: its log holds what the followers have
        fetched and what waits for them. Requests with acks=all go on waiting, as in Kafka. If
        epochs are missing, another broker may have led one of them, and followers may have
        truncated their logs to its own: that is a new leadership like any other.

        Returns whether this is a new leadership: the caller then assigns leader_epoch to the log's
        end.
        """
        if leader_epoch < self.leader_epoch or partition_epoch < self.partition_epoch:
            return False
        continues = self.role == Role.LEADER and leader_epoch <= self.leader_epoch + 1
        is_new = not continues or leader_epoch > self.leader_epoch
        is_known = not is_new and partition_epoch == self.partition_epoch
        self.commits_alone = False
        self.replicas = tuple(replicas)
        self.partition_epoch = partition_epoch
        self.min_isr = min(min_isr, len(self.replicas)) if self.replicas else min_isr
        self.leader = self.node_id
        if not continues:
            self.in_sync.remotes = {}
        if is_known:
            self.in_sync.place(self.replicas, now_ms)
        else:
            self.in_sync.assign(self.replicas, isr, now_ms)
        if is_new:
            end = self.log.log_end_offset
            self.role = Role.LEADER
            self.leader_epoch = leader_epoch
            self.leader_epoch_start_offset = self._last_end = end
            if continues:
                self.in_sync.leadership_began(leader_end=end, now_ms=now_ms)
            else:
                self._appended.clear()
                self._abandon_waiters()
            self._lose_watchers()
        else:
            for watcher in tuple(self._end_watchers):
                watcher.moved(0, 0)  # a follower may have left the ISR
        self._tell_start_watchers()  # a broker may be down, or no replica any more
        self._settle()
        self.advance(now_ms)
        return is_new

    def become_follower(
        self,
        *,
        leader: int,
        leader_epoch: int,
        partition_epoch: int,
        replicas: Sequence[int],
        isr: Sequence[int],
    ) -> bool:
        """Follow leader (NO_LEADER: there is none). Returns whether anything changed; stale
        orders change nothing.
        """
        if leader_epoch < self.leader_epoch or partition_epoch < self.partition_epoch:
            return False
        changed = self.role != Role.FOLLOWER or leader_epoch > self.leader_epoch
        self.role = Role.FOLLOWER
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.replicas = tuple(replicas)
        self.in_sync.follow(isr)
        self.commits_alone = False
        self._tell_start_watchers()
        if changed:
            self._appended.clear()
            self._abandon_waiters()
            self._lose_watchers()
        return changed

    def go_offline(self) -> None:
        """The log directory failed, or the log is damaged: new and waiting requests get
        KAFKA_STORAGE_ERROR.
        """
        self.role = Role.OFFLINE
        self.commits_alone = False
        self._tell_start_watchers()
        self._abandon_waiters()
        self._lose_watchers()

    def remove(self) -> None:
        """This replica is no longer hosted here."""
        self.removed = True
        self.go_offline()

    def set_min_isr(self, min_isr: int) -> None:
        """Apply a changed min.insync.replicas, capped at the number of replicas: a larger one could
        never be met.
        """
        self.min_isr = min(min_isr, len(self.replicas)) if self.replicas else min_isr
        self._settle()

    def _settle(self) -> None:
        """Called when the role, the followers, the ISR or min.insync.replicas may have changed."""
        self.commits_alone = (
            self.role == Role.LEADER and not self.remotes and not self.is_under_min_isr
        )

    # checks

    @property
    def is_leader(self) -> bool:
        return self.role == Role.LEADER

    def check_leader(self, current_leader_epoch: int = -1) -> ErrorCode:
        """Whether a request may be served here. current_leader_epoch: what the client knows, -1 if
        it does not say.

        An older epoch is fenced even if this broker does not lead. A newer one means that this
        broker's metadata are out of date.
        """
        if self.role == Role.OFFLINE:
            return (
                ErrorCode.NOT_LEADER_OR_FOLLOWER if self.removed else ErrorCode.KAFKA_STORAGE_ERROR
            )
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if self.role == Role.LEADER else ErrorCode.NOT_LEADER_OR_FOLLOWER

    @property
    def remotes(self) -> dict[int, RemoteReplica]:
        """The followers of a partition that is led here, by broker id."""
        return self.in_sync.remotes

    @property
    def isr(self) -> frozenset[int]:
        """The committed ISR."""
        return self.in_sync.committed

    @property
    def is_under_min_isr(self) -> bool:
        """Whether the committed ISR is too small for appends with acks=all, and for the high
        watermark to move (KIP-966).
        """
        return len(self.in_sync.committed) < self.min_isr

    @property
    def is_acknowledged_under_min_isr(self) -> bool:
        """Whether records that the high watermark passed lack replicas by now."""
        return len(self.in_sync.maximal) < self.min_isr

    # appends and fetches

    def after_append(self, size_bytes: int, now_ms: int) -> bool:
        """The leader appended size_bytes. Wakes the fetches that wait for it. Returns whether the
        high watermark moved. now_ms: unused without `remotes`.
        """
        log = self.log
        end = log.log_end_offset
        if end < self._last_end:
            raise InvariantError(
                f"{self.topic_partition}: log end went back from {self._last_end} to {end}"
            )
        self._last_end = end
        if self._end_watchers:
            for watcher in tuple(self._end_watchers):
                watcher.moved(size_bytes, size_bytes)
        if self.commits_alone:
            if self._watchers or self._offset_waiters or log.on_high_watermark(end) is not None:
                self._move_high_watermark(end, size_bytes)
            else:  # no waiter, and no open transaction
                self.high_watermark = self.last_stable_offset = end
                self._stable_bytes = 0
            return True
        self._appended.add(end, size_bytes)
        return self._advance(now_ms)

    def follower_fetched(
        self,
        replica_id: int,
        *,
        fetch_offset: int,
        log_start_offset: int,
        broker_epoch: int,
        now_ms: int,
    ) -> bool:
        """A follower fetched from fetch_offset, so it has all records before it. Proposes it as a
        member of the ISR if it caught up. Returns whether the high watermark moved.

        replica_id: one of `remotes`. broker_epoch: not `in_sync.is_stale`.
        """
        in_sync = self.in_sync
        remote = in_sync.remotes[replica_id]
        previous_end = remote.log_end_offset
        has_new_start = remote.log_start_offset != log_start_offset
        remote.fetched(
            fetch_offset=fetch_offset,
            log_start_offset=log_start_offset,
            leader_end=self.log.log_end_offset,
            broker_epoch=broker_epoch,
            now_ms=now_ms,
        )
        if replica_id not in in_sync.committed:
            required_offset = max(self.high_watermark, self.leader_epoch_start_offset)
            if in_sync.may_add(replica_id, required_offset=required_offset):
                self._propose(self.isr | {replica_id}, added=replica_id)
        if has_new_start:
            self._tell_start_watchers()
        # also without a new end: a follower outside the ISR may hold nothing back any more
        is_open = remote.log_end_offset != previous_end or self.high_watermark < fetch_offset
        return is_open and self._advance(now_ms)

    def advance(self, now_ms: int) -> bool:
        """Move the high watermark as far as the replicas allow. Returns whether it moved."""
        return self.role == Role.LEADER and self._advance(now_ms)

    def _advance(self, now_ms: int) -> bool:
        if self.is_under_min_isr:
            return False
        candidate = self.in_sync.lowest_end(self.log.log_end_offset, now_ms)
        if candidate <= self.high_watermark:
            return False
        self._move_high_watermark(candidate, self._appended.take_below(candidate))
        return True

    # the ISR

    def shrink_isr(self, now_ms: int) -> None:
        """Propose an ISR without the members that lag, if there are any (Kafka's maybeShrinkIsr);
        otherwise the high watermark may pass followers that began to lag before they joined. Called
        every half of replica.lag.time.max.ms.
        """
        if self.role != Role.LEADER or not self.in_sync.remotes:
            return
        lagging = self.in_sync.lagging(self.log.log_end_offset, now_ms)
        if lagging:
            self._propose(self.isr - lagging, added=None)
        else:
            self._advance(now_ms)

    def _propose(self, isr: frozenset[int], *, added: int | None) -> None:
        proposal = IsrProposal(
            self.topic_partition,
            self.topic_id,
            self.in_sync.epochs_of(isr),
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            added=added,
        )
        self.in_sync.propose(proposal)
        self._submit(proposal)

    def _submit(self, proposal: IsrProposal) -> None:
        if not self._proposals.submit(self, proposal):
            self.in_sync.withdraw()

    def isr_committed(
        self,
        proposal: IsrProposal,
        isr: Sequence[int],
        *,
        leader_epoch: int,
        partition_epoch: int,
        now_ms: int,
    ) -> bool:
        """The controller carried out a proposal, or found it carried out. Returns whether the high
        watermark moved. An answer that newer metadata overtook changes nothing.
        """
        if (
            proposal is not self.in_sync.pending
            or leader_epoch != self.leader_epoch
            or partition_epoch < self.partition_epoch
        ):
            return False
        self.in_sync.commit(isr)
        self.partition_epoch = partition_epoch
        self._settle()
        return self.advance(now_ms)

    def isr_refused(self, proposal: IsrProposal, error: ErrorCode) -> None:
        """The controller answered a proposal with an error. The committed ISR stands only if no
        controller can have carried it out; otherwise the proposal stays pending until newer
        metadata arrive, or is sent again.
        """
        if proposal is not self.in_sync.pending:
            return
        if error in NOT_CARRIED_OUT:
            self.in_sync.withdraw()
        elif error not in AWAIT_METADATA:
            self._submit(proposal)
