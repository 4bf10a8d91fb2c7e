"""A broker's coordinators are created when they are needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.coordinator.topics import DeletedTopic
from kbroker.model import ZERO_UUID, TopicPartition
from kbroker.node.broker.late_coordinators import (
    LateGroupListener,
    LateShareListener,
    LateTransactions,
    make_with_leadership,
)
from kbroker.server.services import Coordinators, Late, ShareServices


class Asked:
    """Replaces each coordinator: records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: self.calls.append(name)


class World:
    def __init__(self) -> None:
        self.asked = Asked()
        parts = cast(Any, self.asked)
        self.made: list[str] = []
        self.coordinators: Late[Coordinators] = Late(
            lambda: self._make("coordinators", Coordinators(parts, parts, parts))
        )
        self.share: Late[ShareServices] = Late(
            lambda: self._make("share", ShareServices(parts, parts, parts, parts))
        )

    def _make(self, name: str, part: Any) -> Any:
        self.made.append(name)
        return part


def test_a_part_is_made_once() -> None:
    world = World()
    assert world.made == []
    assert world.coordinators.get() is world.coordinators.get() is world.coordinators.made
    assert world.made == ["coordinators"]


@pytest.mark.parametrize(
    ("topic", "made"),
    [
        ("__consumer_offsets", ["coordinators"]),
        ("__transaction_state", ["coordinators"]),
        ("__share_group_state", ["share"]),
        ("orders", []),
    ],
)
def test_a_partition_that_is_led_here_makes_the_coordinators_of_its_topic(
    topic: str, made: list[str]
) -> None:
    world = World()
    callbacks: list[Any] = []
    replicas: Any = SimpleNamespace(on_leadership=callbacks.append)
    make_with_leadership(world.coordinators, world.share, replicas)
    callbacks[0](TopicPartition(topic, 3), None)
    assert world.made == []
    callbacks[0](TopicPartition(topic, 3), 7)
    callbacks[0](TopicPartition(topic, 4), 7)
    assert world.made == made


def test_deleted_topics_make_nothing_and_are_told_to_what_is_made() -> None:
    world = World()
    groups, share = LateGroupListener(world.coordinators), LateShareListener(world.share)
    deleted = [DeletedTopic("orders", ZERO_UUID)]
    groups.on_topics_deleted(deleted)
    share.on_topics_deleted()
    assert world.made == world.asked.calls == []
    world.coordinators.get()
    world.share.get()
    groups.on_topics_deleted(deleted)
    share.on_topics_deleted()
    assert world.asked.calls == ["on_topics_deleted"] * 2


def test_a_question_about_transactions_makes_the_coordinator() -> None:
    world = World()
    LateTransactions(world.coordinators).partition_for("t")
    assert (world.made, world.asked.calls) == (["coordinators"], ["partition_for"])
