"""The memory pool: no ticket gets more than there is, none waits for ever, and they are served in
order.
"""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from kbroker.server.network.memory_pool import MemoryPool, Ticket

LIMIT = 1333
"""Three quarters of it, 999, are for requests."""


class Holder:
    """A caller that takes memory, or waits for it."""

    def __init__(self, pool: MemoryPool, served: list[Holder]) -> None:
        self.pool = pool
        self.held = 0
        self.wanted = 0
        self.served = served
        self.ticket: Ticket | None = None

    def want(self, count: int) -> bool:
        self.wanted = count
        if self.pool.take(count):
            self.held += count
            self.served.append(self)
            return True
        self.ticket = self.pool.wait(count, self.granted, held=self.held)
        if self.held >= self.wanted:
            self.ticket = None
        return self.ticket is None

    def granted(self) -> None:
        self.ticket = None
        self.held += self.wanted
        self.served.append(self)

    def give_back(self) -> None:
        held, self.held = self.held, 0
        self.pool.give_back(held)


def holders(pool: MemoryPool, count: int) -> tuple[list[Holder], list[Holder]]:
    served: list[Holder] = []
    return [Holder(pool, served) for _ in range(count)], served


def test_what_fits_is_there_at_once() -> None:
    pool = MemoryPool(LIMIT)
    assert pool.take(600)
    assert not pool.take(400)
    assert pool.take(399)
    assert (pool.used, pool.requests, pool.peak) == (999, 999, 999)
    pool.give_back(999)
    assert (pool.used, pool.requests, pool.peak) == (0, 0, 999)


def test_the_first_comes_first() -> None:
    """A small request does not overtake a large one, or the large one would wait for ever."""
    pool = MemoryPool(LIMIT)
    (first, large, small), served = holders(pool, 3)
    assert first.want(600)
    assert not large.want(900)
    assert not small.want(10)
    assert pool.waiting == 2
    first.give_back()
    assert served == [first, large, small]
    assert pool.used == 910
    assert not pool.contended


def test_one_that_leaves_lets_the_next_go_on() -> None:
    pool = MemoryPool(LIMIT)
    (first, large, small), served = holders(pool, 3)
    assert first.want(600)
    large.want(900)
    small.want(10)
    assert large.ticket is not None
    pool.withdraw(large.ticket)
    assert served == [first, small]
    pool.withdraw(large.ticket)
    assert pool.used == 610


def test_pressure_is_told_once_and_may_serve_at_once() -> None:
    pool = MemoryPool(LIMIT)
    (idle, one, two), served = holders(pool, 3)
    told: list[int] = []

    def give_back() -> None:
        told.append(pool.used)
        idle.give_back()

    pool.on_pressure = give_back
    idle.want(600)
    one.want(700)
    assert served == [idle, one]
    assert told == [600]
    assert not two.want(500)
    assert told == [600, 700]
    (three, four), _ = holders(pool, 2)
    three.want(1)
    four.want(1)
    assert told == [600, 700], "while somebody waits all know"


def test_charges_hold_up_others() -> None:
    pool = MemoryPool(LIMIT)
    (one,), served = holders(pool, 1)
    pool.charge(1500)
    assert pool.used > pool.limit
    assert not one.want(100)
    pool.release(600)
    assert served == [one]
    assert pool.requests == 100


def test_large_answers_take_turns() -> None:
    pool = MemoryPool(LIMIT)
    served: list[str] = []
    assert pool.take(999)
    assert not pool.is_pressed, "requests do not hold up answers"
    pool.charge(200)
    assert pool.is_pressed
    pool.wait_turn(lambda: served.append("large"))
    pool.wait_turn(lambda: served.append("light"), light=True)
    assert served == ["light"]
    pool.charge(200)
    pool.wait_turn(lambda: served.append("second light"), light=True)
    assert served == ["light"]
    pool.give_back(100)
    assert served == ["light", "second light"]
    pool.release(400)
    assert served == ["light", "second light", "large"]


def test_requests_have_a_share_of_their_own() -> None:
    pool = MemoryPool(LIMIT, request_limit=500)
    (one, two, three), served = holders(pool, 3)
    assert one.want(600), "one that is larger alone gets in by itself"
    assert not two.want(300)
    one.give_back()
    assert served == [one, two]
    assert not three.want(300)
    pool.charge(100)
    two.give_back()
    assert served == [one, two, three]


def test_who_waits_may_hold_only_so_much() -> None:
    pool = MemoryPool(LIMIT)
    (one, two), _ = holders(pool, 2)
    assert one.want(100)
    assert two.want(899)
    assert pool.may_park(100)
    assert not one.want(300)
    assert pool.parked == 100
    assert pool.may_park(66)
    assert not pool.may_park(67)
    assert pool.may_park(0)
    two.give_back()
    assert one.held == 400
    assert pool.parked == 0


def test_a_request_that_is_as_large_as_may_be_gets_its_turn() -> None:
    pool = MemoryPool(LIMIT)
    (parked, large, other), _ = holders(pool, 3)
    assert parked.want(pool.park_limit)
    assert other.want(800)
    assert not large.want(pool.largest_request)
    assert not parked.want(900)
    other.give_back()
    assert large.held == pool.largest_request


def test_what_waits_for_its_turn_is_no_reason_to_wait() -> None:
    pool = MemoryPool(LIMIT)
    pool.charge(pool.answer_limit + 1)
    served: list[int] = []
    held = pool.park_limit // 3
    tickets = []
    for number in range(3):
        assert pool.may_park_answer(held)
        pool.charge(held)
        tickets.append(pool.wait_turn(partial(served.append, number), held=held))
    assert not pool.may_park_answer(held)
    pool.withdraw(tickets[1])
    pool.release(held)
    assert pool.parked_answers == 2 * held
    pool.release(pool.answer_limit + 1)
    assert served == [0, 2]
    assert (pool.parked_answers, pool.used) == (0, 2 * held)


@pytest.mark.parametrize("seed", range(20))
def test_any_order(seed: int) -> None:
    """A random run of many holders: within the limit, in order, and all served in the end."""
    random = Random(seed)
    pool = MemoryPool(LIMIT)
    everybody, served = holders(pool, 30)
    asked: list[Holder] = []
    for _ in range(2000):
        holder = random.choice(everybody)
        if holder.ticket is not None:
            if random.random() < 0.05:
                pool.withdraw(holder.ticket)
                holder.ticket = None
                del asked[max(at for at, each in enumerate(asked) if each is holder)]
        elif holder.held:
            holder.give_back()
        else:
            asked.append(holder)
            holder.want(random.choice((1, 50, 400, 875)))
        assert served == asked[: len(served)], "in the order of asking"
        assert pool.used == pool.requests == sum(each.held for each in everybody)
        assert pool.used <= pool.limit
        assert pool.contended == any(each.ticket for each in everybody)
    for _ in everybody:
        for holder in everybody:
            if holder.ticket is None and holder.held:
                holder.give_back()
    assert not any(holder.ticket for holder in everybody)
    assert pool.used == 0


def test_kept_memory_has_a_share_and_delays_no_request() -> None:
    pool = MemoryPool(LIMIT)
    share = pool.kept_limit
    assert not pool.keep(share + 1)
    assert pool.keep(share)
    assert not pool.keep(1)
    assert pool.used == pool.kept == share
    assert not pool.is_pressed, "answers go on as before"
    assert pool.take(pool.largest_request), "so does the largest request"
    pool.drop(share)
    assert (pool.kept, pool.used) == (0, pool.largest_request)


def test_lent_memory_is_dropped_under_pressure() -> None:
    pool = MemoryPool(LIMIT)
    assert pool.lend(pool.lent_limit)
    assert not pool.lend(1) and not pool.keep(1)
    assert pool.overdrawn == pool.lent_limit - pool.kept_limit
    pool.on_pressure = lambda: pool.drop(pool.overdrawn)
    pool.charge(pool.answer_limit)
    assert not pool.take(pool.largest_request)
    served: list[bool] = []
    pool.wait(pool.largest_request, lambda: served.append(True))
    assert served and pool.overdrawn == 0
    assert pool.kept == pool.kept_limit
    pool.charge(1)
    assert pool.is_short
    assert not pool.lend(1), "only the share, while somebody waits or would"


def test_nothing_more_is_kept_where_the_limit_is_used_up() -> None:
    pool = MemoryPool(LIMIT)
    pool.charge(LIMIT)
    assert not pool.keep(1)
    pool.release(1)
    assert pool.keep(1)


def test_what_is_kept_is_no_answer() -> None:
    pool = MemoryPool(LIMIT)
    assert pool.keep(pool.kept_limit)
    pool.charge(pool.answer_limit)
    assert not pool.is_short
    pool.charge(1)
    assert pool.is_short
