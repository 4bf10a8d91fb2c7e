"""The data that classic consumers embed in JoinGroup and SyncGroup: versions, bad bytes, deleted
topics.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kbroker.coordinator.group.membership.embedded_protocol import (
    NEWEST_VERSION,
    assignment_bytes,
    assignment_of,
    partitions_by_id,
    subscription_of,
    version_of,
)
from kbroker.model import Uuid
from kbroker.protocol.codecs.codec import encode
from kbroker.protocol.errors import MalformedRequest
from kbroker.protocol.messages.coordinators.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

A, B, DELETED = b"a" * 16, b"b" * 16, b"d" * 16
Partitions = ConsumerProtocolAssignment.TopicPartition


class Topic(NamedTuple):
    name: str
    topic_id: Uuid


BY_ID = {A: Topic("a", A), B: Topic("b", B)}
BY_NAME = {topic.name: topic for topic in BY_ID.values()}


@pytest.mark.parametrize(
    ("data", "version"), [(b"\0\0", 0), (b"\0\3rest", 3), (b"\0\4", 3), (b"\x7f\xff", 3)]
)
def test_a_later_version_is_read_as_the_newest(data: bytes, version: int) -> None:
    assert version_of(data) == version


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", b"\x80\0"])
def test_bytes_without_a_version(data: bytes) -> None:
    for read in (version_of, subscription_of, assignment_of):
        with pytest.raises(MalformedRequest):
            read(data)


@pytest.mark.parametrize("version", range(NEWEST_VERSION + 1))
def test_every_cut_of_a_subscription_is_malformed(version: int) -> None:
    body = encode(ConsumerProtocolSubscription(topics=["a", "b"], user_data=b"x"), version)
    data = version.to_bytes(2, "big") + body
    assert subscription_of(data).topics == ["a", "b"]
    for cut in range(len(data)):
        with pytest.raises(MalformedRequest):
            subscription_of(data[:cut])


@pytest.mark.parametrize("version", range(NEWEST_VERSION + 1))
def test_an_assignment_is_sorted_and_without_deleted_topics(version: int) -> None:
    data = assignment_bytes({B: {2, 0, 1}, DELETED: {0}, A: [7]}, BY_ID, version)
    assert version_of(data) == version
    found = assignment_of(data).assigned_partitions
    assert [(one.topic, one.partitions) for one in found] == [("b", [0, 1, 2]), ("a", [7])]


def test_partitions_by_topic_id() -> None:
    entries = [
        Partitions(topic="a", partitions=[1, 2]),
        Partitions(topic="deleted", partitions=[1]),
        Partitions(topic="a", partitions=[2, 3]),
        Partitions(topic="b", partitions=[]),
    ]
    assert partitions_by_id(entries, BY_NAME) == {A: {1, 2, 3}}
