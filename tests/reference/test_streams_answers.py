"""kbroker gives the answers about streams groups that Apache Kafka 4.3.1 gave, and writes the
records that it wrote. See `test_same_answers`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbroker.coordinator.group.records import decode_record
from kbroker.coordinator.group.streams.records import StreamsGroupKey
from kbroker.coordinator.runtime.records import CoordinatorRecord, encode_key, encode_value
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.records import Record, iter_records
from kbroker.protocol.messages.stored.streams_group_records import (
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMetadataValue,
)
from kbroker.testing.process import BrokerProcess
from tests.reference.conversation import hold
from tests.reference.streams_groups import OFFSETS_SEGMENT, OVERRIDES, streams_steps
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streams") / "data"


@pytest.fixture(scope="module")
def given(folder: Path) -> dict[str, object]:
    overrides = {"group.initial.rebalance.delay.ms": "0", **OVERRIDES}
    with BrokerProcess(folder, overrides=overrides) as broker:
        answers = hold(broker.host, broker.port, conversation=streams_steps)
    as_json: dict[str, object] = json.loads(json.dumps(answers))
    return as_json


def streams_records(log: bytes) -> list[tuple[Record, CoordinatorRecord]]:
    """Those of streams groups, as bytes and decoded."""
    found = []
    for position, header in iter_batches(log):
        for record in iter_records(log[position:], header):
            decoded = decode_record(record.key, record.value)
            if decoded is not None and isinstance(decoded.key, StreamsGroupKey):
                found.append((record, decoded))
    return found


KAFKAS_LOG = ANSWERS.with_name("streams.log")


@pytest.mark.parametrize("name", [step.name for step in streams_steps()])
def test_same_answer(name: str, recorded: dict[str, object], given: dict[str, object]) -> None:
    assert name in recorded, "not recorded yet: python -m tests.reference.record streams"
    if name in DEVIATIONS:
        assert given[name] != recorded[name], f"no deviation any more: {DEVIATIONS[name]}"
    else:
        ours = without_words(given[name], recorded[name])
        assert ordered(ours) == ordered(recorded[name])


def test_kafkas_records_are_read_and_written_again() -> None:
    records = streams_records(KAFKAS_LOG.read_bytes())
    assert {record.key.API_KEY for _, record in records} == {17, 19, 20, 21, 22, 23}
    for raw, record in records:
        assert encode_key(record.key) == raw.key
        assert encode_value(record.value, record.version) == raw.value


def test_same_records(given: dict[str, object], folder: Path) -> None:
    """In the same order, but for the order of members within an assignment, for times and for the
    hash of topics.
    """

    def comparable(log: bytes) -> list[tuple[object, ...]]:
        lines: list[tuple[object, ...]] = []
        targets: list[tuple[object, ...]] = []
        for _, record in streams_records(log):
            value = record.value
            if isinstance(value, StreamsGroupMetadataValue):
                value.metadata_hash = value.metadata_hash != 0
            if isinstance(value, StreamsGroupTargetAssignmentMetadataValue):
                value.assignment_timestamp = value.assignment_timestamp != 0
            line = (repr(record.key), repr(value))
            if record.key.API_KEY == 21 and value is not None:
                targets.append(line)
                continue
            lines += sorted(targets)
            targets = []
            lines.append(line)
        return lines

    ours, kafkas = (folder / OFFSETS_SEGMENT).read_bytes(), KAFKAS_LOG.read_bytes()
    assert given
    assert comparable(ours) == comparable(kafkas)
