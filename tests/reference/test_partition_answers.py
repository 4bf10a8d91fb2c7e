"""kbroker answers about partitions, elections and reassignments as Apache Kafka 4.3.1 did, with its
error messages. See `test_same_answers`.
"""

from __future__ import annotations

import json

import pytest

from kbroker.testing.process import BrokerProcess
from tests.reference.conversation import hold
from tests.reference.partitions import partition_steps
from tests.reference.test_same_answers import ANSWERS

pytestmark = pytest.mark.clients

DEVIATIONS = {
    "grow by too many": "POLICY_VIOLATION; Kafka answers UNKNOWN_SERVER_ERROR for that topic",
    "elect 0 everything": "only topics with a partition that needed an election are named",
    "elect 1 everything": "only topics with a partition that needed an election are named",
    "elect again": "a partition that is named again is answered once",
    "move again": "a partition that is named again is not reassigned a second time",
}
"""Step -> why our answer is another one."""


@pytest.fixture(scope="module")
def recorded() -> dict[str, object]:
    path = ANSWERS.with_name("partitions.json")
    answers: dict[str, object] = json.loads(path.read_text())["answers"]
    return answers


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    with BrokerProcess(tmp_path_factory.mktemp("partitions") / "data") as broker:
        answers = hold(broker.host, broker.port, conversation=partition_steps)
    as_json: dict[str, object] = json.loads(json.dumps(answers))
    return as_json


@pytest.mark.parametrize("name", [step.name for step in partition_steps()])
def test_same_answer(name: str, recorded: dict[str, object], given: dict[str, object]) -> None:
    assert name in recorded, "not recorded yet: python -m tests.reference.record partitions"
    if name in DEVIATIONS:
        assert given[name] != recorded[name], f"no deviation any more: {DEVIATIONS[name]}"
    else:
        assert given[name] == recorded[name]


def test_step_names_are_unique() -> None:
    names = [step.name for step in partition_steps()]
    assert len(names) == len(set(names))
