"""Altered settings on their way to the active controller: in which parts, and one after the other
or all at once.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, cast

import pytest

from kbroker.broker.alteration_parts import AlterationParts
from kbroker.broker.controller_channel import ALTERATIONS_PER_PART, LOCAL_LIMITS
from kbroker.broker.remote.remote_controller_channel import (
    FORWARDED_ALTERATIONS,
    FORWARDED_BYTES,
    FORWARDED_LIMITS,
)
from kbroker.controller.configs.configs import (
    ALTERED,
    Alteration,
    AlterationOutcome,
    Alterations,
    AlteredResource,
)
from kbroker.model import ClientIdentity
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.tables.keys import ResourceType

CLIENT = ClientIdentity("User:alice", "10.0.0.1")
REFUSED = AlterationOutcome(ErrorCode.INVALID_CONFIG, "no such setting")


class Controller:
    """Keeps what it is asked for, and answers when the test says so."""

    def __init__(self, *, is_remote: bool) -> None:
        self.alteration_limits = FORWARDED_LIMITS if is_remote else LOCAL_LIMITS
        self.asked: list[Alterations] = []
        self.answers: list[Deferred[list[AlterationOutcome]]] = []

    def alter_configs(
        self, request: Alterations, client: ClientIdentity
    ) -> Deferred[list[AlterationOutcome]]:
        assert client is CLIENT
        self.asked.append(request)
        self.answers.append(Deferred())
        return self.answers[-1]

    def answer(self) -> None:
        """Refuses the settings of a topic whose name begins with "bad"."""
        outcomes = [
            REFUSED if each.name.startswith("bad") else ALTERED for each in self.asked[-1].resources
        ]
        self.answers[-1].resolve(outcomes)


def parts_to(controller: Controller) -> AlterationParts:
    return AlterationParts(
        cast(Any, controller),
        CLIENT,
        incremental=True,
        validate_only=False,
        from_broker=True,
        max_bytes=1 << 20,
    )


def topic(name: str, *, settings: int = 1, value: str = "1") -> AlteredResource:
    alterations = [Alteration(f"k{number}", 0, value) for number in range(settings)]
    return AlteredResource(ResourceType.TOPIC, name, alterations)


def altered(parts: AlterationParts, resources: list[AlteredResource]) -> Generator[Any, None, Any]:
    for place, resource in enumerate(resources):
        yield from parts.add(place, resource)
    found = yield from parts.outcomes()
    return {place: outcome for one in found for place, outcome in one}


def test_another_node_gets_one_part_after_the_other() -> None:
    controller = Controller(is_remote=True)
    half = FORWARDED_ALTERATIONS // 2
    resources = [topic("a", settings=half), topic("bad", settings=half), topic("c")]
    steps = altered(parts_to(controller), resources)
    assert next(steps) is controller.answers[0]
    assert [each.name for each in controller.asked[0].resources] == ["a"]
    controller.answer()
    assert next(steps) is controller.answers[1]
    assert [each.name for each in controller.asked[1].resources] == ["bad", "c"]
    controller.answer()
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == {0: ALTERED, 1: REFUSED, 2: ALTERED}


def test_the_controller_of_this_node_gets_all_parts_at_once() -> None:
    controller = Controller(is_remote=False)
    resources = [topic(f"t{number}") for number in range(ALTERATIONS_PER_PART)]
    steps = altered(parts_to(controller), resources)
    assert [next(steps), next(steps)] == [None, None]
    assert [len(each.resources) for each in controller.asked] == [ALTERATIONS_PER_PART // 2] * 2
    assert next(steps) is controller.answers[0]


def test_a_part_for_another_node_is_bounded_in_bytes() -> None:
    controller = Controller(is_remote=True)
    large = topic("large", value="x" * (FORWARDED_BYTES - 100))
    steps = altered(parts_to(controller), [large, topic("t", value="x" * 100)])
    assert next(steps) is controller.answers[0]
    assert [each.name for each in controller.asked[0].resources] == ["large"]


def test_a_resource_that_no_envelope_holds_is_refused() -> None:
    parts = parts_to(Controller(is_remote=True))
    with pytest.raises(KafkaError) as refused:
        next(altered(parts, [topic("t", value="x" * (1 << 20))]))
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
