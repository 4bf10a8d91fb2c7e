"""kbroker answers odd requests of administration as Apache Kafka 4.3.1 did, with its error
messages. See `test_same_answers`.
"""

from __future__ import annotations

import json

import pytest

from kbroker.testing.process import BrokerProcess
from tests.reference.administration import administration_steps
from tests.reference.conversation import hold
from tests.reference.test_same_answers import ANSWERS

pytestmark = pytest.mark.clients

NO_NAME = "INVALID_TOPIC_EXCEPTION for the topic; UNKNOWN_SERVER_ERROR for all of them in Kafka"
NO_MESSAGE = "a partition that the quorum does not have is refused without a message"
ONE_SPELLING = "the id of a broker has one spelling: each other one would be a long answer again"
NAMED_TYPE = "the message names the type; Kafka's says that the request is malformed"
OWN_WORDS = "the message names the key and what it may be; Kafka's is that of a Java exception"
DEVIATIONS = {
    "page: ''": NO_NAME,
    "page: '' and a limit": NO_NAME,
    "quorum of 'nosuch' 0 v2": NO_MESSAGE,
    "quorum of '__cluster_metadata' 1 v2": NO_MESSAGE,
    "quorum of '' 0 v2": NO_MESSAGE,
    "configs of 4 '01'": ONE_SPELLING,
    "configs of 4 '+1'": ONE_SPELLING,
    "configs of 8 '01'": ONE_SPELLING,
    "configs of 0 ''": NAMED_TYPE,
    "configs of 1 ''": NAMED_TYPE,
    "configs of a resource twice": "a resource that is named again is answered once, with all keys",
    "broker, cleaner": OWN_WORDS,
    "broker, overrides": OWN_WORDS,
    "broker, overrides without a number": OWN_WORDS,
    "broker, of 01": ONE_SPELLING,
    "broker, of +1": ONE_SPELLING,
    "broker, no name": "a setting that is not Kafka's is refused: there are no plug-ins",
}
"""Step -> why our answer is another one."""


@pytest.fixture(scope="module")
def recorded() -> dict[str, object]:
    path = ANSWERS.with_name("administration.json")
    answers: dict[str, object] = json.loads(path.read_text())["answers"]
    return answers


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    with BrokerProcess(tmp_path_factory.mktemp("administration") / "data") as broker:
        answers = hold(broker.host, broker.port, conversation=administration_steps)
    as_json: dict[str, object] = json.loads(json.dumps(answers))
    return as_json


@pytest.mark.parametrize("name", [step.name for step in administration_steps()])
def test_same_answer(name: str, recorded: dict[str, object], given: dict[str, object]) -> None:
    assert name in recorded, "not recorded yet: python -m tests.reference.record administration"
    if name in DEVIATIONS:
        assert given[name] != recorded[name], f"no deviation any more: {DEVIATIONS[name]}"
    else:
        assert given[name] == recorded[name]


def test_step_names_are_unique() -> None:
    names = [step.name for step in administration_steps()]
    assert len(names) == len(set(names))
