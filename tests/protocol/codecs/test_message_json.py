"""Messages as the JSON of Kafka's converters."""

from __future__ import annotations

import json

import pytest

from kbroker.protocol.codecs.message_json import camel_case, json_text, to_json
from kbroker.protocol.messages.coordinators.offsets import OffsetFetchRequest
from kbroker.protocol.messages.stored.metadata_records import PartitionRecord, TopicRecord


@pytest.mark.parametrize(
    ("name", "shown"),
    [("offset", "offset"), ("leader_epoch", "leaderEpoch"), ("a_b_cd", "aBCd")],
)
def test_names(name: str, shown: str) -> None:
    assert camel_case(name) == shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (1.0, "1.0"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (9_999_999.0, "9999999.0"),
        (10_000_000.0, "1.0E7"),
        (990_000_000.0, "9.9E8"),
        (-1.5e300, "-1.5E300"),
    ],
)
def test_doubles_as_java_prints_them(value: float, text: str) -> None:
    assert json_text(value) == text


def test_one_line_without_blanks() -> None:
    value = {"a": [1, None, True, "é\n"], "b": {"c": 1.5}}
    text = json_text(value)
    assert text == '{"a":[1,null,true,"é\\n"],"b":{"c":1.5}}'
    assert json.loads(text) == value
    assert json_text([]) == "[]" and json_text({}) == "{}"


def test_a_uuid_is_text_of_22_characters() -> None:
    assert to_json(TopicRecord(name="t", topic_id=bytes(15) + b"\x64"), 0) == {
        "name": "t",
        "topicId": "AAAAAAAAAAAAAAAAAAAAZA",
    }


def test_lists_of_uuids_and_fields_of_later_versions() -> None:
    record = PartitionRecord(
        partition_id=1, topic_id=bytes(16), replicas=[1], directories=[bytes(16)]
    )
    shown = to_json(record, 1)
    assert shown["directories"] == ["AAAAAAAAAAAAAAAAAAAAAA"]
    assert shown["replicas"] == [1]
    assert "directories" not in to_json(record, 0)


def test_tagged_fields_that_have_their_default_are_left_out() -> None:
    assert "leaderRecoveryState" not in to_json(PartitionRecord(), 1)
    assert to_json(PartitionRecord(leader_recovery_state=1), 1)["leaderRecoveryState"] == 1


def test_null_and_nested_structs() -> None:
    kind = OffsetFetchRequest
    request = kind(groups=[kind.OffsetFetchRequestGroup(group_id="g", topics=None)])
    shown = to_json(request, 8)
    assert shown["groups"] == [{"groupId": "g", "topics": None}]
