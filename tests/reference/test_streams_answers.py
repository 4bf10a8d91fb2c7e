"""kbroker gives the answers about streams groups that Apache Kafka 4.3.1 gave. See
`test_same_answers`.
"""

from __future__ import annotations

import json

import pytest

from kbroker.testing.process import BrokerProcess
from tests.reference.conversation import hold
from tests.reference.streams_groups import OVERRIDES, streams_steps
from tests.reference.test_same_answers import ANSWERS, without_words

pytestmark = pytest.mark.clients

DEVIATIONS = {"list streams NotReady": "we also find the state under the name it is shown with"}
"""Step -> why our answer is another one."""
_UNORDERED = ("process_id", "topic")


def ordered(value: object) -> object:
    """Members and topics in one order: Kafka's is that of a hash map."""
    if isinstance(value, dict):
        return {name: ordered(item) for name, item in value.items()}
    if isinstance(value, list):
        items = [ordered(item) for item in value]
        for name in _UNORDERED:
            found = [item for item in items if isinstance(item, dict) and name in item]
            if len(found) == len(items):
                return sorted(found, key=lambda item: str(item[name]))
        return items
    return value


@pytest.fixture(scope="module")
def recorded() -> dict[str, object]:
    answers: dict[str, object] = json.loads(ANSWERS.with_name("streams.json").read_text())[
        "answers"
    ]
    return answers


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("streams") / "data"
    overrides = {"group.initial.rebalance.delay.ms": "0", **OVERRIDES}
    with BrokerProcess(folder, overrides=overrides) as broker:
        answers = hold(broker.host, broker.port, conversation=streams_steps)
    as_json: dict[str, object] = json.loads(json.dumps(answers))
    return as_json


@pytest.mark.parametrize("name", [step.name for step in streams_steps()])
def test_same_answer(name: str, recorded: dict[str, object], given: dict[str, object]) -> None:
    assert name in recorded, "not recorded yet: python -m tests.reference.record streams"
    if name in DEVIATIONS:
        assert given[name] != recorded[name], f"no deviation any more: {DEVIATIONS[name]}"
    else:
        ours = without_words(given[name], recorded[name])
        assert ordered(ours) == ordered(recorded[name])
