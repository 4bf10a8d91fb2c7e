"""The in-sync replicas of a partition, as its leader decides on them (KIP-497, KIP-841, KIP-903).

The leader keeps two sets: the committed ISR, which the controller knows, and the maximal ISR, which
also holds the follower that a pending proposal adds. The high watermark waits for the maximal one,
so a member that the controller may already count never lacks a committed record. A proposal that
removes members changes neither set before it is committed.

    committed -> pending      expansion, shrinking: `propose`
    pending -> committed      the controller's answer, newer metadata: `commit`, `withdraw`
    pending -> pending        metadata with the partition epoch of the proposal: `place`

The last row differs from Kafka. Kafka's leader drops a proposal in flight when it receives metadata
whose partition epoch it already knows from the answer to its previous proposal. The high watermark
may then pass a follower that the controller has just added and may elect.

Proposals travel by `isr_changes`; `partition` asks here and moves the high watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from kbroker.model import TopicPartition, Uuid
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.leaders.remote_replica import NO_FETCH_EPOCH, RemoteReplica

UNKNOWN_BROKER_EPOCH: Final = -1
"""An epoch that the controller does not check."""

AWAIT_METADATA: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""Answers to AlterPartition after which only newer metadata tell what the ISR is."""

NOT_CARRIED_OUT: Final = frozenset(
    {ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA}
)
"""Answers to AlterPartition which say that no controller has carried it out or will."""


class ClusterBrokers(Protocol):
    """The other brokers of the cluster, according to this broker's metadata."""

    def live_epoch(self, broker_id: int) -> int | None:
        """The epoch of a broker that is registered and not fenced."""
        ...

    def is_shutting_down(self, broker_id: int) -> bool:
        """Whether the broker is in a controlled shutdown."""
        ...


class LoneBroker:
    """The `ClusterBrokers` of a broker without others."""

    __slots__ = ()

    def live_epoch(self, broker_id: int) -> int | None:
        """No other broker is registered."""
        del broker_id
        return None

    def is_shutting_down(self, broker_id: int) -> bool:
        """No other broker shuts down."""
        del broker_id
        return False


class IsrProposal:
    """An ISR that the leader asks the controller for, in AlterPartition. isr: (broker id, epoch of
    its last fetch) of each member, ascending; the leader's own epoch is filled in when it is sent.
    added: the follower that an expansion adds.
    """

    __slots__ = ("added", "isr", "leader_epoch", "partition_epoch", "topic_id", "topic_partition")

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: Uuid,
        isr: tuple[tuple[int, int], ...],
        *,
        leader_epoch: int,
        partition_epoch: int,
        added: int | None,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.isr = isr
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.added = added

    def __repr__(self) -> str:
        return f"IsrProposal({self.topic_partition}, {self.isr}, epoch {self.partition_epoch})"


class ProposalOwner(Protocol):
    """The partition that made a proposal; `partition.Partition` is one."""

    def isr_committed(
        self,
        proposal: IsrProposal,
        isr: Sequence[int],
        *,
        leader_epoch: int,
        partition_epoch: int,
        now_ms: int,
    ) -> bool: ...
    def isr_refused(self, proposal: IsrProposal, error: ErrorCode) -> None: ...


class ProposalQueue(Protocol):
    """Where proposals go; `isr_changes.IsrChanges` is one."""

    def submit(self, owner: ProposalOwner, proposal: IsrProposal) -> bool:
        """Send a proposal, and tell its owner of the answer. False: an earlier proposal of the
        partition is still unanswered, and this one is not sent.
        """
        ...


class NoProposals:
    """The `ProposalQueue` of a broker that does not send AlterPartition."""

    __slots__ = ()

    def submit(self, owner: ProposalOwner, proposal: IsrProposal) -> bool:
        """Not sent."""
        del owner, proposal
        return False


class IsrPorts(NamedTuple):
    """What a leader needs of the cluster to decide on ISRs; by default that of a lone broker."""

    brokers: ClusterBrokers = LoneBroker()
    proposals: ProposalQueue = NoProposals()


class InSyncReplicas:
    """The followers of one partition that is led here, and its ISR. remotes: by broker id, all
    replicas but the leader. maximal: see the module.
    """

    __slots__ = (
        "_brokers",
        "_lag_max_ms",
        "_node_id",
        "committed",
        "maximal",
        "pending",
        "remotes",
    )

    def __init__(self, node_id: int, brokers: ClusterBrokers, lag_max_ms: int) -> None:
        self._node_id = node_id
        self._brokers = brokers
        self._lag_max_ms = lag_max_ms
        self.remotes: dict[int, RemoteReplica] = {}
        self.committed: frozenset[int] = frozenset()
        self.maximal: frozenset[int] = frozenset()
        self.pending: IsrProposal | None = None

    def assign(self, replicas: Sequence[int], isr: Iterable[int], now_ms: int) -> None:
        """Apply newer metadata. The pending proposal is dropped: the controller has committed it,
        or will refuse its partition epoch as too old.
        """
        self.commit(isr)
        self.place(replicas, now_ms)

    def place(self, replicas: Sequence[int], now_ms: int) -> None:
        """Apply metadata with new replicas but an ISR that is known already. A pending proposal is
        newer than such metadata and is kept, since the controller may commit it. If it names a
        broker that is no longer a replica, it is dropped: the controller will refuse it.
        """
        others = [replica for replica in replicas if replica != self._node_id]
        for replica in others:
            if replica not in self.remotes:
                in_sync = replica in self.committed
                self.remotes[replica] = RemoteReplica(now_ms, in_sync=in_sync)
        for replica in self.remotes.keys() - set(others):
            del self.remotes[replica]
        if self.pending is not None and any(
            member not in replicas for member, _ in self.pending.isr
        ):
            self.withdraw()

    def leadership_began(self, *, leader_end: int, now_ms: int) -> None:
        """This broker stays the leader, in a new epoch."""
        for replica, remote in self.remotes.items():
            in_sync = replica in self.committed
            remote.leader_reelected(leader_end=leader_end, now_ms=now_ms, in_sync=in_sync)

    def follow(self, isr: Iterable[int]) -> None:
        """Forget the followers: another broker leads now, and only it knows their progress."""
        self.remotes = {}
        self.commit(isr)

    def was_at_end(self, replica_id: int, fetch_offset: int, at_ms: int) -> None:
        """A follower fetched at at_ms from fetch_offset, which was the log's end at that time."""
        remote = self.remotes.get(replica_id)
        if remote is not None and remote.log_end_offset == fetch_offset:
            remote.was_at_end(at_ms)

    def is_stale(self, replica_id: int, broker_epoch: int) -> bool:
        """Whether a fetch was sent by a follower's broker before its latest registration (KIP-903).
        Such a fetch must not count.
        """
        live_epoch = self._brokers.live_epoch(replica_id)
        return UNKNOWN_BROKER_EPOCH != broker_epoch < (live_epoch or UNKNOWN_BROKER_EPOCH)

    def is_eligible(self, replica_id: int) -> bool:
        """Whether a follower may join the ISR: its broker is not fenced, does not shut down, and is
        the one that fetched last.
        """
        fetch_epoch = self.remotes[replica_id].broker_epoch
        live_epoch = self._brokers.live_epoch(replica_id)
        return (
            live_epoch is not None
            and fetch_epoch != NO_FETCH_EPOCH
            and fetch_epoch in (UNKNOWN_BROKER_EPOCH, live_epoch)
            and not self._brokers.is_shutting_down(replica_id)
        )

    def lowest_end(self, leader_end: int, now_ms: int) -> int:
        """The log end offset that all members of the maximal ISR have reached, and also all
        caught-up followers that may join it: otherwise the high watermark could keep ahead of them.
        """
        lowest = leader_end
        for replica_id, remote in self.remotes.items():
            if remote.log_end_offset < lowest and (
                replica_id in self.maximal
                or (
                    remote.is_caught_up(
                        leader_end=leader_end, now_ms=now_ms, lag_max_ms=self._lag_max_ms
                    )
                    and self.is_eligible(replica_id)
                )
            ):
                lowest = remote.log_end_offset
        return lowest

    def lowest_start(self, leader_start: int) -> int:
        """The log start offset that all live replicas have reached; -1 while one has not fetched
        from this leader.
        """
        lowest = leader_start
        for replica_id, remote in self.remotes.items():
            if (
                remote.log_start_offset < lowest
                and self._brokers.live_epoch(replica_id) is not None
            ):
                lowest = remote.log_start_offset
        return lowest

    def may_add(self, replica_id: int, *, required_offset: int) -> bool:
        """Whether a follower that fetched is to be proposed as a member: it has everything before
        required_offset, which is the high watermark and the start of this leadership.
        """
        return (
            self.pending is None
            and replica_id not in self.committed
            and self.remotes[replica_id].log_end_offset >= required_offset
            and self.is_eligible(replica_id)
        )

    def lagging(self, leader_end: int, now_ms: int) -> frozenset[int]:
        """The members that have not been caught up for replica.lag.time.max.ms; empty while a
        proposal is pending.
        """
        if self.pending is not None:
            return frozenset()
        return frozenset(
            member
            for member in self.committed
            if member != self._node_id
            and (
                member not in self.remotes
                or not self.remotes[member].is_caught_up(
                    leader_end=leader_end, now_ms=now_ms, lag_max_ms=self._lag_max_ms
                )
            )
        )

    def epochs_of(self, members: frozenset[int]) -> tuple[tuple[int, int], ...]:
        """(broker id, broker epoch) of each member. The epoch of a member that has not fetched from
        this leader is unknown. If its broker restarts, the controller removes it from the ISR,
        which makes the proposal out of date.
        """
        epochs = []
        for member in sorted(members):
            remote = self.remotes.get(member)
            epoch = NO_FETCH_EPOCH if remote is None else remote.broker_epoch
            epochs.append((member, UNKNOWN_BROKER_EPOCH if epoch == NO_FETCH_EPOCH else epoch))
        return tuple(epochs)

    def propose(self, proposal: IsrProposal) -> None:
        """Record a proposal that was submitted: the controller may commit it at any time."""
        self.pending = proposal
        if proposal.added is not None:
            self.maximal = self.committed | {proposal.added}

    def withdraw(self) -> None:
        """Drop the pending proposal: the controller has refused it, or will."""
        self.commit(self.committed)

    def commit(self, isr: Iterable[int]) -> None:
        """Apply an ISR that the controller has committed."""
        self.committed = self.maximal = frozenset(isr)
        self.pending = None
