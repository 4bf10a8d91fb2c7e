"""Records against what Kafka 4.3.1 wrote, byte for byte and field for field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbroker.coordinator.group.records import (
    decode_record,
    group_tombstone,
    offset_commit_record,
    offset_tombstone,
)
from kbroker.coordinator.runtime.records import (
    CoordinatorRecord,
    encode_batch,
    encode_key,
    encode_value,
)
from kbroker.model import ZERO_UUID, uuid_to_string
from kbroker.protocol.batches.batch_header import iter_batches, read_batch_header
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.records import Record, iter_records
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.schema import CoordinatorKey
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.coordinators.consumer_protocol import ConsumerProtocolSubscription
from kbroker.protocol.messages.stored.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

DATA = Path(__file__).parents[2] / "data" / "coordinator"


def kafka_records() -> dict[int, Record]:
    log = (DATA / "consumer_offsets.log").read_bytes()
    return {
        record.offset: record
        for position, header in iter_batches(log)
        if not header.is_control
        for record in iter_records(log[position:], header)
    }


def kafka_dump() -> list[dict[str, Any]]:
    lines = (DATA / "consumer_offsets.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


RECORDS = kafka_records()
DUMP = kafka_dump()
OURS = [entry for entry in DUMP if entry["type"] <= 2]


@pytest.mark.parametrize("entry", OURS, ids=lambda entry: str(entry["offset"]))
def test_kafka_bytes_are_read_and_written_again(entry: dict[str, Any]) -> None:
    record = RECORDS[entry["offset"]]
    decoded = decode_record(record.key, record.value)
    assert decoded is not None
    assert encode_key(decoded.key) == record.key
    assert encode_value(decoded.value, decoded.version) == record.value
    if entry["type"] == 1:
        check_offset(decoded, entry)
    else:
        check_group(decoded, entry)


def check_offset(record: CoordinatorRecord, entry: dict[str, Any]) -> None:
    key, value = record.key, record.value
    assert isinstance(key, OffsetCommitKey)
    assert {"group": key.group, "topic": key.topic, "partition": key.partition} == entry["key"]
    if entry["value"] is None:
        assert value is None
        assert record == offset_tombstone(key.group, key.topic, key.partition)
        return
    assert isinstance(value, OffsetCommitValue)
    expected = {"topicId": uuid_to_string(ZERO_UUID), **entry["value"]}
    assert expected == {
        "offset": value.offset,
        "leaderEpoch": value.leader_epoch,
        "metadata": value.metadata,
        "commitTimestamp": value.commit_timestamp,
        "topicId": uuid_to_string(value.topic_id),
    }
    again = offset_commit_record(key.group, key.topic, key.partition, value)
    assert again.version == record.version == entry["version"]


def check_group(record: CoordinatorRecord, entry: dict[str, Any]) -> None:
    key, value = record.key, record.value
    assert isinstance(key, GroupMetadataKey)
    assert key.group == entry["key"]["group"]
    if entry["value"] is None:
        assert record == group_tombstone(key.group)
        return
    assert isinstance(value, GroupMetadataValue)
    expected = entry["value"]
    assert record.version == entry["version"]
    assert (value.protocol_type, value.generation, value.protocol, value.leader) == (
        expected["protocolType"],
        expected["generation"],
        expected["protocol"],
        expected["leader"],
    )
    assert value.current_state_timestamp == expected["currentStateTimestamp"]
    assert len(value.members) == len(expected["members"])
    for member, wanted in zip(value.members, expected["members"], strict=True):
        assert member.member_id == wanted["memberId"]
        assert member.group_instance_id == wanted["groupInstanceId"]
        assert member.client_host == wanted["clientHost"]
        assert member.rebalance_timeout == wanted["rebalanceTimeout"]
        data = bytes(member.subscription)
        subscription, _ = decode(
            ConsumerProtocolSubscription, data, int.from_bytes(data[:2], "big"), 2
        )
        assert subscription.topics == wanted["subscription"]["topics"]


def test_records_of_share_groups_come_back_as_kafka_wrote_them() -> None:
    kinds = {entry["type"] for entry in DUMP if 10 <= entry["type"] <= 15}
    assert kinds == set(range(10, 16))
    for entry in DUMP:
        if entry["type"] not in kinds:
            continue
        record = RECORDS[entry["offset"]]
        decoded = decode_record(record.key, record.value)
        assert decoded is not None
        assert encode_key(decoded.key) == record.key
        assert encode_value(decoded.value, decoded.version) == record.value


def test_other_types_and_versions_are_left_alone() -> None:
    assert decode_record(b"\0\x7f", b"\0\0") is None
    key = encode_key(OffsetCommitKey(group="g", topic="t"))
    assert decode_record(key, b"\0\x09 of the future") is None


def test_coordinator_batches_look_like_kafkas() -> None:
    log = (DATA / "consumer_offsets.log").read_bytes()
    checked = 0
    for position, header in iter_batches(log):
        if header.is_transactional or header.is_control:
            continue
        records = list(iter_records(log[position:], header))
        decoded = [decode_record(record.key, record.value) for record in records]
        if None in decoded or len({record.timestamp for record in records}) > 1:
            continue
        ours = encode_batch([r for r in decoded if r is not None], records[0].timestamp)
        assert ours[21:] == log[position + 21 : position + header.size_bytes]
        assert read_batch_header(ours).crc == header.crc
        checked += 1
    assert checked >= 10


def test_expiring_offset_has_the_version_that_can_say_so() -> None:
    value = OffsetCommitValue(offset=3, metadata="m", commit_timestamp=5, expire_timestamp=9)
    record = offset_commit_record("g", "t", 0, value)
    assert record.version == 1
    decoded = decode_record(encode_key(record.key), encode_value(record.value, 1))
    assert decoded is not None
    assert isinstance(decoded.value, OffsetCommitValue)
    assert decoded.value.expire_timestamp == 9


def test_legacy_key_is_an_offset() -> None:
    key = encode_key(OffsetCommitKey(group="g", topic="t", partition=4))
    legacy = decode_record(b"\0\0" + key[2:], None)
    assert legacy == offset_tombstone("g", "t", 4)


def test_known_keys_give_the_same_records() -> None:
    known: dict[bytes, CoordinatorKey] = {}
    for _ in range(2):
        for record in RECORDS.values():
            plain = decode_record(record.key, record.value)
            assert decode_record(record.key, record.value, known) == plain
    assert known.keys() <= {record.key for record in RECORDS.values()}
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        decode_record(next(iter(known)), b"\0\1", known)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        (b"", None),
        (b"\0", None),
        (b"\0\1\0\5ab", None),
        (encode_key(GroupMetadataKey(group="g")), b""),
        (encode_key(GroupMetadataKey(group="g")), b"\0\3\0\1"),
    ],
)
def test_bytes_that_are_no_record(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        decode_record(key, value)


def test_compressed_batch() -> None:
    batch = encode_batch([offset_tombstone("g", "t", 0)], 7, Compression.GZIP)
    header = read_batch_header(batch)
    assert header.codec is Compression.GZIP
    assert [record.timestamp for record in iter_records(batch, header)] == [7]
