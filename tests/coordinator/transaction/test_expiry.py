"""Which transactions timed out, which ids expired, and how many of them one turn of the loop acts
on.
"""

from __future__ import annotations

import pytest

from kbroker.coordinator.transaction.expiry import has_expired, has_timed_out
from kbroker.coordinator.transaction.records import Transaction, TransactionRecord
from kbroker.coordinator.transaction.service import TRANSACTION_TOPIC
from kbroker.coordinator.transaction.state import AT_REST, TransactionState
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.protocol.errors import ErrorCode
from tests.coordinator.transaction.world import OUT, Client, TransactionWorld

S = TransactionState
LOG = TopicPartition(TRANSACTION_TOPIC, 0)
START_MS = 1_000
IDS = 1_100
MOST_PER_TURN = 500
WEEK_MS, HOUR_MS, MINUTE_MS = 7 * 86_400_000, 3_600_000, 60_000


def transaction(state: TransactionState) -> Transaction:
    return Transaction("tx", 9, 0, 500, state, start_ms=START_MS, last_update_ms=START_MS)


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize(("age_ms", "is_late"), [(500, False), (501, True)])
def test_an_open_transaction_times_out_after_its_producers_timeout(
    state: TransactionState, age_ms: int, is_late: bool
) -> None:
    one = transaction(state)
    assert has_timed_out(one, START_MS + age_ms) == (is_late and state is S.ONGOING)


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize(("age_ms", "is_old"), [(6_999, False), (7_000, True)])
def test_an_id_without_an_open_transaction_expires(
    state: TransactionState, age_ms: int, is_old: bool
) -> None:
    one = transaction(state)
    assert has_expired(one, START_MS + age_ms, 7_000) == (is_old and state in AT_REST)


def add(world: TransactionWorld, transactional_id: str, state: TransactionState = S.EMPTY) -> None:
    now_ms = world.timers.now_ms()
    partitions = frozenset({OUT}) if state is S.ONGOING else frozenset()
    one = Transaction(transactional_id, 9, 0, 5_000, state, partitions, now_ms, now_ms)
    world.shard().replay(TransactionRecord.of(one, 1))


def record_counts(world: TransactionWorld, start: int = 0) -> list[int]:
    """Of the batches of the log, without so many at its start."""
    return [read_batch_header(batch).record_count for batch in world.log.batches[LOG][start:]]


def written_per_turn(world: TransactionWorld, ms: int) -> list[list[int]]:
    """The records of each batch that each turn of the loop writes during that time."""
    turns: list[list[int]] = []
    end_ms = world.timers.monotonic_ms() + ms
    before = len(world.log.batches[LOG])
    while world.timers.run_next(end_ms):
        turns.append(record_counts(world, before))
        before += len(turns[-1])
    return turns


def test_many_ids_expire_in_turns_with_one_batch_each() -> None:
    world = TransactionWorld()
    for number in range(IDS):
        add(world, f"id-{number}")
    Client(world).init()
    world.timers.wall_jump_ms += WEEK_MS
    turns = written_per_turn(world, HOUR_MS + MINUTE_MS)
    assert max(map(sum, turns)) <= MOST_PER_TURN
    assert max(map(len, turns)) == 1
    assert sum(map(sum, turns)) == IDS + 1
    assert world.shard().transactions == {}


def test_many_transactions_that_time_out_are_aborted_in_turns() -> None:
    world = TransactionWorld()
    for number in range(IDS):
        add(world, f"id-{number}", S.ONGOING)
    world.marker_error = ErrorCode.NOT_LEADER_OR_FOLLOWER  # only aborts are written
    Client(world).init()
    turns = written_per_turn(world, 10_100)
    assert max(map(sum, turns)) <= MOST_PER_TURN
    assert sum(map(sum, turns)) == IDS
    world.marker_error = ErrorCode.NONE
    world.timers.advance(MINUTE_MS)
    assert {world.state(f"id-{number}") for number in range(IDS)} == {S.COMPLETE_ABORT}


def test_a_transaction_that_ends_while_others_are_aborted_is_left_alone() -> None:
    world = TransactionWorld()
    client = Client(world, transactional_id="ended")
    client.init(timeout_ms=5_000)
    assert client.add(OUT) is ErrorCode.NONE
    for number in range(IDS):
        add(world, f"id-{number}", S.ONGOING)
    while not world.markers:
        assert world.timers.run_next(world.timers.monotonic_ms() + MINUTE_MS)
    assert client.end(commit=True) is ErrorCode.NONE
    world.timers.advance(MINUTE_MS)
    assert world.state("ended") is S.COMPLETE_COMMIT
    assert len(world.markers) == IDS + 1


def test_long_ids_expire_in_batches_that_are_small_enough() -> None:
    world = TransactionWorld()
    for number in range(40):
        add(world, f"{number:032000d}")
    Client(world).init()
    world.timers.wall_jump_ms += WEEK_MS
    written_per_turn(world, HOUR_MS + MINUTE_MS)
    assert world.shard().transactions == {}
    assert max(map(len, world.log.batches[LOG])) < 100_000


def test_an_id_that_is_used_while_others_expire_stays() -> None:
    world = TransactionWorld()
    client = Client(world, transactional_id="used")
    client.init()
    for number in range(IDS):
        add(world, f"id-{number}")
    world.timers.wall_jump_ms += WEEK_MS
    assert world.timers.run_next(world.timers.monotonic_ms() + 10_000)  # the check of timeouts
    while len(world.shard().transactions) > IDS:
        assert world.timers.run_next(world.timers.monotonic_ms() + HOUR_MS)
    assert client.init() is ErrorCode.NONE
    world.timers.advance(MINUTE_MS)
    assert world.shard().transactions.keys() == {"used"}


def test_ids_whose_tombstones_are_not_committed_are_busy() -> None:
    world = TransactionWorld()
    Client(world).init()
    add(world, "a")
    world.timers.wall_jump_ms += WEEK_MS
    world.log.delayed = True
    world.timers.advance(HOUR_MS)
    assert world.shard().transactions == {}
    assert record_counts(world)[-1] == 2
    for name in ("a", "tx"):
        assert Client(world, transactional_id=name).init() is ErrorCode.CONCURRENT_TRANSACTIONS
    world.log.commit()
    world.log.delayed = False
    for name in ("a", "tx"):
        assert Client(world, transactional_id=name).init() is ErrorCode.NONE


def test_ids_whose_tombstones_were_refused_expire_later() -> None:
    world = TransactionWorld()
    Client(world).init()
    add(world, "a")
    world.timers.wall_jump_ms += WEEK_MS
    world.log.errors = [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    world.timers.advance(HOUR_MS)
    assert world.shard().transactions.keys() == {"a", "tx"}
    world.log.errors = []
    world.timers.advance(HOUR_MS)
    assert world.shard().transactions == {}
