"""kbroker gives the answers about share groups that Apache Kafka 4.3.1 gave, and writes the records
that it wrote. See `test_same_answers`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from kbroker.coordinator.group.records import decode_record
from kbroker.coordinator.group.share.records import ShareGroupKey
from kbroker.coordinator.runtime.records import CoordinatorRecord, encode_key, encode_value
from kbroker.coordinator.share_state.shard import ShareStateShard
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.records import Record, iter_records
from kbroker.protocol.messages.stored.share_group_records import (
    ShareGroupMetadataValue,
    ShareGroupTargetAssignmentMetadataValue,
)
from kbroker.protocol.messages.stored.share_records import ShareSnapshotValue
from kbroker.settings.views.share_groups import ShareGroupConfig
from kbroker.testing.process import BrokerProcess
from tests.coordinator.simulation import FakeTopics
from tests.reference.conversation import hold
from tests.reference.share_groups import (
    OFFSETS_SEGMENT,
    OVERRIDES,
    STATE_SEGMENT,
    share_steps,
)
from tests.reference.test_same_answers import ANSWERS, without_words

pytestmark = pytest.mark.clients

DEVIATIONS = {
    "list after share groups": "Kafka makes a group when no offset of it could be altered",
    "read state begun anew": "it has no leader yet; Kafka knows the former one until it is loaded",
}
"""Step -> why our answer is another one."""
NOT_MADE = "group_id='sx'"
KAFKAS_OFFSETS = ANSWERS.with_name("share-offsets.log")
KAFKAS_STATES = ANSWERS.with_name("share-states.log")
_UNORDERED = ("topic_name",)

Decode = Callable[[bytes | None, bytes | None], CoordinatorRecord | None]


def ordered(value: object) -> object:
    """Topics in one order: Kafka's is that of a hash map."""
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
    answers: dict[str, object] = json.loads(ANSWERS.with_name("share.json").read_text())["answers"]
    return answers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("share") / "data"


@pytest.fixture(scope="module")
def given(folder: Path) -> dict[str, object]:
    overrides = {"group.initial.rebalance.delay.ms": "0", **OVERRIDES}
    with BrokerProcess(folder, overrides=overrides) as broker:
        answers = hold(broker.host, broker.port, conversation=share_steps)
    as_json: dict[str, object] = json.loads(json.dumps(answers))
    return as_json


@pytest.mark.parametrize("name", [step.name for step in share_steps()])
def test_same_answer(name: str, recorded: dict[str, object], given: dict[str, object]) -> None:
    assert name in recorded, "not recorded yet: python -m tests.reference.record share"
    if name in DEVIATIONS:
        assert given[name] != recorded[name], f"no deviation any more: {DEVIATIONS[name]}"
    else:
        ours = without_words(given[name], recorded[name])
        assert ordered(ours) == ordered(recorded[name])


def test_step_names_are_unique() -> None:
    names = [step.name for step in share_steps()]
    assert len(names) == len(set(names))


def decode_state(key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
    return ShareStateShard(ShareGroupConfig(), lambda: 0, FakeTopics).decode(key, value)


def records_of(log: bytes, decode: Decode) -> list[tuple[Record, CoordinatorRecord]]:
    """As bytes and decoded."""
    found = []
    for position, header in iter_batches(log):
        for record in iter_records(log[position:], header):
            decoded = decode(record.key, record.value)
            if decoded is not None:
                found.append((record, decoded))
    return found


def group_records(log: bytes) -> list[tuple[Record, CoordinatorRecord]]:
    return [one for one in records_of(log, decode_record) if isinstance(one[1].key, ShareGroupKey)]


def test_kafkas_records_are_read_and_written_again() -> None:
    of_groups = group_records(KAFKAS_OFFSETS.read_bytes())
    of_states = records_of(KAFKAS_STATES.read_bytes(), decode_state)
    assert {record.key.API_KEY for _, record in of_groups} == set(range(10, 16))
    assert {record.key.API_KEY for _, record in of_states} == {0, 1}
    for raw, record in of_groups + of_states:
        assert encode_key(record.key) == raw.key
        assert encode_value(record.value, record.version) == raw.value


def of_one_place(line: str) -> str:
    """States of different partitions are written in any order."""
    return line.split(" Share")[0].replace("ShareUpdateKey", "ShareSnapshotKey")


def comparable(found: list[tuple[Record, CoordinatorRecord]]) -> list[str]:
    """In their order, but for that of members within an assignment; without times, topic ids and
    the hash of topics.
    """
    lines: list[str] = []
    targets: list[str] = []
    ids: dict[bytes, bytes] = {}
    for _, record in found:
        key, value = record.key, record.value
        if isinstance(value, ShareGroupMetadataValue):
            value.metadata_hash = value.metadata_hash != 0
        if isinstance(value, ShareGroupTargetAssignmentMetadataValue):
            value.assignment_timestamp = value.assignment_timestamp != 0
        if isinstance(value, ShareSnapshotValue):
            value.create_timestamp = value.write_timestamp = 0
        line = f"{key!r} {value!r}"
        for topic_id in {item for item in (getattr(key, "topic_id", None), *_ids(value)) if item}:
            name = ids.setdefault(topic_id, b"topic %d" % len(ids))
            line = line.replace(repr(topic_id), repr(name))
        if key.API_KEY == 13 and value is not None:
            targets.append(line)
            continue
        lines += [*sorted(targets), line]
        targets = []
    return lines


def _ids(value: object) -> list[bytes]:
    found = []
    for name in ("topic_partitions", "assigned_partitions", "initializing_topics"):
        found += [topic.topic_id for topic in getattr(value, name, ())]
    for name in ("initialized_topics", "deleting_topics"):
        found += [topic.topic_id for topic in getattr(value, name, ())]
    return found


def test_same_records_of_groups(given: dict[str, object], folder: Path) -> None:
    assert given
    ours = comparable(group_records((folder / OFFSETS_SEGMENT).read_bytes()))
    kafkas = comparable(group_records(KAFKAS_OFFSETS.read_bytes()))
    kafkas = [line for line in kafkas if NOT_MADE not in line]
    assert ours == [line for line, _ in groupby(kafkas)]  # it repeats what does not change


def test_same_records_of_states(given: dict[str, object], folder: Path) -> None:
    assert given
    ours = records_of((folder / STATE_SEGMENT).read_bytes(), decode_state)
    kafkas = records_of(KAFKAS_STATES.read_bytes(), decode_state)
    assert sorted(comparable(ours), key=of_one_place) == sorted(
        comparable(kafkas), key=of_one_place
    )
