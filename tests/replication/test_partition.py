"""Leadership, epochs, ISR and the two ends, with a log that is a few numbers."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.leaders.isr import AWAIT_METADATA, NOT_CARRIED_OUT, IsrPorts, IsrProposal
from kbroker.replication.partition import Partition
from kbroker.replication.purgatory import OffsetWaiter, Purgatory
from tests.replication.number_log import Listener, NumberLog
from tests.replication.proposals import Brokers, Proposals
from tests.sim.timers import SimTimers

ID = bytes(15) + b"\x01"
LAG_MS = 30_000
EPOCH = 9
NOW_MS = 1_000_000


def partition(
    replicas: tuple[int, ...] = (1,),
    *,
    isr: tuple[int, ...] | None = None,
    min_isr: int = 1,
    log: NumberLog | None = None,
    high_watermark: int = 0,
    proposals: Proposals | None = None,
) -> Partition:
    made = Partition(
        TopicPartition("t", 0),
        ID,
        1,
        log or NumberLog(),  # type: ignore[arg-type]  # a log of numbers only
        high_watermark=high_watermark,
        isr_ports=IsrPorts(Brokers({1: EPOCH, 2: EPOCH, 3: EPOCH}), proposals or Proposals()),
    )
    made.become_leader(
        leader_epoch=5,
        partition_epoch=0,
        replicas=replicas,
        isr=replicas if isr is None else isr,
        min_isr=min_isr,
        now_ms=NOW_MS,
    )
    return made


def append(to: Partition, count: int = 1, size: int = 100) -> bool:
    to.log.log_end_offset += count  # type: ignore[misc]  # a NumberLog
    return to.after_append(size, NOW_MS)


def fetched(by: Partition, replica: int, offset: int, now_ms: int = NOW_MS) -> bool:
    return by.follower_fetched(
        replica, fetch_offset=offset, log_start_offset=0, broker_epoch=EPOCH, now_ms=now_ms
    )


def committed(by: Partition, *isr: int, now_ms: int = NOW_MS) -> bool:
    """The controller commits the pending proposal."""
    proposal = by.in_sync.pending
    assert proposal is not None
    assert sorted(isr) == [member for member, _ in proposal.isr]
    return by.isr_committed(
        proposal,
        isr,
        leader_epoch=by.leader_epoch,
        partition_epoch=by.partition_epoch + 1,
        now_ms=now_ms,
    )


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        pytest.param(-1, ErrorCode.NONE, id="says nothing"),
        pytest.param(5, ErrorCode.NONE, id="the same"),
        pytest.param(4, ErrorCode.FENCED_LEADER_EPOCH, id="older"),
        pytest.param(6, ErrorCode.UNKNOWN_LEADER_EPOCH, id="newer"),
    ],
)
def test_epochs_of_a_client(asked: int, answer: ErrorCode) -> None:
    assert partition().check_leader(asked) == answer


def test_a_follower_serves_no_client_but_fences_first() -> None:
    made = partition((1, 2))
    assert made.become_follower(
        leader=2, leader_epoch=6, partition_epoch=1, replicas=(1, 2), isr=(2,)
    )
    assert made.check_leader() == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert made.check_leader(6) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert made.check_leader(5) == ErrorCode.FENCED_LEADER_EPOCH
    assert made.check_leader(7) == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_stale_orders_change_nothing() -> None:
    made = partition()
    assert not made.become_follower(
        leader=2, leader_epoch=4, partition_epoch=9, replicas=(1, 2), isr=(2,)
    )
    assert made.is_leader
    assert made.replicas == (1,)


def test_offline_and_removed() -> None:
    made = partition()
    made.go_offline()
    assert made.check_leader() == ErrorCode.KAFKA_STORAGE_ERROR
    made.remove()
    assert made.check_leader() == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_with_one_replica_all_is_committed_at_once() -> None:
    made = partition()
    assert append(made, 3)
    assert made.high_watermark == made.last_stable_offset == 3
    assert made.log.told[-1] == 3  # type: ignore[attr-defined]  # a NumberLog


def test_a_leader_alone_takes_its_log_end_over() -> None:
    made = partition(log=NumberLog(2, 10), high_watermark=4)
    assert made.high_watermark == 10
    assert made.leader_epoch_start_offset == 10


def test_the_high_watermark_waits_for_the_isr() -> None:
    made = partition((1, 2, 3), isr=(1, 2), log=NumberLog(0, 2))
    assert not append(made, 5)
    assert made.high_watermark == 0
    assert not fetched(made, 3, 0)
    assert made.in_sync.pending is None, "this leadership began at 2"
    assert fetched(made, 2, 3)
    assert made.high_watermark == 3
    assert fetched(made, 2, 7)
    assert made.high_watermark == 7


def test_the_high_watermark_waits_for_who_is_being_admitted() -> None:
    made = partition((1, 2), isr=(1,))
    append(made, 5)
    assert made.high_watermark == 5
    fetched(made, 2, 4)
    assert made.in_sync.pending is None
    fetched(made, 2, 5)
    proposal = made.in_sync.pending
    assert proposal is not None and proposal.isr == ((1, -1), (2, EPOCH))
    append(made, 1)
    assert made.high_watermark == 5
    made.shrink_isr(NOW_MS + LAG_MS + 1)
    assert made.in_sync.pending is proposal, "one at a time"
    assert not committed(made, 1, 2)
    assert fetched(made, 2, 6)
    assert made.high_watermark == 6


@pytest.mark.parametrize("error", sorted(NOT_CARRIED_OUT))
def test_a_proposal_that_was_not_carried_out_is_forgotten(error: ErrorCode) -> None:
    made = partition((1, 2), isr=(1,))
    fetched(made, 2, 0)
    assert made.in_sync.maximal == {1, 2}
    assert made.in_sync.pending is not None
    made.isr_refused(made.in_sync.pending, error)
    assert made.in_sync.maximal == {1}
    assert not append(made)  # who was caught up a moment ago is waited for, to let it join
    assert made.advance(NOW_MS + LAG_MS + 1)


@pytest.mark.parametrize("error", sorted(AWAIT_METADATA))
def test_after_these_errors_only_metadata_end_what_is_pending(error: ErrorCode) -> None:
    proposals = Proposals()
    made = partition((1, 2), isr=(1,), proposals=proposals)
    fetched(made, 2, 0)
    proposal = made.in_sync.pending
    assert proposal is not None
    made.isr_refused(proposal, error)
    assert made.in_sync.pending is proposal
    assert proposals.sent == [proposal]
    made.become_leader(
        leader_epoch=5, partition_epoch=1, replicas=(1, 2), isr=(1,), min_isr=1, now_ms=NOW_MS
    )
    assert made.in_sync.pending is None
    made.isr_refused(proposal, error)
    assert not made.isr_committed(
        proposal, (1, 2), leader_epoch=5, partition_epoch=2, now_ms=NOW_MS
    )
    assert made.isr == {1}, "the answer is out of date"


def ordered(
    to: Partition, partition_epoch: int, *isr: int, replicas: tuple[int, ...] = (1, 2, 3)
) -> None:
    """The metadata bring a state of the same leadership."""
    to.become_leader(
        leader_epoch=5,
        partition_epoch=partition_epoch,
        replicas=replicas,
        isr=isr,
        min_isr=1,
        now_ms=NOW_MS,
    )


def second_proposal_of(made: Partition) -> IsrProposal:
    """The answer to the first proposal has added 2 (partition epoch 1), and the second, which adds
    3, is on its way; the metadata of partition epoch 1 have not arrived yet.
    """
    append(made, 5)
    fetched(made, 2, 5)
    committed(made, 1, 2)
    fetched(made, 3, 5)
    proposal = made.in_sync.pending
    assert proposal is not None and proposal.added == 3
    return proposal


@pytest.mark.parametrize("partition_epoch", [0, 1], ids=["older", "known by the answer"])
def test_metadata_that_bring_nothing_new_do_not_end_what_is_pending(partition_epoch: int) -> None:
    """Else 6 of 6 records are committed here and only 5 on broker 3, which the controller may have
    in the ISR already, and may elect.
    """
    made = partition((1, 2, 3), isr=(1,))
    proposal = second_proposal_of(made)
    append(made, 1)
    ordered(made, partition_epoch, *((1, 2) if partition_epoch else (1,)))
    assert made.in_sync.pending is proposal
    assert (made.isr, made.in_sync.maximal) == ({1, 2}, {1, 2, 3})
    assert not fetched(made, 2, 6, NOW_MS + LAG_MS + 1), "3 is not caught up, and may be a member"
    assert not committed(made, 1, 2, 3, now_ms=NOW_MS + LAG_MS + 1)
    assert made.high_watermark == 5
    assert fetched(made, 3, 6)
    assert made.high_watermark == 6


def test_metadata_with_the_known_epoch_do_not_end_a_shrinking() -> None:
    made = partition((1, 2, 3))
    append(made, 5)
    fetched(made, 2, 5)
    made.shrink_isr(NOW_MS + LAG_MS + 1)
    proposal = made.in_sync.pending
    assert proposal is not None and [member for member, _ in proposal.isr] == [1, 2]
    ordered(made, 0, 1, 2, 3)
    assert made.in_sync.pending is proposal
    assert committed(made, 1, 2)
    assert made.high_watermark == 5


def test_metadata_with_the_known_epoch_bring_replicas_and_min_isr() -> None:
    """The answer that ended a reassignment told the ISR, not that 3 is no replica any more."""
    made = partition((1, 2, 3), isr=(1,))
    second_proposal_of(made)
    ordered(made, 1, 1, 2, replicas=(1, 2))
    assert made.in_sync.pending is None, "the controller refuses it for ever"
    assert (made.isr, made.in_sync.maximal, set(made.remotes)) == ({1, 2}, {1, 2}, {2})
    made.become_leader(
        leader_epoch=5, partition_epoch=1, replicas=(1, 2), isr=(1, 2), min_isr=2, now_ms=NOW_MS
    )
    assert made.min_isr == 2


def test_newer_metadata_end_what_is_pending() -> None:
    made = partition((1, 2, 3), isr=(1,))
    proposal = second_proposal_of(made)
    ordered(made, 2, 1, 2)
    assert made.in_sync.pending is None and made.in_sync.maximal == {1, 2}
    made.isr_refused(proposal, ErrorCode.INVALID_UPDATE_VERSION)
    assert made.in_sync.pending is None


def test_after_other_errors_the_same_is_proposed_again() -> None:
    proposals = Proposals()
    made = partition((1, 2), isr=(1,), proposals=proposals)
    fetched(made, 2, 0)
    proposal = made.in_sync.pending
    assert proposal is not None
    made.isr_refused(proposal, ErrorCode.NOT_CONTROLLER)
    assert proposals.sent == [proposal, proposal]
    assert made.in_sync.pending is proposal


def test_a_proposal_that_cannot_be_sent_now_is_made_again_later() -> None:
    made = Partition(TopicPartition("t", 0), ID, 1, NumberLog())  # type: ignore[arg-type]  # numbers
    made.become_leader(
        leader_epoch=5, partition_epoch=0, replicas=(1, 2), isr=(1, 2), min_isr=1, now_ms=NOW_MS
    )
    append(made)
    made.shrink_isr(NOW_MS + LAG_MS + 1)
    assert made.in_sync.pending is None
    assert made.isr == {1, 2}


@pytest.mark.parametrize(
    ("leader_epoch", "partition_epoch"),
    [pytest.param(6, 1, id="of another leader epoch"), pytest.param(5, -1, id="an older one")],
)
def test_an_answer_that_does_not_fit_changes_nothing(
    leader_epoch: int, partition_epoch: int
) -> None:
    made = partition((1, 2), isr=(1,))
    fetched(made, 2, 0)
    proposal = made.in_sync.pending
    assert proposal is not None
    assert not made.isr_committed(
        proposal,
        (1, 2),
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        now_ms=NOW_MS,
    )
    assert made.isr == {1} and made.in_sync.pending is proposal


def test_who_lags_leaves_the_isr() -> None:
    made = partition((1, 2))
    append(made, 5)
    fetched(made, 2, 2)
    made.shrink_isr(NOW_MS + LAG_MS)
    assert made.in_sync.pending is None
    made.shrink_isr(NOW_MS + LAG_MS + 1)
    assert made.high_watermark == 2
    assert committed(made, 1, now_ms=NOW_MS + LAG_MS + 1)
    assert made.high_watermark == 5


def held_back() -> Partition:
    """The high watermark is at 5 of 6: it waits for 3, which was at the end a moment ago and may
    not join the ISR yet.
    """
    made = partition((1, 2, 3), isr=(1, 2))
    append(made, 5)
    for replica in (2, 3):
        fetched(made, replica, 5)
    proposal = made.in_sync.pending
    assert proposal is not None and proposal.added == 3
    made.isr_refused(proposal, ErrorCode.INELIGIBLE_REPLICA)
    append(made, 1)
    assert made.high_watermark == 5
    return made


def test_the_high_watermark_passes_a_follower_that_lags_when_a_member_fetches() -> None:
    made = held_back()
    assert not fetched(made, 2, 6, NOW_MS + LAG_MS)
    assert fetched(made, 2, 6, NOW_MS + LAG_MS + 1)
    assert made.high_watermark == 6


def test_the_high_watermark_passes_followers_that_lag_when_nothing_is_fetched() -> None:
    made = partition((1, 2), isr=(1,))
    append(made, 5)
    fetched(made, 2, 5)
    assert made.in_sync.pending is not None
    made.isr_refused(made.in_sync.pending, ErrorCode.INELIGIBLE_REPLICA)
    append(made, 1)
    made.shrink_isr(NOW_MS + LAG_MS)
    assert made.high_watermark == 5
    made.shrink_isr(NOW_MS + LAG_MS + 1)
    assert made.high_watermark == 6


def test_records_below_the_high_watermark_lack_replicas_by_the_maximal_isr() -> None:
    made = partition((1, 2), isr=(1,), min_isr=2)
    assert made.is_under_min_isr and made.is_acknowledged_under_min_isr
    fetched(made, 2, 0)
    assert made.is_under_min_isr and not made.is_acknowledged_under_min_isr


def test_who_asks_for_what_was_the_end_counts_as_caught_up_then() -> None:
    made = partition((1, 2))
    append(made, 5)
    fetched(made, 2, 0, now_ms=NOW_MS + 10)
    append(made, 5)
    fetched(made, 2, 5, now_ms=NOW_MS + 20_000)  # the end when it asked at 10
    assert made.remotes[2].last_caught_up_ms == NOW_MS + 10


def test_under_min_isr_nothing_is_committed() -> None:
    made = partition((1, 2, 3), isr=(1, 2, 3), min_isr=2)
    append(made)
    made.become_leader(
        leader_epoch=5, partition_epoch=1, replicas=(1, 2, 3), isr=(1,), min_isr=2, now_ms=0
    )
    assert made.is_under_min_isr
    assert not append(made)
    assert made.high_watermark == 0


def test_min_isr_never_exceeds_the_replicas() -> None:
    made = partition(min_isr=3)
    assert not made.is_under_min_isr
    made.set_min_isr(2)
    assert append(made)


def test_watchers_hear_how_much_came() -> None:
    made = partition((1, 2))
    consumer, follower = Listener(), Listener()
    made.watch(consumer)
    made.watch(follower, log_end=True)
    append(made, 1, 100)
    append(made, 1, 50)
    assert follower.heard == [(100, 100), (50, 50)]
    assert consumer.heard == []
    fetched(made, 2, 2)
    assert consumer.heard == [(150, 150)]
    made.unwatch(consumer)
    made.unwatch(follower)
    assert made.watcher_count == 0


def test_the_last_stable_offset_stops_at_an_open_transaction() -> None:
    made = partition()
    made.log.first_unstable_offset = 2  # type: ignore[misc]  # a NumberLog
    append(made, 5)
    assert (made.high_watermark, made.last_stable_offset) == (5, 2)
    made.log.first_unstable_offset = None  # type: ignore[misc]  # a NumberLog
    append(made, 1)
    assert made.last_stable_offset == 6


def test_an_open_transaction_is_heard_of_when_it_ends() -> None:
    made = partition()
    consumer = Listener()
    made.watch(consumer)
    made.log.first_unstable_offset = 0  # type: ignore[misc]  # a NumberLog
    append(made, 1, 100)
    made.log.first_unstable_offset = None  # type: ignore[misc]  # a NumberLog
    append(made, 1, 50)
    assert consumer.heard == [(100, 0), (50, 150)]


def test_watchers_learn_that_the_leader_has_gone() -> None:
    made = partition((1, 2))
    consumer = Listener()
    made.watch(consumer)
    made.become_follower(leader=2, leader_epoch=6, partition_epoch=1, replicas=(1, 2), isr=(2,))
    assert consumer.lost_count == 1


def test_waiters_for_an_offset_are_ready_in_order() -> None:
    made = partition((1, 2))
    purgatory = Purgatory(SimTimers())
    waiters = []
    for offset in (1, 2, 3):
        append(made)
        waiters.append(OffsetWaiter(purgatory))
        made.wait_for(waiters[-1], offset)
    fetched(made, 2, 2)
    assert [waiter.is_ready for waiter in waiters] == [True, True, False]
    made.become_follower(leader=2, leader_epoch=6, partition_epoch=1, replicas=(1, 2), isr=(2,))
    assert waiters[2].is_ready


@pytest.mark.parametrize("leader_epoch", [6, 7])
def test_only_the_leader_of_the_next_epoch_continues(leader_epoch: int) -> None:
    """If another broker led epoch 6, this follower may have truncated its log to that one's."""
    made = partition((1, 2))
    append(made, 3)
    fetched(made, 2, 2)
    consumer, waiter = Listener(), OffsetWaiter(Purgatory(SimTimers()))
    made.wait_for(waiter, 3)
    made.become_leader(
        leader_epoch=leader_epoch,
        partition_epoch=1,
        replicas=(1, 2),
        isr=(1, 2),
        min_isr=1,
        now_ms=NOW_MS,
    )
    made.watch(consumer)
    continues = leader_epoch == 6
    assert made.high_watermark == 2 and waiter.is_ready is not continues
    assert made.remotes[2].log_end_offset == (2 if continues else -1)
    fetched(made, 2, 3)
    assert made.high_watermark == 3 and waiter.is_ready
    assert consumer.heard == [(100 if continues else 0, 100 if continues else 0)]


STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.sampled_from(["fetch 2", "fetch 3"]), st.integers(0, 5)),
    st.tuples(st.just("open"), st.just(0)),
    st.tuples(st.just("close"), st.just(0)),
    st.tuples(st.just("retention"), st.integers(0, 3)),
    st.tuples(st.just("isr"), st.just(0)),
    st.tuples(st.just("time"), st.integers(1, LAG_MS)),
    st.tuples(st.just("epoch"), st.just(0)),
)


@given(st.lists(STEP, max_size=40), st.integers(1, 3))
def test_the_ends_stay_in_order_whatever_happens(
    steps: list[tuple[str, int]], min_isr: int
) -> None:
    """log start <= last stable <= high watermark <= log end; neither goes back."""
    made = partition((1, 2, 3), min_isr=min_isr)
    log = made.log
    now_ms, epoch = NOW_MS, 5
    for what, number in steps:
        before = made.high_watermark, made.last_stable_offset
        if what == "append":
            append(made, number)
        elif what.startswith("fetch"):
            replica = int(what[-1])
            end = max(made.remotes[replica].log_end_offset, 0)
            fetched(made, replica, min(end + number, log.log_end_offset), now_ms)
        elif what == "open" and log.first_unstable_offset is None:
            log.first_unstable_offset = log.log_end_offset  # type: ignore[misc]  # a NumberLog
            append(made)
        elif what == "close":
            log.first_unstable_offset = None  # type: ignore[misc]  # a NumberLog
            append(made)
        elif what == "retention":
            new_start = min(log.log_start_offset + number, made.high_watermark)
            log.log_start_offset = new_start  # type: ignore[misc]  # a NumberLog
            made.log_start_moved()
        elif what == "isr":
            made.shrink_isr(now_ms)
            if made.in_sync.pending is not None:
                committed(made, *(member for member, _ in made.in_sync.pending.isr), now_ms=now_ms)
        elif what == "time":
            now_ms += number
        elif what == "epoch":
            epoch += 1
            made.become_leader(
                leader_epoch=epoch,
                partition_epoch=made.partition_epoch + 1,
                replicas=(1, 2, 3),
                isr=sorted(made.isr),
                min_isr=min_isr,
                now_ms=now_ms,
            )
        ends = (
            log.log_start_offset,
            made.last_stable_offset,
            made.high_watermark,
            log.log_end_offset,
        )
        assert list(ends) == sorted(ends)
        assert made.high_watermark >= before[0]
        assert made.last_stable_offset >= before[1]
        for replica in made.isr - {1}:
            assert max(made.remotes[replica].log_end_offset, 0) >= made.high_watermark or epoch > 5


@pytest.mark.parametrize("seed", range(20))
def test_commits_alone_is_kept_up_to_date(seed: int) -> None:
    """It stands for what an append would have to look at, whatever was ordered before."""
    random = Random(seed)
    made = partition()
    seen = set()
    for step in range(1, 60):
        replicas = random.choice(((1,), (1, 2), (1, 2, 3)))
        isr = tuple(sorted({1, *random.sample(replicas, random.randint(1, len(replicas)))}))
        epoch = made.leader_epoch + random.randint(0, 1)
        what = random.randrange(6)
        if what < 2:
            made.become_leader(
                leader_epoch=epoch, partition_epoch=step, replicas=replicas, isr=isr,
                min_isr=random.randint(1, 3), now_ms=NOW_MS,
            )  # fmt: skip
        elif what == 2:
            made.become_follower(
                leader=2, leader_epoch=epoch, partition_epoch=step, replicas=(1, 2), isr=(2,)
            )
        elif what == 3:
            made.set_min_isr(random.randint(1, 3))
        elif what == 4:
            proposal = IsrProposal(
                made.topic_partition, ID, (), leader_epoch=0, partition_epoch=step, added=None
            )
            made.in_sync.propose(proposal)
            made.isr_committed(
                proposal,
                isr[: random.randint(0, 1)],
                leader_epoch=made.leader_epoch,
                partition_epoch=step,
                now_ms=NOW_MS,
            )
        else:
            made.go_offline()
        expected = made.is_leader and not made.remotes and len(made.isr) >= made.min_isr
        assert made.commits_alone is expected
        seen.add(expected)
    assert seen == {True, False}
