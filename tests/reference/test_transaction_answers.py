"""kbroker gives the answers about transactions that Apache Kafka 4.3.1 gave: every request in every
state, by the producer itself and by others. See `test_same_answers`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from kbroker.testing.process import BrokerProcess
from tests.reference.conversation import hold
from tests.reference.step import Step
from tests.reference.test_same_answers import ANSWERS, without_words
from tests.reference.transactions import (
    OVERRIDES,
    lose_held,
    prepared_steps,
    transaction_steps,
    two_directories,
)

pytestmark = pytest.mark.clients

_REPLACED = "a producer that was replaced does not end its successor's transaction"
DEVIATIONS = {
    "stale: raise the epoch v4 as former": _REPLACED,
    "describe stale": _REPLACED,
}
"""Step -> why our answer is another one."""

Answers = dict[str, object]
CONVERSATIONS: dict[str, Callable[[], Iterator[Step]]] = {
    "transactions": transaction_steps,
    "prepared": prepared_steps,
}


def timeless(value: object) -> object:
    """Without the times of markers, which have the broker's clock."""
    if isinstance(value, dict):
        return {
            name: "time" if name == "last_timestamp" else timeless(item)
            for name, item in value.items()
        }
    return [timeless(item) for item in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def recorded() -> dict[str, Answers]:
    return {
        name: json.loads(ANSWERS.with_name(f"{name}.json").read_text())["answers"]
        for name in CONVERSATIONS
    }


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answers]:
    answers = {}
    for name, conversation in CONVERSATIONS.items():
        data = tmp_path_factory.mktemp(name) / "data"
        overrides = OVERRIDES
        if name == "prepared":
            overrides = two_directories(data)
            lose_held(data, lambda extra, data=data: BrokerProcess(data, overrides=extra))
        with BrokerProcess(data, overrides=overrides) as broker:
            held = hold(broker.host, broker.port, conversation=conversation)
        answers[name] = json.loads(json.dumps(held))
    return answers


@pytest.mark.parametrize(
    ("conversation", "name"),
    [(name, step.name) for name, steps in CONVERSATIONS.items() for step in steps()],
)
def test_same_answer(
    conversation: str, name: str, recorded: dict[str, Answers], given: dict[str, Answers]
) -> None:
    assert name in recorded[conversation], "not recorded yet: see record.py"
    kafkas = recorded[conversation][name]
    ours = without_words(given[conversation][name], kafkas)
    if name in DEVIATIONS:
        assert ours != kafkas, f"no deviation any more: {DEVIATIONS[name]}"
    else:
        assert timeless(ours) == timeless(kafkas)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_step_names_are_unique(conversation: str) -> None:
    names = [step.name for step in CONVERSATIONS[conversation]()]
    assert len(names) == len(set(names))
