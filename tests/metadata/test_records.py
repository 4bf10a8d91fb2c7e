"""Framing of metadata records, and the version each is written in."""

from __future__ import annotations

import pytest

from kbroker.metadata.records import RECORD_CLASSES, decode_record, encode_record, record_version
from kbroker.model import InvariantError
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.stored.metadata_records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)


def test_all_26_types_are_known() -> None:
    assert len(RECORD_CLASSES) == 26
    assert set(RECORD_CLASSES) == {*range(0, 6), *range(7, 13), 14, 15, *range(17, 29)}


@pytest.mark.parametrize("record_type", sorted(RECORD_CLASSES))
def test_every_type_survives_its_bytes(record_type: int) -> None:
    record = RECORD_CLASSES[record_type]()
    assert decode_record(encode_record(record, 30)) == record


def test_the_bytes_of_one() -> None:
    record = FeatureLevelRecord(name="group.version", feature_level=1)
    assert encode_record(record, 30) == b"\x01\x0c\x00\x0egroup.version\x00\x01\x00"
    assert encode_record(NoOpRecord(), 30) == b"\x01\x14\x00\x00"


@pytest.mark.parametrize(
    ("record", "metadata_version", "version"),
    [
        (RegisterBrokerRecord(), 30, 4),
        (RegisterBrokerRecord(), 29, 3),
        (RegisterBrokerRecord(), 7, 1),
        (PartitionRecord(), 30, 2),
        (PartitionRecord(), 17, 1),
        (PartitionRecord(), 7, 0),
        (PartitionChangeRecord(), 23, 2),
        (BrokerRegistrationChangeRecord(fenced=1), 30, 0),
        (BrokerRegistrationChangeRecord(in_controlled_shutdown=1), 30, 1),
        (BrokerRegistrationChangeRecord(log_dirs=[bytes(16)]), 30, 2),
        (BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=4), 30, 2),
        (BrokerRegistrationChangeRecord(cordoned_log_dirs=[]), 30, 3),
    ],
)
def test_versions(record: Message, metadata_version: int, version: int) -> None:
    assert record_version(record, metadata_version) == version


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "ends inside its frame"),
        (b"\x01", "ends inside its frame"),
        (b"\x01\x80", "ends inside its frame"),
        (b"\x02\x14\x00\x00", "frame version 2"),
        (b"\x01\x1d\x00\x00", "type 29, version 0"),
        (b"\x01\x14\x01\x00", "type 20, version 1"),
        (b"\x01\x14\x00\x00\x00", "1 bytes too many"),
        (b"\x01\x0c\x00\x0egroup", "a FeatureLevelRecord that cannot be decoded"),
        (b"\x01\x0c\x00\x02\xff\x00\x01\x00", "a FeatureLevelRecord that cannot be decoded"),
    ],
)
def test_bytes_that_are_no_record(data: bytes, why: str) -> None:
    with pytest.raises(InvariantError, match=why):
        decode_record(data)
