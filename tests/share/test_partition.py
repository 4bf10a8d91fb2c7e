"""Share partitions: who gets which records, what becomes of them, and a model by seed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import pairwise
from random import Random

import pytest

from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.share_partition_state import StateBatch
from kbroker.share.acknowledgement import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    STEP_TYPES,
    Acknowledgement,
)
from kbroker.share.acquisition import Acquired, AcquireLimits
from kbroker.share.partition import SharePartition
from kbroker.share.runs import ACKNOWLEDGED, ACQUIRED, ARCHIVED, AVAILABLE, TERMINAL, Change

LIMIT = 5


def limits(max_records: int = 500, **others: int) -> AcquireLimits:
    values = {"batch_size": 500, "max_locks": 2_000, "lock_ms": 1_000, **others}
    return AcquireLimits(
        max_records=max_records,
        batch_size=values["batch_size"],
        is_strict=bool(values.get("is_strict", 0)),
        max_locks=values["max_locks"],
        delivery_limit=LIMIT,
        lock_ms=values["lock_ms"],
    )


def say(partition: SharePartition, first: int, last: int, *types: int, member: str = "m") -> None:
    change = partition.acknowledge(
        member,
        [Acknowledgement(first, last, types)],
        delivery_limit=LIMIT,
        renewed_until_ms=9_000,
    )
    partition.commit(change)


BATCHES = [(0, 2), (3, 5), (6, 8), (9, 11)]


def acquired_by(partition: SharePartition, member_id: str) -> int:
    """How many records a member has acquired."""
    return sum(
        run.last - run.first + 1
        for run in partition._runs
        if run.state == ACQUIRED and run.member == member_id
    )


def test_whole_batches_until_there_are_enough() -> None:
    partition = SharePartition(0)
    assert partition.acquire("m", BATCHES, limits(4), 0) == [Acquired(0, 5, 1)]
    assert partition.next_fetch_offset(2_000) == 6
    assert partition.acquire("m", BATCHES[2:], limits(4, batch_size=2), 0) == [
        Acquired(6, 8, 1),
        Acquired(9, 11, 1),
    ]


def test_exactly_as_many_as_asked_for() -> None:
    partition = SharePartition(0)
    assert partition.acquire("m", BATCHES, limits(4, is_strict=1), 0) == [Acquired(0, 3, 1)]
    assert partition.acquire("m", BATCHES[1:], limits(1, is_strict=1), 0) == [Acquired(4, 4, 1)]


def test_a_member_gets_what_another_gave_back() -> None:
    partition = SharePartition(0)
    partition.acquire("m", BATCHES, limits(), 0)
    say(partition, 3, 5, RELEASE)
    assert partition.next_fetch_offset(2_000) == 3
    assert partition.acquire("n", [(3, 5)], limits(), 0) == [Acquired(3, 5, 2)]
    with pytest.raises(KafkaError) as refused:
        say(partition, 3, 5, ACCEPT)
    assert refused.value.code is ErrorCode.INVALID_RECORD_STATE


def test_the_start_moves_over_what_is_done_with() -> None:
    partition = SharePartition(0)
    partition.acquire("m", BATCHES, limits(), 0)
    say(partition, 3, 5, ACCEPT, REJECT, GAP)
    assert (partition.start_offset, partition.delivery_complete_count) == (0, 3)
    say(partition, 0, 2, ACCEPT)
    assert (partition.start_offset, partition.delivery_complete_count) == (6, 0)
    say(partition, 0, 11, ACCEPT)  # what lies below the start is done with anyway
    assert (partition.start_offset, partition.end_offset, len(partition.batches())) == (12, 12, 0)


def test_all_or_nothing() -> None:
    partition = SharePartition(0)
    partition.acquire("m", BATCHES[:2], limits(), 0)
    for items in (
        [Acknowledgement(0, 1, [ACCEPT]), Acknowledgement(1, 2, [ACCEPT])],
        [Acknowledgement(0, 5, [ACCEPT]), Acknowledgement(6, 6, [ACCEPT])],
    ):
        before = partition.batches()
        with pytest.raises(KafkaError):
            partition.acknowledge("m", items, delivery_limit=LIMIT, renewed_until_ms=0)
        assert partition.batches() == before
    assert acquired_by(partition, "m") == 6


def test_a_change_that_is_not_kept_is_taken_back() -> None:
    partition = SharePartition(0)
    partition.acquire("m", BATCHES[:1], limits(), 0)
    item = Acknowledgement(0, 2, [ACCEPT])
    change = partition.acknowledge("m", [item], delivery_limit=LIMIT, renewed_until_ms=0)
    assert change.batches == [StateBatch(0, 2, ACKNOWLEDGED, 1)]
    assert acquired_by(partition, "m") == 0
    assert partition.expire(5_000, delivery_limit=LIMIT).batches == []  # out of reach
    partition.rollback(change)
    assert acquired_by(partition, "m") == 3
    assert partition.start_offset == 0


def test_locks_end_and_are_renewed() -> None:
    partition = SharePartition(0)
    partition.acquire("m", [(0, 3)], limits(), 0)
    assert partition.next_deadline_ms() == 1_000
    say(partition, 1, 2, RENEW)
    change = partition.expire(1_000, delivery_limit=LIMIT)
    assert change.batches == [StateBatch(0, 0, AVAILABLE, 1), StateBatch(3, 3, AVAILABLE, 1)]
    partition.commit(change)
    assert partition.next_deadline_ms() == 9_000
    assert partition.next_fetch_offset(2_000) == 0


def test_the_last_delivery_archives() -> None:
    partition = SharePartition(0)
    for delivery in range(1, LIMIT + 1):
        assert partition.acquire("m", [(0, 0)], limits(), 0) == [Acquired(0, 0, delivery)]
        assert partition.start_offset == 0
        say(partition, 0, 0, RELEASE)
    assert partition.start_offset == 1


def test_records_near_their_last_delivery_come_with_fewer_others() -> None:
    partition = SharePartition(
        0, [StateBatch(0, 9, AVAILABLE, 3), StateBatch(10, 19, AVAILABLE, 4)]
    )
    assert partition.acquire("m", [(0, 19)], limits(), 0) == [Acquired(0, 4, 4)]
    partition.acquire("m", [(0, 19)], limits(), 0)
    while partition.next_fetch_offset(2_000) != 10:
        partition.acquire("m", [(0, 19)], limits(), 0)
    assert partition.acquire("m", [(0, 19)], limits(), 0) == [Acquired(10, 10, 5)]


def test_no_more_than_may_be_under_way() -> None:
    partition = SharePartition(0)
    batches = [(first, first + 9) for first in range(0, 1_000, 10)]
    partition.acquire("m", batches, limits(max_locks=100), 0)
    assert partition.end_offset == 100
    assert partition.next_fetch_offset(100) is None
    say(partition, 40, 49, RELEASE)
    assert partition.next_fetch_offset(100) == 40
    partition.acquire("m", [(40, 49)], limits(max_locks=100), 0)
    say(partition, 0, 9, ACCEPT)
    assert partition.next_fetch_offset(100) == 100
    assert partition.acquire("m", [(100, 149)], limits(is_strict=1, max_locks=100), 0) == [
        Acquired(100, 109, 1)
    ]


def test_what_is_not_for_readers_is_passed_over() -> None:
    partition = SharePartition(0)
    partition.acquire("m", [(0, 2)], limits(), 0)
    partition.skip(3, 5)
    assert partition.acquire("m", [(6, 8)], limits(), 0) == [Acquired(6, 8, 1)]
    say(partition, 0, 2, ACCEPT)
    assert partition.start_offset == 6


def test_how_many_of_some_offsets_are_available() -> None:
    partition = SharePartition(0)
    partition.acquire("m", [(0, 9)], limits(), 0)
    assert partition.count_available(0, 14) == 5
    item = Acknowledgement(2, 7, [RELEASE])
    change = partition.acknowledge("m", [item], delivery_limit=LIMIT, renewed_until_ms=0)
    assert partition.count_available(0, 9) == 0, "the release is not written yet"
    partition.commit(change)
    ranges = [(0, 1), (0, 4), (3, 6), (6, 20), (8, 9), (12, 12)]
    assert [partition.count_available(*each) for each in ranges] == [0, 3, 4, 13, 0, 1]


def test_the_log_begins_later() -> None:
    partition = SharePartition(0)
    partition.acquire("m", [(0, 9)], limits(), 0)
    item = Acknowledgement(2, 7, [RELEASE])
    change = partition.acknowledge("m", [item], delivery_limit=LIMIT, renewed_until_ms=0)
    partition.log_start_moved(5)
    partition.commit(change)
    assert partition.start_offset == 5
    assert partition.next_fetch_offset(2_000) == 5
    partition.log_start_moved(50)
    assert (partition.start_offset, partition.end_offset) == (50, 50)


def test_kept_states_with_gaps() -> None:
    partition = SharePartition(
        5,
        [
            StateBatch(0, 6, ACKNOWLEDGED, 1),
            StateBatch(9, 9, ARCHIVED, 5),
            StateBatch(10, 10, AVAILABLE, 2),
        ],
    )
    assert (partition.start_offset, partition.end_offset) == (7, 11)
    assert partition.batches() == [
        StateBatch(7, 8, AVAILABLE, 0),
        StateBatch(9, 9, ARCHIVED, 5),
        StateBatch(10, 10, AVAILABLE, 2),
    ]


@pytest.mark.parametrize("seed", range(40))
def test_model(seed: int) -> None:
    """Against one record per offset: states, deliveries and limits agree whatever happens."""
    random = Random(seed)
    partition, now_ms, end = SharePartition(0), 0, 200
    model: dict[int, tuple[int, int]] = {}  # offset -> (state, deliveries) once it was delivered
    done: set[int] = set()
    for _ in range(300):
        now_ms += random.randrange(300)
        member = random.choice("abc")
        what = random.randrange(6)
        if what <= 1:
            offset = partition.next_fetch_offset(100)
            if offset is None or offset >= end:
                continue
            asked = limits(random.randrange(1, 40), is_strict=random.randrange(2), max_locks=100)
            batches = [(first, min(first + 6, end - 1)) for first in range(0, end, 7)]
            wanted = [batch for batch in batches if batch[1] >= offset]
            for piece in partition.acquire(member, wanted, asked, now_ms):
                for record in range(piece.first, piece.last + 1):
                    state, deliveries = model.get(record, (AVAILABLE, 0))
                    assert state == AVAILABLE, "delivered while somebody else has it"
                    assert piece.deliveries == deliveries + 1 <= LIMIT
                    model[record] = (1, piece.deliveries)
            continue
        if what == 2:
            change = partition.expire(now_ms, delivery_limit=LIMIT)
        elif what == 3:
            change = partition.release(member, delivery_limit=LIMIT)
        else:
            first = random.randrange(partition.start_offset, partition.end_offset + 1)
            items = [
                Acknowledgement(first, first + random.randrange(8), [random.choice([1, 2, 3])])
            ]
            try:
                change = partition.acknowledge(
                    member, items, delivery_limit=LIMIT, renewed_until_ms=0
                )
            except KafkaError:
                continue
        if random.random() < 0.2:
            partition.rollback(change)
            continue
        for batch in change.batches:
            for record in range(batch.first_offset, batch.last_offset + 1):
                assert model[record] == (1, batch.delivery_count), "changed by who does not have it"
                assert record not in done, "done with twice"
                model[record] = (batch.delivery_state, batch.delivery_count)
                if batch.delivery_state in TERMINAL:
                    done.add(record)
        partition.commit(change)
        assert all(record in done for record in range(partition.start_offset))
    found = {
        offset: (batch.delivery_state, batch.delivery_count)
        for batch in partition.batches()
        for offset in range(batch.first_offset, batch.last_offset + 1)
    }
    assert found == {offset: at for offset, at in model.items() if offset >= partition.start_offset}


MANY = 6 * STEP_TYPES
MIXED = [ACCEPT, RELEASE, REJECT] * (MANY // 3)


def acquired(count: int = MANY) -> SharePartition:
    """A partition of whose records a member has acquired so many, and others six before them."""
    partition = SharePartition(0)
    partition.acquire("other", [(0, 5)], limits(), 0)
    partition.acquire("m", [(6, count + 5)], limits(10**6), 0)
    return partition


def in_steps(partition: SharePartition, *items: Acknowledgement) -> Generator[None, None, Change]:
    return partition.acknowledge_in_steps("m", items, delivery_limit=LIMIT, renewed_until_ms=9_000)


def finish(steps: Generator[None, None, Change], between: Callable[[], None]) -> Change:
    """All steps, with something else before each of them but the first."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            assert isinstance(end.value, Change)
            return end.value
        between()


@pytest.mark.parametrize("is_single", [False, True])
def test_very_many_records_are_acknowledged_in_steps(is_single: bool) -> None:
    partition, whole = acquired(), acquired()
    items = [Acknowledgement(6, MANY + 5, MIXED)]
    if is_single:
        items = [Acknowledgement(6 + index, 6 + index, [kind]) for index, kind in enumerate(MIXED)]
    expected = whole.acknowledge("m", items, delivery_limit=LIMIT, renewed_until_ms=0)
    counts = [0]
    steps = in_steps(partition, *items)

    def count() -> None:
        counts.append(MANY - acquired_by(partition, "m"))

    change = finish(steps, count)
    assert 5 <= len(counts) <= 13
    assert all(after - before <= STEP_TYPES for before, after in pairwise([*counts, MANY]))
    assert change.batches == expected.batches and len(change.batches) == MANY
    partition.commit(change)
    whole.commit(expected)
    assert partition.batches() == whole.batches()


def test_one_type_for_very_many_runs_is_in_steps() -> None:
    """They differ in how often they were delivered."""
    stored = [StateBatch(n, n, AVAILABLE, n % 2) for n in range(MANY)]
    partition = SharePartition(0, stored)
    while partition.acquire("m", [(0, MANY - 1)], limits(10**6), 0):
        pass
    assert acquired_by(partition, "m") == MANY == len(partition.batches())
    counts = [0]
    steps = in_steps(partition, Acknowledgement(0, MANY - 1, [ACCEPT]))
    change = finish(steps, lambda: counts.append(MANY - acquired_by(partition, "m")))
    assert len(counts) == 7
    assert all(after - before <= STEP_TYPES for before, after in pairwise([*counts, MANY]))
    partition.commit(change)
    assert partition.start_offset == MANY


@pytest.mark.parametrize("is_closed", [False, True])
def test_steps_that_do_not_end_well_change_nothing(is_closed: bool) -> None:
    partition = acquired()
    before, deadline = partition.batches(), partition.next_deadline_ms()
    beyond = Acknowledgement(MANY + 6, MANY + 6, [ACCEPT])
    types = [RENEW, *MIXED[1:]]
    steps = in_steps(partition, Acknowledgement(6, MANY + 5, types), beyond)
    for _ in range(4):
        next(steps)
    assert acquired_by(partition, "m") < MANY
    if is_closed:
        steps.close()
    else:
        with pytest.raises(KafkaError) as raised:
            at_once(steps)
        assert raised.value.code is ErrorCode.INVALID_REQUEST
    assert partition.batches() == before and partition.next_deadline_ms() == deadline
    assert acquired_by(partition, "m") == MANY


def test_a_lock_that_ends_between_two_steps() -> None:
    partition = acquired()
    steps = in_steps(partition, Acknowledgement(6, MANY + 5, MIXED))
    for _ in range(4):
        next(steps)
    done = MANY - acquired_by(partition, "m")
    partition.commit(partition.expire(1_000, delivery_limit=LIMIT))
    with pytest.raises(KafkaError) as raised:
        at_once(steps)
    assert raised.value.code is ErrorCode.INVALID_RECORD_STATE
    assert acquired_by(partition, "m") == done, "their locks end by the next timer"
    assert partition.next_deadline_ms() == 1_000


def test_what_others_do_between_two_steps() -> None:
    """Runs are split, merged and dropped meanwhile."""
    partition, whole = acquired(), acquired()
    types = [RENEW if index % 5 < 2 else kind for index, kind in enumerate(MIXED)]
    item = Acknowledgement(6, MANY + 5, types)
    end = MANY + 5

    def others() -> None:
        nonlocal end
        partition.commit(partition.release("other", delivery_limit=LIMIT))
        partition.acquire("other", [(0, 5), (end + 1, end + 3)], limits(max_locks=10**6), 500)
        end += 3
        partition.rollback(partition.expire(500, delivery_limit=LIMIT))

    change = finish(in_steps(partition, item), others)
    expected = at_once(in_steps(whole, item))
    assert change.batches == expected.batches
    for each, made in ((partition, change), (whole, expected)):
        each.commit(made)
        each.log_start_moved(6)
    found = partition.batches()
    while found[-1].first_offset > MANY + 5:
        found.pop()
    assert found[:-1] == whole.batches()[:-1]
    renewed = sum(kind == RENEW for kind in types)
    assert acquired_by(partition, "m") == acquired_by(whole, "m") == renewed
    for each in (partition, whole):
        assert {run.deadline_ms for run in each._runs if run.member == "m"} == {9_000}


def test_what_the_log_loses_between_two_steps_is_final() -> None:
    partition = acquired()
    steps = in_steps(partition, Acknowledgement(6, MANY + 5, MIXED))
    next(steps)
    partition.log_start_moved(MANY // 2)
    partition.commit(at_once(steps))
    assert partition.start_offset >= MANY // 2
    assert acquired_by(partition, "m") == 0
