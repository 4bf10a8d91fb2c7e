"""Every line that Kafka's own leader decided (tests/data/decisions): ISR, high watermark,
AlterPartition, fetches of followers; and rows for what each rule is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.leaders.isr import InSyncReplicas, IsrPorts, IsrProposal
from kbroker.replication.partition import Partition
from kbroker.replication.reads.fetch_set import FetchPartition, FetchSet
from kbroker.replication.reads.partition_read import read_partition
from tests.decisions import Case, cases
from tests.replication.batch_log import BatchLog, offsets_in
from tests.replication.proposals import Brokers, Proposals
from tests.sim.timers import SimTimers

TOPIC_ID = bytes(15) + b"\x01"
NODE_ID = 1
SHOWN_LINES = 5


class AligningPartition(Partition):
    """Kafka takes an offset within a batch for the first one of that batch: a follower's log end,
    and its own high watermark once it is to be moved. Some of the drawn inputs are such offsets;
    real logs end where a batch does, so kbroker does not look.
    """

    __slots__ = ()

    def follower_fetched(self, replica_id: int, *, fetch_offset: int, **options: int) -> bool:
        log: BatchLog = self.log  # type: ignore[assignment]  # of a LeaderCase
        offset = log.align(fetch_offset)
        return super().follower_fetched(replica_id, fetch_offset=offset, **options)

    def _advance(self, now_ms: int) -> bool:
        log: BatchLog = self.log  # type: ignore[assignment]  # of a LeaderCase
        if not self.is_under_min_isr:
            self.high_watermark = log.align(self.high_watermark)
        return super()._advance(now_ms)


class LeaderCase:
    """One line of leader-partitions: a leader to which the steps of the line happen."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self.registered = {int(each): epoch for each, epoch in case["brokerEpochs"].items()}
        self.brokers = Brokers(dict(self.registered))
        self.proposals = Proposals()
        self.timers = SimTimers()
        self.log = BatchLog(folder)
        for epoch, count in case["log"]:
            self.log.append(epoch, count)
        self.log.log_start_offset = case["logStartOffset"]
        self.log.leader_epochs.truncate_from_start(case["logStartOffset"])
        self.partition = AligningPartition(
            TopicPartition("t", 0),
            TOPIC_ID,
            NODE_ID,
            self.log,  # type: ignore[arg-type]  # as much of a log as is asked for
            high_watermark=case["highWatermarkBefore"],
            lag_max_ms=case["replica.lag.time.max.ms"],
            isr_ports=IsrPorts(self.brokers, self.proposals),
        )

    def run(self) -> list[str]:
        """What differs, per step."""
        wrong = []
        previous: Case = {}
        for number, step in enumerate(self.case["steps"]):
            self.timers.time_ms = step["nowMs"]
            self.proposals.sent.clear()
            do = getattr(self, "do_" + step["do"].replace(" ", "_"))
            outcome = do(step, previous)
            outcome |= self.state()
            expected = {key: step.get(key) for key in outcome}
            if expected != outcome:
                differing = {k: (v, expected[k]) for k, v in outcome.items() if v != expected[k]}
                wrong.append(f"step {number} {step['do']}: (kbroker's, Kafka's) {differing}")
            previous = step
        return wrong

    def state(self) -> Case:
        partition = self.partition
        is_committed = partition.high_watermark >= self.log.log_end_offset
        error = "NONE"
        if is_committed and partition.is_acknowledged_under_min_isr:
            error = "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
        return {
            "logEndOffset": self.log.log_end_offset,
            "highWatermark": partition.high_watermark,
            "committedIsr": sorted(partition.isr),
            "maximalIsr": sorted(partition.in_sync.maximal),
            "isInflight": partition.in_sync.pending is not None,
            "partitionEpoch": partition.partition_epoch,
            "ackOfLogEnd": [is_committed, error],
            "sent": [self.sent(each) for each in self.proposals.sent] or None,
        }

    def sent(self, proposal: IsrProposal) -> Case:
        return {
            "newIsrWithEpochs": [
                [member, self.registered[NODE_ID] if member == NODE_ID else epoch]
                for member, epoch in proposal.isr
            ],
            "leaderRecoveryState": 0,
            "leaderEpoch": proposal.leader_epoch,
            "partitionEpoch": proposal.partition_epoch,
        }

    # -- steps ------------------------------------------------------------------------------------

    def do_makeLeader(self, step: Case, previous: Case) -> Case:
        partition, case = self.partition, self.case
        partition_epoch = step["partitionEpoch"]
        if previous and partition_epoch == previous["partitionEpoch"]:
            partition_epoch -= 1  # the file has the epoch afterwards: this order was an old one
        is_new = partition.become_leader(
            leader_epoch=step.get("leaderEpoch", case["leaderEpoch"]),
            partition_epoch=partition_epoch,
            replicas=case["replicas"],
            isr=step.get("isr", case["isr"]),
            min_isr=case["min.insync.replicas"],
            now_ms=step["nowMs"],
        )
        if is_new:
            self.log.leader_epochs.assign(partition.leader_epoch, self.log.log_end_offset)
        return {}

    def do_append(self, step: Case, previous: Case) -> Case:
        if step["acks"] == -1 and self.partition.is_under_min_isr:
            return {"error": "NOT_ENOUGH_REPLICAS"}
        first_offset = self.log.log_end_offset
        self.log.append(self.partition.leader_epoch, step["records"])
        self.partition.after_append(100, step["nowMs"])
        return {"firstOffset": first_offset}

    def do_fetch(self, step: Case, previous: Case) -> Case:
        owner = FetchSet(step["replicaId"])
        owner.replica_epoch = step["replicaEpoch"]
        wanted = FetchPartition(owner, TOPIC_ID, 0)
        wanted.fetch_offset = step["fetchOffset"]
        wanted.max_bytes = 1 << 20
        for name, field in (
            ("lastFetchedEpoch", "last_fetched_epoch"),
            ("currentLeaderEpoch", "current_leader_epoch"),
        ):
            if step[name] is not None:
                setattr(wanted, field, step[name])
        try:
            data = read_partition(self.partition, wanted, 1 << 20, True, self.timers.monotonic_ms())
        except KafkaError as error:
            return {"error": error.code.name}
        diverging = data.diverging_epoch
        records = offsets_in(bytes(data.records or b""))  # type: ignore[arg-type]  # a BatchLog's
        return {
            "error": None,
            "divergingEpoch": [diverging.end_offset, diverging.epoch]
            if diverging.epoch >= 0
            else None,
            "records": None if records is None else list(records),
            "highWatermarkSent": data.high_watermark,
        }

    def do_sleep(self, step: Case, previous: Case) -> Case:
        return {}

    def do_maybeShrinkIsr(self, step: Case, previous: Case) -> Case:
        self.partition.shrink_isr(step["nowMs"])
        return {}

    def do_metadata(self, step: Case, previous: Case) -> Case:
        broker = step["broker"]
        if step["is"] == "epoch":
            self.registered[broker] = step["epoch"]
        self.brokers.shutting_down.discard(broker)
        self.brokers.epochs[broker] = self.registered[broker]
        if step["is"] == "fenced":
            del self.brokers.epochs[broker]
        elif step["is"] == "shuttingDown":
            self.brokers.shutting_down.add(broker)
        return {}

    def do_AlterPartition_answer(self, step: Case, previous: Case) -> Case:
        proposal = self.proposals.unanswered.pop(0)
        error = ErrorCode[step["error"]]
        if error:
            self.partition.isr_refused(proposal, error)
        else:
            self.partition.isr_committed(
                proposal,
                step["isr"],
                leader_epoch=proposal.leader_epoch,
                # the file has the epoch afterwards: an answer that ended nothing was an old one
                partition_epoch=step["partitionEpoch"] - step["isInflight"],
                now_ms=step["nowMs"],
            )
        return {}


def test_every_line_of_a_leader_is_kafkas(tmp_path: Path) -> None:
    wrong, count = [], 0
    for number, case in cases("leader-partitions"):
        count += 1
        wrong += [f"line {number}, {each}" for each in LeaderCase(case, tmp_path).run()]
    assert count == 500
    assert not wrong, "\n".join([f"{len(wrong)} differ", *wrong[:SHOWN_LINES]])


# -- rules, one by one ----------------------------------------------------------------------------

LAG_MS = 100


def in_sync(isr: Sequence[int], epochs: dict[int, int]) -> tuple[InSyncReplicas, Brokers]:
    """The replicas 1 (the leader), 2 and 3."""
    brokers = Brokers(epochs)
    made = InSyncReplicas(NODE_ID, brokers, LAG_MS)
    made.assign((1, 2, 3), isr, 0)
    return made, brokers


def fetched(replicas: InSyncReplicas, replica: int, offset: int, epoch: int) -> None:
    replicas.remotes[replica].fetched(
        fetch_offset=offset, log_start_offset=0, leader_end=10, broker_epoch=epoch, now_ms=0
    )


@pytest.mark.parametrize(
    ("fetch_epoch", "live_epoch", "is_stale"),
    [
        pytest.param(5, 6, True, id="an earlier life"),
        pytest.param(6, 6, False, id="the same"),
        pytest.param(7, 6, False, id="newer than the metadata here"),
        pytest.param(-1, 6, False, id="not told"),
        pytest.param(5, None, False, id="fenced"),
    ],
)
def test_fetches_of_an_earlier_life_are_stale(
    fetch_epoch: int, live_epoch: int | None, is_stale: bool
) -> None:
    replicas, _ = in_sync((1,), {} if live_epoch is None else {2: live_epoch})
    assert replicas.is_stale(2, fetch_epoch) is is_stale


@pytest.mark.parametrize(
    ("fetch_epoch", "live_epoch", "is_shutting_down", "is_eligible"),
    [
        pytest.param(6, 6, False, True, id="well"),
        pytest.param(-1, 6, False, True, id="does not tell its epoch"),
        pytest.param(6, 6, True, False, id="shuts down"),
        pytest.param(6, None, False, False, id="fenced"),
        pytest.param(6, 7, False, False, id="has registered anew"),
        pytest.param(None, 6, False, False, id="has not fetched"),
    ],
)
def test_who_may_join(
    fetch_epoch: int | None, live_epoch: int | None, is_shutting_down: bool, is_eligible: bool
) -> None:
    replicas, brokers = in_sync((1,), {} if live_epoch is None else {2: live_epoch})
    if is_shutting_down:
        brokers.shutting_down.add(2)
    if fetch_epoch is not None:
        fetched(replicas, 2, 10, fetch_epoch)
    assert replicas.is_eligible(2) is is_eligible
    assert replicas.may_add(2, required_offset=10) is is_eligible
    assert not replicas.may_add(2, required_offset=11)


def test_a_member_that_joins_counts_at_once_and_one_that_leaves_until_it_is_committed() -> None:
    replicas, _ = in_sync((1, 2), {2: 6, 3: 6})
    fetched(replicas, 3, 4, 6)

    def proposal(*members: int, added: int | None) -> IsrProposal:
        return IsrProposal(
            TopicPartition("t", 0),
            TOPIC_ID,
            replicas.epochs_of(frozenset(members)),
            leader_epoch=1,
            partition_epoch=1,
            added=added,
        )

    assert proposal(1, 2, 3, added=3).isr == ((1, -1), (2, -1), (3, 6))
    replicas.propose(proposal(1, 2, 3, added=3))
    assert (replicas.committed, replicas.maximal) == ({1, 2}, {1, 2, 3})
    replicas.withdraw()
    assert (replicas.committed, replicas.maximal, replicas.pending) == ({1, 2}, {1, 2}, None)
    replicas.propose(proposal(1, added=None))
    assert (replicas.committed, replicas.maximal) == ({1, 2}, {1, 2})
    assert not replicas.lagging(10, 1_000), "one proposal at a time"
    replicas.commit((1,))
    assert (replicas.committed, replicas.maximal, replicas.pending) == ({1}, {1}, None)


def test_followers_that_caught_up_hold_the_high_watermark_back_if_they_may_join() -> None:
    replicas, brokers = in_sync((1,), {2: 6, 3: 6})
    fetched(replicas, 2, 10, 6)
    fetched(replicas, 3, 4, 6)
    assert replicas.lowest_end(12, LAG_MS) == 10, "3 lags, and 2 was at the end a moment ago"
    assert replicas.lowest_end(12, LAG_MS + 1) == 12
    del brokers.epochs[2]
    assert replicas.lowest_end(12, LAG_MS) == 12, "a fenced broker cannot join"
