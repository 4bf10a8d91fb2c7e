"""kbroker gives the answers that Apache Kafka 4.3.1 gave to the same conversation.

The answers were recorded by `record.py`; where we answer differently on purpose, DEVIATIONS says
which step and why.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbroker.testing.process import BrokerProcess
from tests.reference.basics import steps
from tests.reference.conversation import hold

pytestmark = pytest.mark.clients

ANSWERS = Path(__file__).resolve().parents[1] / "data" / "reference" / "answers.json"

DEVIATIONS: dict[str, str] = {
    step: "log_start_offset is told with every INVALID_RECORD, in Kafka only with some"
    for step in ("produce two batches", "produce cut")
}
"""Step -> why our answer is another one."""


def without_words(ours: object, recorded: object) -> object:
    """Our answer with Kafka's error messages in place of ours: the words are our own, and where
    Kafka has none a client only prints ours. A message that Kafka gives may not be missing.
    """
    if isinstance(ours, dict) and isinstance(recorded, dict):
        return {
            name: recorded.get(name)
            if name.endswith("error_message") and (value or not recorded.get(name))
            else without_words(value, recorded.get(name))
            for name, value in ours.items()
        }
    if isinstance(ours, list) and isinstance(recorded, list) and len(ours) == len(recorded):
        return [without_words(*pair) for pair in zip(ours, recorded, strict=True)]
    return ours


@pytest.fixture(scope="module")
def recorded() -> dict[str, object]:
    answers: dict[str, object] = json.loads(ANSWERS.read_text())["answers"]
    return answers


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("reference") / "data"
    overrides = {"group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(folder, overrides=overrides) as broker:
        answers = hold(broker.host, broker.port)
    as_json: dict[str, object] = json.loads(json.dumps(answers))
    return as_json


@pytest.mark.parametrize("name", [step.name for step in steps()])
def test_same_answer(name: str, recorded: dict[str, object], given: dict[str, object]) -> None:
    assert name in recorded, "not recorded yet: python -m tests.reference.record"
    if name in DEVIATIONS:
        assert given[name] != recorded[name], f"no deviation any more: {DEVIATIONS[name]}"
    else:
        assert without_words(given[name], recorded[name]) == recorded[name]


def test_step_names_are_unique() -> None:
    names = [step.name for step in steps()]
    assert len(names) == len(set(names))
