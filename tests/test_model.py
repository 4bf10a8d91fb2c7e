"""Uuids as Kafka prints them, and the name of a partition's folder."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.model import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    ZERO_UUID,
    TopicPartition,
    is_reserved_uuid,
    random_uuid,
    uuid_from_string,
    uuid_to_string,
)


def test_a_partition_prints_as_its_folder() -> None:
    assert str(TopicPartition("a-b", 3)) == "a-b-3"
    assert TopicPartition("a", 10) > TopicPartition("a", 9)


@pytest.mark.parametrize(
    ("uuid", "text"),
    [
        (ZERO_UUID, "AAAAAAAAAAAAAAAAAAAAAA"),
        (bytes(15) + b"\x64", "AAAAAAAAAAAAAAAAAAAAZA"),
        (b"\xff" * 16, "_____________________w"),
        (b"\xfb" + bytes(15), "-wAAAAAAAAAAAAAAAAAAAA"),
    ],
)
def test_the_text_of_a_uuid(uuid: bytes, text: str) -> None:
    assert uuid_to_string(uuid) == text
    assert uuid_from_string(text) == uuid
    assert uuid_from_string(text + "==") == uuid


@pytest.mark.parametrize(
    "text",
    ["", "A", "AAAA", "A" * 21, "A" * 23, "A" * 44, "é" * 22, "A" * 22 + "=" * 4, "A" * 22 + "="]
    + ["A" * 21 + other for other in "+/ \n="],
)
def test_text_that_is_no_uuid(text: str) -> None:
    with pytest.raises(ValueError, match="is not a Kafka uuid"):
        uuid_from_string(text)


def test_reserved_uuids_are_kafkas() -> None:
    """DirectoryId: the first 100, of which three have a meaning."""
    names = [MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY, LOST_DIRECTORY]
    text = ["AAAAAAAAAAAAAAAAAAAAA" + last for last in "AQg"]
    assert [uuid_to_string(uuid) for uuid in names] == text
    assert all(is_reserved_uuid(bytes(15) + bytes([number])) for number in range(100))
    assert not is_reserved_uuid(bytes(15) + bytes([100]))
    assert not is_reserved_uuid(b"\x01" + bytes(15))


def test_a_random_uuid_is_version_4_and_no_option() -> None:
    random = Random(1)
    drawn = [random_uuid(random) for _ in range(2000)]
    assert len(set(drawn)) == 2000
    assert not [uuid for uuid in drawn if is_reserved_uuid(uuid)]
    assert {uuid[6] >> 4 for uuid in drawn} == {4}
    assert {uuid[8] >> 6 for uuid in drawn} == {2}
    assert not [uuid for uuid in drawn if uuid_to_string(uuid).startswith("-")]
    assert [random_uuid(Random(1)) for _ in range(2)] == drawn[:1] * 2
