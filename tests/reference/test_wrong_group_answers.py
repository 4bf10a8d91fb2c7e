"""kbroker answers as Apache Kafka 4.3.1 did when groups are asked what belongs to another kind, and
to wrong generations, epochs, instances, notes and topics in each kind. See `test_same_answers`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbroker.testing.process import BrokerProcess
from tests.reference.conversation import hold
from tests.reference.test_same_answers import ANSWERS, without_words
from tests.reference.test_streams_answers import ordered
from tests.reference.wrong_groups import OVERRIDES, wrong_group_steps

pytestmark = pytest.mark.clients

DEVIATIONS: dict[str, str] = {
    "streams takes a group without members": "missing topics are named in order, in Kafka in that "
    "of a hash map"
}
"""Step -> why our answer is another one."""


@pytest.fixture(scope="module")
def recorded() -> dict[str, object]:
    path = ANSWERS.with_name("wrong-groups.json")
    answers: dict[str, object] = json.loads(path.read_text())["answers"]
    return answers


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder: Path = tmp_path_factory.mktemp("wrong-groups") / "data"
    overrides = {"group.initial.rebalance.delay.ms": "0", **OVERRIDES}
    with BrokerProcess(folder, overrides=overrides) as broker:
        answers = hold(broker.host, broker.port, conversation=wrong_group_steps)
    as_json: dict[str, object] = json.loads(json.dumps(answers))
    return as_json


@pytest.mark.parametrize("name", [step.name for step in wrong_group_steps()])
def test_same_answer(name: str, recorded: dict[str, object], given: dict[str, object]) -> None:
    assert name in recorded, "not recorded yet: python -m tests.reference.record wrong-groups"
    if name in DEVIATIONS:
        assert given[name] != recorded[name], f"no deviation any more: {DEVIATIONS[name]}"
    else:
        assert ordered(without_words(given[name], recorded[name])) == ordered(recorded[name])


def test_step_names_are_unique() -> None:
    names = [step.name for step in wrong_group_steps()]
    assert len(names) == len(set(names))
