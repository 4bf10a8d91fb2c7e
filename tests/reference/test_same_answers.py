"""kbroker gives the answers that Apache Kafka 4.3.1 gave to the same conversation.

The answers were recorded by `record.py`; where we answer differently on purpose, DEVIATIONS says
which step and why.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbroker.testing.process import BrokerProcess
from tests.reference.conversation import hold, steps

pytestmark = pytest.mark.clients

ANSWERS = Path(__file__).resolve().parents[1] / "data" / "reference" / "answers.json"

DEVIATIONS: dict[str, str] = {}
"""Step -> why our answer is another one."""


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
        assert given[name] == recorded[name]


def test_step_names_are_unique() -> None:
    names = [step.name for step in steps()]
    assert len(names) == len(set(names))
