"""When `node.loop.garbage` freezes and when it walks. The collector is one per process, and so is
what it has frozen: each test has a process of its own, where nothing of earlier tests is freed.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import weakref
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import pytest

from kbroker.node.loop import garbage
from kbroker.node.loop.garbage import CollectorPolicy


def in_fresh_process(test: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        if multiprocessing.parent_process() is not None:
            test()
            return
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as fresh:
            fresh.submit(run).result()

    return run


@in_fresh_process
def test_what_outlives_a_full_collection_is_walked_by_no_later_one() -> None:
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    policy = CollectorPolicy()
    try:
        policy.begin()
        before = gc.get_freeze_count()
        assert before > frozen
        few: list[list[int]] = [[] for _ in range(garbage.FREEZE_OBJECTS // 2)]
        gc.collect()
        assert gc.get_freeze_count() == before
        many: list[list[int]] = [[] for _ in range(garbage.FREEZE_OBJECTS)]
        gc.collect()
        assert gc.get_freeze_count() > before + len(few) + len(many)
    finally:
        end(policy, thresholds)


@in_fresh_process
def test_frozen_objects_do_not_delay_the_first_full_collection() -> None:
    """The collector waits for a quarter as many objects as the last full collection left."""
    thresholds, policy = gc.get_threshold(), CollectorPolicy()
    kept: list[list[int]] = [[] for _ in range(400_000)]
    gc.collect()
    full: list[int] = []

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            full.append(len(new))

    new: list[list[int]] = []
    try:
        policy.begin()
        gc.callbacks.append(count)
        while not full:
            new.append([])
        assert len(new) < 30_000
    finally:
        gc.callbacks.remove(count)
        end(policy, thresholds)
    assert len(kept) == 400_000


@in_fresh_process
def test_enabled_it_walks_none_of_the_objects_there_were() -> None:
    kept: list[list[int]] = [[] for _ in range(1000)]
    gc.disable()
    frozen = gc.get_freeze_count()
    try:
        CollectorPolicy().enable()
        assert gc.isenabled()
        assert gc.get_freeze_count() >= frozen + len(kept)
        assert not gc.get_objects(generation=2)
    finally:
        gc.enable()
        gc.unfreeze()


class Part:
    other: Part


def circle() -> weakref.ref[Part]:
    one, other = Part(), Part()
    one.other, other.other = other, one
    return weakref.ref(one)


def end(policy: CollectorPolicy, thresholds: tuple[int, int, int]) -> None:
    gc.callbacks.remove(policy.freeze_survivors)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


class Looks:
    """The timer of `collect_when_grown`."""

    def __init__(self) -> None:
        self.planned: list[Callable[[], None]] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        assert seconds == garbage.GROWTH_LOOK_SECONDS
        self.planned.append(callback)

    def look(self) -> None:
        self.planned.pop()()
        assert len(self.planned) == 1


@in_fresh_process
def test_a_frozen_cycle_is_collected_once_the_frozen_objects_have_doubled() -> None:
    """However busy the broker is. Collections are started here only."""
    thresholds, policy, looks = gc.get_threshold(), CollectorPolicy(), Looks()
    patch = pytest.MonkeyPatch()
    policy.collect_when_grown(looks.call_later)
    gc.disable()
    try:
        gc.collect()
        lost = circle()
        policy.begin()
        known = gc.get_freeze_count()
        patch.setattr(garbage, "WALK_OBJECTS", 3 * garbage.FREEZE_OBJECTS)
        kept: list[list[list[int]]] = []
        limit = max(known, garbage.WALK_OBJECTS)
        while gc.get_freeze_count() < known + limit:
            for _ in range(garbage.GROWTH_LOOKS):
                looks.look()
            assert lost() is not None, "they have not doubled"
            kept.append([[] for _ in range(garbage.FREEZE_OBJECTS)])
            gc.collect()
        for _ in range(garbage.GROWTH_LOOKS - 1):
            looks.look()
        assert lost() is not None, "the growth may be a request under way"
        looks.look()
        assert lost() is None
        died = 100  # at most: the circle, and what the start of this process left in circles
        assert gc.get_freeze_count() > known + len(kept) * garbage.FREEZE_OBJECTS - died
        lost = circle()
        gc.freeze()
        for _ in range(garbage.GROWTH_LOOKS):
            looks.look()
        assert lost() is not None, "the next walk is due when they have doubled again"
    finally:
        gc.enable()
        end(policy, thresholds)


@in_fresh_process
def test_what_was_frozen_and_is_freed_since_makes_no_walk() -> None:
    thresholds, policy, looks = gc.get_threshold(), CollectorPolicy(), Looks()
    patch = pytest.MonkeyPatch()
    policy.collect_when_grown(looks.call_later)
    gc.disable()
    try:
        gc.collect()
        policy.begin()
        known = gc.get_freeze_count()
        lost = circle()
        gc.freeze()
        patch.setattr(garbage, "WALK_OBJECTS", garbage.FREEZE_OBJECTS)
        for _ in range(3 * garbage.GROWTH_LOOKS):
            many: list[list[int]] = [[] for _ in range(known + garbage.FREEZE_OBJECTS)]
            gc.collect()
            assert gc.get_freeze_count() >= 2 * known
            for _ in range(garbage.GROWTH_LOOKS - 1):
                looks.look()
            del many
            looks.look()
        assert lost() is not None
    finally:
        gc.enable()
        end(policy, thresholds)


@in_fresh_process
def test_frozen_objects_are_counted_once_the_growth_has_lasted() -> None:
    """To count a million takes 50 ms."""
    thresholds, policy, looks = gc.get_threshold(), CollectorPolicy(), Looks()
    patch = pytest.MonkeyPatch()
    counted: list[int] = []
    count = gc.get_freeze_count
    policy.collect_when_grown(looks.call_later)
    try:
        gc.collect()
        policy.begin()
        limit = count()
        patch.setattr(garbage, "WALK_OBJECTS", limit)
        patch.setattr(gc, "get_freeze_count", lambda: counted.append(0) or count())
        for _ in range(2 * garbage.GROWTH_LOOKS):
            looks.look()
        many: list[list[int]] = [[] for _ in range(limit + garbage.FREEZE_OBJECTS)]
        for _ in range(garbage.GROWTH_LOOKS - 1):
            looks.look()
        assert not counted
        gc.collect()
        looks.look()
        assert counted and many
    finally:
        patch.undo()
        end(policy, thresholds)


@in_fresh_process
def test_at_rest_a_frozen_cycle_is_collected() -> None:
    planned: list[Callable[[], None]] = []
    resting = False

    def call_later(seconds: float, callback: Callable[[], None]) -> None:
        assert seconds == garbage.REST_LOOK_SECONDS
        planned.append(callback)

    CollectorPolicy().collect_at_rest(call_later, lambda: resting)
    gc.disable()
    try:
        lost = circle()
        many: list[list[int]] = [[] for _ in range(garbage.FREEZE_OBJECTS)]
        gc.freeze()
        gc.collect()
        assert lost() is not None
        planned.pop()()
        assert lost() is not None, "somebody waits"
        resting = True
        planned.pop()()
        assert lost() is None
        lost = circle()
        gc.freeze()
        planned.pop()()
        assert lost() is not None, "little was frozen since"
        assert len(planned) == 1 and many
    finally:
        gc.enable()
        gc.unfreeze()
