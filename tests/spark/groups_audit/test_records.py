"""Records of the internal topics, as brokers write them."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.model import Uuid
from kbroker.protocol.batches.records import Record
from kbroker.protocol.codecs.codec import encode
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import MalformedRequest
from kbroker.protocol.messages.coordinators.consumer_protocol import ConsumerProtocolAssignment
from kbroker.protocol.messages.stored.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kbroker.protocol.messages.stored.transaction_records import (
    TransactionLogKey,
    TransactionLogValue,
)
from spark_jobs.groups_audit.records import (
    Committed,
    Member,
    MemberChange,
    Members,
    group_event,
    transaction_state,
)

TOPIC_ID = Uuid(bytes(range(16)))


def versioned(message: Message, version: int, prefix: int | None = None) -> bytes:
    number = version if prefix is None else prefix
    return number.to_bytes(2, "big") + bytes(encode(message, version))


def record(key: Message, value: Message | None, version: int = 0) -> Record:
    body = None if value is None else versioned(value, version)
    return Record(0, 5, versioned(key, 0, key.API_KEY), body, ())


KEY = OffsetCommitKey(group="g", topic="t", partition=1)
VALUE = OffsetCommitValue(offset=7, metadata="m", commit_timestamp=99)
ASSIGNMENT = ConsumerProtocolAssignment(
    assigned_partitions=[ConsumerProtocolAssignment.TopicPartition(topic="t", partitions=[0, 2])]
)


def classic(assignment: bytes) -> GroupMetadataValue:
    member = GroupMetadataValue.MemberMetadata(
        member_id="m1",
        client_id="c1",
        client_host="/10.0.0.7",
        session_timeout=1,
        subscription=b"",
        assignment=assignment,
    )
    return GroupMetadataValue(
        protocol_type="consumer", generation=1, protocol="range", leader="m1", members=[member]
    )


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_commits(version: int) -> None:
    assert group_event(record(KEY, VALUE, version)) == Committed("g", "t", 1, 7, 99, "m")
    legacy = LegacyOffsetCommitKey(group="g", topic="t", partition=1)
    assert group_event(record(legacy, VALUE, version)) == Committed("g", "t", 1, 7, 99, "m")


def test_tombstones() -> None:
    assert group_event(record(KEY, None)) == Committed("g", "t", 1)
    assert group_event(record(GroupMetadataKey(group="g"), None)) == Members("g", ())


@pytest.mark.parametrize(
    ("assignment", "partitions"),
    [
        (versioned(ASSIGNMENT, 1), frozenset({("t", 0), ("t", 2)})),
        (b"", frozenset()),
        (b"\x00", None),
        (b"\x00\x63of another assignor", None),
    ],
)
def test_members_of_a_classic_group(assignment: bytes, partitions: Any) -> None:
    found = group_event(record(GroupMetadataKey(group="g"), classic(assignment), 3))
    assert found == Members("g", (Member("m1", "c1", "/10.0.0.7", partitions),))
    assert str(Member("m1", "c1", "/10.0.0.7")) == "c1@10.0.0.7"


def test_members_of_a_consumer_group() -> None:
    key = ConsumerGroupMemberMetadataKey(group_id="g", member_id="m")
    value = ConsumerGroupMemberMetadataValue(
        instance_id=None,
        rack_id=None,
        client_id="c",
        client_host="/h",
        subscribed_topic_names=["t"],
        subscribed_topic_regex=None,
        server_assignor=None,
    )
    assert group_event(record(key, value)) == MemberChange("g", "m", False, Member("m", "c", "/h"))
    assert group_event(record(key, None)) == MemberChange("g", "m", False, None)
    owned = ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m")
    topics = ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
    current = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=1,
        previous_member_epoch=0,
        state=0,
        assigned_partitions=[topics(topic_id=TOPIC_ID, partitions=[0])],
        partitions_pending_revocation=[topics(topic_id=TOPIC_ID, partitions=[3])],
    )
    name = TOPIC_ID.hex()
    member = Member("m", partitions=frozenset({(name, 0), (name, 3)}))
    assert group_event(record(owned, current)) == MemberChange("g", "m", True, member)


def test_transactions() -> None:
    key = TransactionLogKey(transactional_id="tx")
    value = TransactionLogValue(producer_id=4, transaction_status=2)
    found = transaction_state(record(key, value, 1))
    assert found is not None and found.value is not None
    assert (found.transactional_id, found.value.producer_id, found.status) == (
        "tx",
        4,
        "PrepareCommit",
    )
    forgotten = transaction_state(record(key, None))
    assert forgotten is not None and forgotten.value is None


def test_what_says_nothing_on_commits() -> None:
    assert group_event(Record(0, 0, b"\x00\x63more", b"", ())) is None
    assert transaction_state(Record(0, 0, b"\x00\x63more", b"", ())) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (versioned(KEY, 0, 1)[:-1], b""),
        (versioned(KEY, 0, 1) + b"x", None),
        (versioned(KEY, 0, 1), b""),
        (versioned(KEY, 0, 1), b"\x00\x09123456789"),
        (versioned(KEY, 0, 1), versioned(VALUE, 3) + b"x"),
    ],
)
def test_damaged_records(key: bytes, value: bytes | None) -> None:
    with pytest.raises(MalformedRequest):
        group_event(Record(0, 0, key, value, ()))
