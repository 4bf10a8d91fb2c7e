"""The invariants of the quorum, checked after each step of a node: functions that raise
AssertionError, over what all nodes showed so far.

- An epoch has one leader, and all nodes agree who it is. Epochs never go back, not even across a
  restart, behind what a node told others. A high watermark never goes back within a process.
- A node votes once per epoch, across restarts.
- A leader commits only through a record of its own epoch, and what the core counts as flushed is
  durable.
- What is committed is durable on a majority of voters at that time, is the same on all nodes, and
  is in the log of every later leader; so an acknowledged change is never lost.
- A node's voters are those of its log. One that does not lead keeps no request waiting. A leader
  without a majority that fetches gives up.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.quorum import VoteRequest, VoteResponse
from kbroker.quorum.raft.effects import (
    Commit,
    Effect,
    InstallSnapshot,
    PersistState,
    Respond,
    Send,
)
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, VoterSet
from tests.sim.process import SimProcess
from tests.sim.quorum_mirror import LogBatch, LogMirror
from tests.sim.quorum_replica import Proposal, SimReplica, Step

MESSAGES = frozenset({Send, Respond})
VOTES = frozenset({PersistState, Send})
COMMITS = frozenset({Commit, InstallSnapshot})


class Ledger:
    """What was seen so far. leaders: by epoch. committed: all batches, from offset 0 on; values: of
    their records.
    """

    def __init__(self, nodes: Mapping[int, SimReplica]) -> None:
        self._nodes = nodes
        self.leaders: dict[int, int] = {}
        self._votes: dict[tuple[ReplicaKey, int], int] = {}
        self._promised_epochs: dict[ReplicaKey, int] = {}
        self._seen: dict[int, tuple[SimProcess, int, int]] = {}
        self._equal_voters: dict[int, tuple[VoterSet, VoterSet]] = {}
        """By node: those of its core and those of its log, which were compared last."""
        self._led: dict[int, tuple[SimProcess, int]] = {}
        self.led_since_ms: dict[int, int] = {}
        self._leaders_voters: dict[int, tuple[VoterSet, int]] = {}
        """By node: the voters that it had as a leader, and since when."""
        self._value_counts: dict[int, int] = {0: 0}
        self._places: dict[int, int] = {}
        self.lost_logs: dict[ReplicaKey, LogMirror] = {}
        """Of disks that were replaced: what they held was counted before."""
        self._changed_voters: list[tuple[ReplicaKey, int, bool]] = []
        self.committed: list[LogBatch] = []
        self._committed_in: list[int] = []
        """The epoch of the node that was the first to commit each."""
        self.values: list[bytes] = []
        self.acknowledged: list[Proposal] = []

    def check(self, node: SimReplica, step: Step) -> None:
        """After each step: every invariant that the step can have broken. Those about votes and
        about what is committed concern steps with effects of that kind only.
        """
        kinds: set[type[Effect]] = {type(effect) for effect in step.effects}
        is_whole, is_leader = step.is_whole, node.is_leader
        if is_whole:
            self.one_leader_per_epoch(node, is_leader=is_leader)
        self.epochs_and_high_watermarks_are_monotonic(
            node, tells=is_whole and not MESSAGES.isdisjoint(kinds)
        )
        if step.answered or not VOTES.isdisjoint(kinds):
            self.one_vote_per_epoch(node, step)
        if is_whole:
            self.flushed_is_durable(node)
            if is_leader and Commit in kinds:
                self.a_leader_commits_through_its_own_epoch(node, step)
        if not COMMITS.isdisjoint(kinds):
            self.committed_is_the_same_everywhere(node, step)
        if self._changed_voters:
            self.acknowledged_voters_are_committed()
        if is_whole:
            if is_leader:
                self.a_leader_has_what_is_committed(node)
            self.voters_are_those_of_the_log(node)
            if node.unanswered and not is_leader:
                self.only_a_leader_keeps_requests_waiting(node)

    @property
    def committed_end_offset(self) -> int:
        return self.committed[-1].end_offset if self.committed else 0

    # -- leaders, epochs, votes -------------------------------------------------------------------

    def one_leader_per_epoch(self, node: SimReplica, *, is_leader: bool) -> None:
        """No other node leads, or led, the epoch that this node leads or follows."""
        leader_id, node_id = node.leader_id, node.node_id
        if node.process is not None:
            says_that_it_leads = leader_id == node_id
            assert says_that_it_leads == is_leader, (
                f"node {node_id} says that it leads: {says_that_it_leads}, which is wrong"
            )
        if is_leader:
            leader_id = node_id
        if leader_id >= 0:
            epoch = node.epoch
            known = self.leaders.setdefault(epoch, leader_id)
            assert known == leader_id, f"epoch {epoch} has two leaders, {known} and {leader_id}"

    def epochs_and_high_watermarks_are_monotonic(self, node: SimReplica, *, tells: bool) -> None:
        """Within a process; and an epoch that others were told of outlives it. tells: the node has
        sent something.
        """
        process = node.process
        if process is None:
            return
        epoch, high_watermark = node.epoch, node.high_watermark
        seen = self._seen.get(node.node_id)
        if seen is not None and seen[0] is process:
            _, seen_epoch, seen_high_watermark = seen
            if seen_epoch != epoch or seen_high_watermark != high_watermark:
                name = f"node {node.node_id}"
                assert epoch >= seen_epoch, f"{name}: epoch {seen_epoch} -> {epoch}"
                assert high_watermark >= seen_high_watermark, (
                    f"{name}: high watermark {seen_high_watermark} -> {high_watermark}"
                )
                self._seen[node.node_id] = process, epoch, high_watermark
        else:
            promised = self._promised_epochs.get(node.key, 0)
            assert epoch >= promised, f"node {node.node_id} restarts in {epoch}, told {promised}"
            self._seen[node.node_id] = process, epoch, high_watermark
        if tells:
            self._promised_epochs[node.key] = epoch

    def one_vote_per_epoch(self, node: SimReplica, step: Step) -> None:
        """By what is persisted, and by what other nodes were told."""
        for effect in step.effects:
            if isinstance(effect, PersistState) and effect.state.voted_id >= 0:
                self._vote(node, effect.state.epoch, effect.state.voted_id)
            elif isinstance(effect, Send) and isinstance(effect.request, VoteRequest):
                partition = effect.request.topics[0].partitions[0]
                if not partition.pre_vote:
                    self._vote(node, partition.replica_epoch, node.node_id)
        for request, response in step.answered:
            if isinstance(request, VoteRequest) and isinstance(response, VoteResponse):
                asked = request.topics[0].partitions[0] if request.topics else None
                if asked is None or asked.pre_vote or not response.topics:
                    continue
                if response.topics[0].partitions[0].vote_granted:
                    self._vote(node, asked.replica_epoch, asked.replica_id)

    def _vote(self, node: SimReplica, epoch: int, candidate: int) -> None:
        known = self._votes.setdefault((node.key, epoch), candidate)
        name = f"node {node.node_id}"
        assert known == candidate, f"{name} votes for {known} and {candidate} in epoch {epoch}"

    # -- what is committed ------------------------------------------------------------------------

    def flushed_is_durable(self, node: SimReplica) -> None:
        """What the core counts as flushed survives a loss of power."""
        flushed, durable = node.core.quorum.log.flushed_offset, node.log.durable_end_offset
        assert flushed <= durable, (
            f"node {node.node_id} counts offsets to {flushed} as durable, of {durable}"
        )

    def a_leader_commits_through_its_own_epoch(self, node: SimReplica, step: Step) -> None:
        """Records of earlier epochs are committed by one of this epoch (Raft, section 5.4.2)."""
        for effect in step.effects:
            if isinstance(effect, Commit):
                epoch = node.log.epoch_before(effect.high_watermark)
                assert epoch == node.epoch, (
                    f"node {node.node_id}, leader of epoch {node.epoch}, commits offset "
                    f"{effect.high_watermark - 1} of epoch {epoch}"
                )

    def committed_is_the_same_everywhere(self, node: SimReplica, step: Step) -> None:
        """Each batch that a node commits is the one that was committed first at that offset."""
        for effect in step.effects:
            if isinstance(effect, InstallSnapshot):
                self._snapshot(node)
        if any(isinstance(effect, Commit) for effect in step.effects):
            name = f"node {node.node_id}"
            end_offset = node.high_watermark
            assert node.applied_offset == end_offset, f"{name}: {end_offset} is within a batch"
            for batch in node.log.batches_between(node.verified_offset, end_offset):
                self._commit(node, batch, step.voters_before)
            node.verified_offset = max(node.verified_offset, end_offset)
            expected = self.values[: self._value_counts[end_offset]]
            assert node.state == expected, f"{name} has another state at offset {end_offset}"

    def started(self, node: SimReplica) -> None:
        """A process begins with a snapshot, or nothing."""
        self._snapshot(node)

    def _snapshot(self, node: SimReplica) -> None:
        """The state that a node loaded is that of the committed records at that offset."""
        offset = node.applied_offset
        name = f"node {node.node_id}"
        assert offset <= self.committed_end_offset, f"{name}: a snapshot at {offset}, uncommitted"
        assert offset in self._value_counts, f"{name}: a snapshot at {offset}, within a batch"
        expected = self.values[: self._value_counts[offset]]
        assert node.state == expected, f"{name} loads another state at offset {offset}"
        node.verified_offset = offset

    def _commit(self, node: SimReplica, batch: LogBatch, voters_before: VoterSet) -> None:
        name = f"node {node.node_id}"
        place = self._places.get(batch.base_offset)
        if place is not None:
            known = self.committed[place]
            assert known == batch, (
                f"{name} commits offset {batch.base_offset} of epoch {batch.epoch}, "
                f"where epoch {known.epoch} was committed"
            )
            return
        assert batch.base_offset == self.committed_end_offset, (
            f"{name} commits offset {batch.base_offset}, "
            f"but {self.committed_end_offset} was committed up to now"
        )
        logs = {node.key: node.log for node in self._nodes.values()} | self.lost_logs
        durable = [key for key, log in logs.items() if log.holds(batch)]
        enough = any(
            sum(any(voter.matches(key) for key in durable) for voter in voters) >= voters.majority
            for voters in (voters_before, node.voters)
        )
        assert enough, (
            f"{name} commits offset {batch.base_offset}, which is durable on "
            f"{[key.id for key in durable]} "
            f"of the voters {node.voters.ids}"
        )
        self._places[batch.base_offset] = len(self.committed)
        self.committed.append(batch)
        self._committed_in.append(node.epoch)
        self.values += batch.values
        self._value_counts[batch.end_offset] = len(self.values)
        for other in self._nodes.values():
            if other.is_leader and other.epoch > node.epoch:
                self._has_committed(other)

    def a_leader_has_what_is_committed(self, node: SimReplica) -> None:
        """Checked when a node becomes the leader."""
        process = node.process
        if process is None:
            return
        led = process, node.epoch
        if self._led.get(node.node_id) != led:
            self._led[node.node_id] = led
            self.led_since_ms[node.node_id] = node.simulation.elapsed_ms
            self._has_committed(node)

    def _has_committed(self, node: SimReplica) -> None:
        """What was committed in epochs before its own (Raft's Leader Completeness): a vote can
        arrive when another node leads a later epoch already, and has committed there.
        """
        log = node.log
        start = self._places.get(log.start_offset, len(self.committed))
        epochs = enumerate(self._committed_in, 1)
        end = max((count for count, epoch in epochs if epoch < node.epoch), default=0)
        expected = self.committed[start:end]
        assert log.batches[: len(expected)] == expected, (
            f"node {node.node_id} leads epoch {node.epoch} without all committed records"
        )

    def voter_changed(self, key: ReplicaKey, offset: int, *, is_added: bool) -> None:
        """A client was told that a change of the voters is committed, which it asked for when the
        leader's log ended at offset.
        """
        self._changed_voters.append((key, offset, is_added))

    def acknowledged_voters_are_committed(self) -> None:
        """In a step after that of the commit."""
        changed, self._changed_voters = self._changed_voters, []
        for key, offset, is_added in changed:
            sets = [
                batch.voters
                for batch in reversed(self.committed)
                if batch.voters is not None and batch.base_offset >= offset
            ]
            is_there = any(voters.is_voter(key) == is_added for voters in sets)
            assert is_there, f"voter {key}, added: {is_added}, is acknowledged and not committed"

    def acknowledge(self, node: SimReplica, proposal: Proposal) -> None:
        """A client was told that its records are committed."""
        self.acknowledged.append(proposal)

    def acknowledged_is_committed(self) -> None:
        """At the end: each acknowledged change is where it was said to be."""
        for proposal in self.acknowledged:
            place = self._places.get(proposal.base_offset)
            batch = None if place is None else self.committed[place]
            is_kept = batch is not None and (batch.epoch, batch.values) == proposal[2:]
            assert is_kept, f"the acknowledged records at {proposal.base_offset} are lost"

    # -- voters and requests ----------------------------------------------------------------------

    def voters_are_those_of_the_log(self, node: SimReplica) -> None:
        """The newest set in the log counts, committed or not; truncation goes back."""
        expected = node.log.voters()
        if expected is None:
            return
        found = node.voters
        equal = self._equal_voters.get(node.node_id)
        if equal is None or equal[0] is not found or equal[1] is not expected:
            assert found == expected, (
                f"node {node.node_id} has voters {found.ids}, its log {expected.ids}"
            )
            self._equal_voters[node.node_id] = found, expected

    def only_a_leader_keeps_requests_waiting(self, node: SimReplica) -> None:
        """A node that resigned, or never led, answers every request within the step."""
        waiting = [type(each.request).__name__ for each in node.unanswered.values()]
        raise AssertionError(f"node {node.node_id} does not lead and keeps waiting: {waiting}")

    def fetches_are_answered_in_time(self, slack_ms: int) -> None:
        """No Fetch waits longer than it asked for. Checked from time to time."""
        for node in self._nodes.values():
            if not node.is_running:
                continue
            now_ms = node.simulation.elapsed_ms
            for origin in node.unanswered.values():
                if isinstance(origin.request, FetchRequest):
                    waits_ms = now_ms - origin.arrived_ms
                    assert waits_ms <= origin.request.max_wait_ms + slack_ms, (
                        f"node {node.node_id} keeps a Fetch waiting for {waits_ms} ms"
                    )

    def leaders_have_a_majority(self, fetch_timeout_ms: int) -> None:
        """A leader that a majority has not fetched from for twice the quorum check has resigned.
        Checked from time to time: such a leader takes no steps. Other voters may fetch for as long
        from when they are a majority.
        """
        limit_ms = 2 * fetch_timeout_ms * 3 // 2 + fetch_timeout_ms // 4
        for node in self._nodes.values():
            if not node.is_running or not node.is_leader:
                continue
            now_ms, voters = node.simulation.elapsed_ms, node.voters
            former, changed_ms = self._leaders_voters.get(node.node_id, (voters, 0))
            if voters != former:
                changed_ms = now_ms
            self._leaders_voters[node.node_id] = (voters, changed_ms)
            if len(voters) < 2:
                continue
            since_ms = max(self.led_since_ms[node.node_id], changed_ms)
            others = [voter for voter in node.voters.ids if voter != node.node_id]
            needed = node.voters.majority - (node.node_id in node.voters.ids)
            fetched = sorted((node.fetched_ms.get(each, 0) for each in others), reverse=True)
            if needed:
                since_ms = max(since_ms, fetched[needed - 1])
            assert now_ms - since_ms <= limit_ms, (
                f"node {node.node_id} leads epoch {node.epoch} "
                f"without a majority for {now_ms - since_ms} ms"
            )
