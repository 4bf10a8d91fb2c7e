"""The errors that producers get when a coordinator cannot write, is being loaded or has moved, or
has no producer id: they are retriable, and the state is that of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.coordinator.transaction.records import Transaction
from kbroker.coordinator.transaction.state import TransactionState
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.coordinator.transaction.world import OUT, Client, TransactionWorld

E = ErrorCode
S = TransactionState
REFUSALS = [
    (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
    (E.UNKNOWN_TOPIC_OR_PARTITION, E.COORDINATOR_NOT_AVAILABLE),
    (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
    (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
]


def asked(client: Client) -> dict[str, Callable[[], ErrorCode]]:
    """Requests that write, in an order in which each is allowed."""
    return {
        "init": client.init,
        "add": lambda: client.add(OUT),
        "end": lambda: client.end(commit=True),
        "raise": lambda: client.init(keep=True),
    }


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize(("refusal", "told"), REFUSALS, ids=lambda code: code.name)
def test_a_refused_write_is_asked_again(refusal: ErrorCode, told: ErrorCode, version: int) -> None:
    """As Kafka's codes; UNKNOWN_SERVER_ERROR would end the producer."""
    world = TransactionWorld()
    client = Client(world, version=version)
    for ask in asked(client).values():
        world.log.errors = [refusal]
        assert ask() is told
        assert told.retriable
        world.timers.advance(0)  # it may have to look up in the log what became of the record
        assert ask() is E.NONE
        assert world.replayed().transactions.keys() == world.shard().transactions.keys()


def test_the_transaction_after_one_whose_completion_timed_out_gets_its_markers() -> None:
    """The Complete record is in the log although its append timed out."""
    world = TransactionWorld()
    client = Client(world)
    assert client.init() is E.NONE
    assert client.add(OUT) is E.NONE
    world.log.errors = [E.NONE, E.REQUEST_TIMED_OUT]  # of the decision, and of its completion
    assert client.end(commit=True) is E.NONE
    assert world.state("tx") is S.COMPLETE_COMMIT
    assert client.add(OUT) is E.NONE
    assert client.end(commit=False) is E.NONE
    assert world.state("tx") is S.COMPLETE_ABORT
    assert world.markers == [(OUT, client.producer_id, 0, commit) for commit in (True, False)]


@pytest.mark.parametrize("how", ["loading", "gone"])
def test_a_coordinator_that_is_not_there(how: str) -> None:
    world = TransactionWorld()
    client = Client(world)
    assert client.init() is E.NONE
    assert client.add(OUT) is E.NONE
    world.resign()
    told = E.NOT_COORDINATOR
    if how == "loading":
        world.coordinator.on_leadership(0, world.epoch + 1)
        told = E.COORDINATOR_LOAD_IN_PROGRESS
    for name, ask in asked(client).items():
        assert ask() is told, name
    assert client.verify(OUT) is told
    client.version = 2
    assert client.end(commit=False) is told


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_an_end_is_asked_again_after_a_reload(version: int, commit: bool) -> None:
    """The response is lost, and then the coordinator: the next coordinator gives the same
    response.
    """
    world = TransactionWorld()
    client = Client(world, version=version)
    client.init()
    client.add(OUT)
    before = client.producer_id, client.epoch
    assert client.end(commit=commit) is E.NONE
    after = client.producer_id, client.epoch
    markers = list(world.markers)
    for _ in range(2):
        world.lead()
        client.producer_id, client.epoch = before
        assert client.end(commit=not commit) is E.INVALID_TXN_STATE
        assert client.end(commit=commit) is E.NONE
        assert (client.producer_id, client.epoch) == after
    assert world.markers == markers


class WithoutIds(TransactionWorld):
    """No producer ids are available."""

    def __init__(self) -> None:
        self.answer: Deferred[int] | None = None
        super().__init__()

    def next_producer_id(self) -> Deferred[int]:
        if self.answer is None:
            return Deferred.failed(KafkaError(E.COORDINATOR_LOAD_IN_PROGRESS))
        return self.answer


def test_producer_ids_that_do_not_come() -> None:
    world = WithoutIds()
    assert Client(world).init() is E.COORDINATOR_LOAD_IN_PROGRESS
    assert world.shard().transactions == {}


@pytest.mark.parametrize("lost", [False, True], ids=["leads", "lost"])
def test_producer_ids_that_come_later(lost: bool) -> None:
    world = WithoutIds()
    world.answer = Deferred()
    waiting: Any = Client(world).ask_init()
    assert not waiting.done
    if lost:
        world.resign()
    world.answer.resolve(4711)
    assert E(waiting.value.error_code) is (E.NOT_COORDINATOR if lost else E.NONE)
    if not lost:
        assert waiting.value.producer_id == 4711
        assert world.state("tx") is S.EMPTY


@pytest.mark.parametrize("ended", [False, True], ids=["open", "ended"])
def test_a_producer_id_for_a_timed_out_transaction_comes_later(ended: bool) -> None:
    world = WithoutIds()
    world.put(Transaction("tx", 9, 32766, 15_000))
    client = Client(world, producer_id=9, epoch=32766)
    assert client.add(OUT) is E.NONE
    world.answer = Deferred()
    world.timers.advance(22_000)
    assert world.state("tx") is S.ONGOING
    if ended:
        assert client.end(commit=True) is E.NONE
    world.answer.resolve(4711)
    if ended:
        assert world.markers == [(OUT, 9, 32766, True)]
        assert world.shard().transactions["tx"].producer_id == 9
    else:
        assert world.markers == [(OUT, 9, 32767, False)]
        assert world.shard().transactions["tx"].producer_id == 4711
