"""Timeouts and successors of transactional producers: which producers are fenced, and the last
epochs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.coordinator.transaction.records import Transaction
from kbroker.coordinator.transaction.state import AT_REST, TransactionState
from kbroker.protocol.errors import ErrorCode
from tests.coordinator.transaction.world import OUT, Client, TransactionWorld

S = TransactionState
E = ErrorCode


def test_the_former_producer_is_fenced() -> None:
    world = TransactionWorld()
    zombie, successor = Client(world), Client(world)
    zombie.init()
    zombie.add(OUT)
    assert successor.init() is E.CONCURRENT_TRANSACTIONS
    assert successor.init() is E.NONE
    successor.add(OUT)
    before = world.shard().transactions["tx"]
    assert zombie.end(commit=True) is E.PRODUCER_FENCED
    assert zombie.end(commit=False) is E.PRODUCER_FENCED
    assert zombie.init(keep=True) is E.PRODUCER_FENCED  # and does not abort its successor's
    assert world.shard().transactions["tx"] == before


def test_a_producer_raises_its_own_epoch_and_may_ask_again() -> None:
    world = TransactionWorld()
    client = Client(world)
    client.init()
    identity = client.producer_id, client.epoch
    assert client.init(keep=True) is E.NONE
    assert client.epoch == identity[1] + 1
    client.epoch = identity[1]  # the answer was lost
    assert client.init(keep=True) is E.NONE
    assert client.epoch == identity[1] + 1
    client.epoch = identity[1]
    world.lead()
    known = world.shard().transactions
    known["tx"] = known["tx"]._replace(last_producer_epoch=-1)
    assert client.init(keep=True) is E.PRODUCER_FENCED


def test_epochs_that_are_used_up_bring_a_new_producer_id() -> None:
    world = TransactionWorld()
    world.put(Transaction("tx", 7, 32766, 60_000, S.ONGOING, frozenset({OUT}), client_version=2))
    client = Client(world, version=2, producer_id=7, epoch=32766)
    assert client.end(commit=True) is E.NONE
    assert world.markers == [(OUT, 7, 32767, True)]
    assert (client.producer_id, client.epoch) == (world.last_producer_id, 0)
    again = Client(world, version=2, producer_id=7, epoch=32766)
    assert again.end(commit=True) is E.NONE  # the answer was lost
    assert (again.producer_id, again.epoch) == (world.last_producer_id, 0)
    world.put(Transaction("ty", 9, 32766, 60_000))
    other = Client(world, transactional_id="ty")
    assert other.init() is E.NONE
    assert (other.producer_id, other.epoch) == (world.last_producer_id, 0)


@pytest.mark.parametrize("version", [0, 2])
def test_a_transaction_that_takes_too_long_is_aborted(version: int) -> None:
    world = TransactionWorld()
    client = Client(world, version=version)
    client.init(timeout_ms=15_000)
    client.add(OUT)
    world.timers.advance(15_000)
    assert world.state("tx") is S.ONGOING
    world.timers.advance(10_000)
    assert world.state("tx") is S.COMPLETE_ABORT
    assert world.markers == [(OUT, client.producer_id, client.epoch + 1, False)]
    if version == 0:  # under version 2 an epoch one below is that of a lost answer
        assert client.end(commit=True) is E.PRODUCER_FENCED
    assert client.end(commit=True) in (E.PRODUCER_FENCED, E.INVALID_TXN_STATE)
    assert client.add(OUT) is E.PRODUCER_FENCED


@pytest.mark.parametrize("version", [0, 2])
def test_a_producer_recovers_from_its_timeout(version: int) -> None:
    """As Apache Kafka 4.3.1 answers (KIP-588): with the epoch of before it gets the present one."""
    world = TransactionWorld()
    client = Client(world, version=version)
    client.init(timeout_ms=15_000)
    client.add(OUT)
    world.timers.advance(25_000)
    epoch = client.epoch
    assert client.init(keep=True) is E.NONE
    assert client.epoch == epoch + 1
    assert client.add(OUT) is E.NONE
    assert client.end(commit=True) is E.NONE


def test_a_successor_is_faster_than_a_producer_that_timed_out() -> None:
    world = TransactionWorld()
    client, successor = Client(world), Client(world)
    client.init(timeout_ms=15_000)
    client.add(OUT)
    world.timers.advance(25_000)
    assert successor.init() is E.NONE
    assert client.init(keep=True) is E.PRODUCER_FENCED


def test_the_epoch_of_the_last_fence_is_given_to_no_client() -> None:
    world = TransactionWorld()
    world.put(Transaction("tx", 9, 32766, 15_000))
    client = Client(world, producer_id=9, epoch=32766)
    assert client.add(OUT) is E.NONE
    world.timers.advance(25_000)
    assert world.state("tx") is S.COMPLETE_ABORT
    assert client.init(keep=True) is E.NONE
    assert (client.producer_id, client.epoch) == (world.last_producer_id, 0)


@pytest.mark.parametrize("commit", [True, False])
def test_a_producer_of_the_last_epoch_that_timed_out_goes_on_with_a_new_id(commit: bool) -> None:
    """Its EndTxn is answered like a retry, with the new producer id, not the fence's epoch."""
    world = TransactionWorld()
    world.put(Transaction("tx", 9, 32766, 15_000))
    client = Client(world, version=2, producer_id=9, epoch=32766)
    assert client.add(OUT) is E.NONE
    world.timers.advance(25_000)
    assert world.markers == [(OUT, 9, 32767, False)]
    assert client.end(commit=False) is E.NONE
    assert (client.producer_id, client.epoch) == (world.last_producer_id, 0)
    assert client.add(OUT) is E.NONE
    assert client.end(commit=commit) is E.NONE
    assert world.markers[1:] == [(OUT, client.producer_id, 1, commit)]


def test_a_transaction_waits_for_a_producer_id_to_time_out() -> None:
    world = TransactionWorld()
    world.put(Transaction("tx", 9, 32766, 15_000))
    client = Client(world, version=2, producer_id=9, epoch=32766)
    assert client.add(OUT) is E.NONE
    world.producer_id_error = E.COORDINATOR_LOAD_IN_PROGRESS
    world.timers.advance(25_000)
    assert world.state("tx") is S.ONGOING
    world.producer_id_error = E.NONE
    world.timers.advance(10_000)
    assert world.state("tx") is S.COMPLETE_ABORT


def test_a_successor_of_the_last_epoch_gets_a_new_id() -> None:
    world = TransactionWorld()
    world.put(Transaction("tx", 9, 32766, 15_000))
    client = Client(world, producer_id=9, epoch=32766)
    assert client.add(OUT) is E.NONE
    successor = Client(world)
    assert successor.init() is E.CONCURRENT_TRANSACTIONS
    assert world.shard().transactions["tx"].producer_epoch == 0
    assert successor.init() is E.NONE
    assert (successor.producer_id, successor.epoch) == (world.last_producer_id, 1)


@pytest.mark.parametrize("version", [0, 2])
def test_no_transaction_begins_with_the_last_epoch(version: int) -> None:
    """A fence of an earlier version left the id at that epoch; InitProducerId gives a new id."""
    world = TransactionWorld()
    world.put(Transaction("tx", 9, 32767, 15_000, S.COMPLETE_ABORT))
    client = Client(world, version=version, producer_id=9, epoch=32767)
    assert client.add(OUT) is E.PRODUCER_FENCED
    assert client.init(keep=True) is E.NONE
    assert (client.producer_id, client.epoch) == (world.last_producer_id, 0)


def end_by_timeout(world: TransactionWorld, client: Client) -> None:
    world.timers.advance(25_000)


def end_by_successor(world: TransactionWorld, client: Client) -> None:
    assert Client(world).init() is E.CONCURRENT_TRANSACTIONS


def end_by_commit(world: TransactionWorld, client: Client) -> None:
    assert client.end(commit=True) is E.NONE


def end_by_abort(world: TransactionWorld, client: Client) -> None:
    assert client.end(commit=False) is E.NONE


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("end", [end_by_timeout, end_by_successor, end_by_commit, end_by_abort])
def test_a_transaction_that_began_with_the_last_epoch_ends(
    end: Callable[[TransactionWorld, Client], None], version: int
) -> None:
    """An earlier version let it begin; no higher epoch is left to end it with."""
    world = TransactionWorld()
    began = Transaction("tx", 9, 32767, 15_000, S.ONGOING, frozenset({OUT}), start_ms=0)
    world.put(began._replace(client_version=version))
    client = Client(world, version=version, producer_id=9, epoch=32767)
    end(world, client)
    assert world.markers == [(OUT, 9, 32767, end is end_by_commit)]
    assert world.state("tx") in AT_REST
    again = Client(world, version=version)
    assert again.init() is E.NONE
    assert again.producer_id == world.last_producer_id
    assert again.add(OUT) is E.NONE


def test_unused_ids_expire() -> None:
    world = TransactionWorld()
    client = Client(world)
    client.init()
    world.timers.advance(7 * 86_400_000 - 3_600_000)
    assert "tx" in world.shard().transactions
    world.timers.advance(2 * 3_600_000)
    assert world.shard().transactions == {}
    assert world.replayed().transactions == {}
