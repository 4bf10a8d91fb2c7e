"""kbroker gives the answers to TxnOffsetCommit that Apache Kafka 4.3.1 gave. See
`test_same_answers`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbroker.testing.process import BrokerProcess
from tests.reference.conversation import hold
from tests.reference.test_same_answers import ANSWERS, without_words
from tests.reference.transactional_offsets import OVERRIDES, transactional_offset_steps

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def recorded() -> dict[str, object]:
    path = ANSWERS.with_name("transactional-offsets.json")
    answers: dict[str, object] = json.loads(path.read_text())["answers"]
    return answers


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder: Path = tmp_path_factory.mktemp("transactional-offsets") / "data"
    overrides = {"group.initial.rebalance.delay.ms": "0", **OVERRIDES}
    with BrokerProcess(folder, overrides=overrides) as broker:
        answers = hold(broker.host, broker.port, conversation=transactional_offset_steps)
    as_json: dict[str, object] = json.loads(json.dumps(answers))
    return as_json


@pytest.mark.parametrize("name", [step.name for step in transactional_offset_steps()])
def test_same_answer(name: str, recorded: dict[str, object], given: dict[str, object]) -> None:
    assert name in recorded, "not recorded yet: python -m tests.reference.record"
    assert without_words(given[name], recorded[name]) == recorded[name]
