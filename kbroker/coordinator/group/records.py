"""Keys and values of `__consumer_offsets`, as Kafka 4.3.1 writes them. Declarations:
protocol/messages/stored/group_records.

A key is int16 record type and body, a value is int16 version and body; a null value deletes. Types
0 and 1 are committed offsets (0 is read, never written), 2 is a classic group, 3 to 8 and 16 are
consumer groups (`consumer/records`), 10 to 15 share groups (`share/records`), 17 and 19 to 23
streams groups (`streams/records`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.protocol.codecs.codec import decode, decoder_of
from kbroker.protocol.codecs.schema import CoordinatorKey, CoordinatorValue
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.messages.stored.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kbroker.protocol.messages.stored.share_group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from kbroker.protocol.messages.stored.streams_group_records import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)

OFFSET_COMMIT_VERSION: Final = 4
EXPIRING_OFFSET_COMMIT_VERSION: Final = 1
"""The one version with an expire timestamp (OffsetCommit v2-4 with a retention time)."""
GROUP_METADATA_VERSION: Final = 3

NO_EXPIRY: Final = -1

_INT16: Final = struct.Struct(">h")
_KEY_CLASSES: Final[Mapping[int, type[CoordinatorKey]]] = {
    0: LegacyOffsetCommitKey,
    1: OffsetCommitKey,
    2: GroupMetadataKey,
    3: ConsumerGroupMetadataKey,
    4: ConsumerGroupPartitionMetadataKey,
    5: ConsumerGroupMemberMetadataKey,
    6: ConsumerGroupTargetAssignmentMetadataKey,
    7: ConsumerGroupTargetAssignmentMemberKey,
    8: ConsumerGroupCurrentMemberAssignmentKey,
    10: ShareGroupMemberMetadataKey,
    11: ShareGroupMetadataKey,
    12: ShareGroupTargetAssignmentMetadataKey,
    13: ShareGroupTargetAssignmentMemberKey,
    14: ShareGroupCurrentMemberAssignmentKey,
    15: ShareGroupStatePartitionMetadataKey,
    16: ConsumerGroupRegularExpressionKey,
    17: StreamsGroupMetadataKey,
    19: StreamsGroupMemberMetadataKey,
    20: StreamsGroupTargetAssignmentMetadataKey,
    21: StreamsGroupTargetAssignmentMemberKey,
    22: StreamsGroupCurrentMemberAssignmentKey,
    23: StreamsGroupTopologyKey,
}
_VALUE_CLASSES: Final[Mapping[int, type[CoordinatorValue]]] = {
    0: OffsetCommitValue,
    1: OffsetCommitValue,
    2: GroupMetadataValue,
    3: ConsumerGroupMetadataValue,
    4: ConsumerGroupPartitionMetadataValue,
    5: ConsumerGroupMemberMetadataValue,
    6: ConsumerGroupTargetAssignmentMetadataValue,
    7: ConsumerGroupTargetAssignmentMemberValue,
    8: ConsumerGroupCurrentMemberAssignmentValue,
    10: ShareGroupMemberMetadataValue,
    11: ShareGroupMetadataValue,
    12: ShareGroupTargetAssignmentMetadataValue,
    13: ShareGroupTargetAssignmentMemberValue,
    14: ShareGroupCurrentMemberAssignmentValue,
    15: ShareGroupStatePartitionMetadataValue,
    16: ConsumerGroupRegularExpressionValue,
    17: StreamsGroupMetadataValue,
    19: StreamsGroupMemberMetadataValue,
    20: StreamsGroupTargetAssignmentMetadataValue,
    21: StreamsGroupTargetAssignmentMemberValue,
    22: StreamsGroupCurrentMemberAssignmentValue,
    23: StreamsGroupTopologyValue,
}


def offset_commit_record(
    group_id: str, topic: str, partition: int, value: OffsetCommitValue
) -> CoordinatorRecord:
    """A committed offset, in the newest version that has its fields."""
    version = OFFSET_COMMIT_VERSION
    if value.expire_timestamp != NO_EXPIRY:
        version = EXPIRING_OFFSET_COMMIT_VERSION
    return CoordinatorRecord(
        OffsetCommitKey(group=group_id, topic=topic, partition=partition), value, version
    )


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """The tombstone of a committed offset."""
    return CoordinatorRecord(
        OffsetCommitKey(group=group_id, topic=topic, partition=partition), None
    )


def group_metadata_record(group_id: str, value: GroupMetadataValue) -> CoordinatorRecord:
    """The record of a classic group's generation."""
    return CoordinatorRecord(GroupMetadataKey(group=group_id), value, GROUP_METADATA_VERSION)


def group_tombstone(group_id: str) -> CoordinatorRecord:
    """The tombstone of a classic group."""
    return CoordinatorRecord(GroupMetadataKey(group=group_id), None)


def decode_record(
    key: bytes | None, value: bytes | None, known: dict[bytes, CoordinatorKey] | None = None
) -> CoordinatorRecord | None:
    """The record of a key and a value, or None for an unknown type or version.

    The legacy key and values are converted to the current ones. known: a cache of decoded keys by
    their bytes, for readers of many records with few keys; it grows. Raises
    KafkaError(CORRUPT_MESSAGE) for undecodable bytes.
    """
    try:
        if key is None:
            raise MalformedRequest("no key")
        decoded_key = None if known is None else known.get(key)
        if decoded_key is None:
            decoded_key = _decode_key(key)
            if decoded_key is None:
                return None
            if known is not None:
                known[key] = decoded_key
        if value is None:
            return CoordinatorRecord(decoded_key, None)
        (version,) = _INT16.unpack_from(value)
        value_class = _VALUE_CLASSES[decoded_key.API_KEY]
        decoder = value_class.DECODERS.get(version)
        if decoder is None:
            if version not in value_class.VERSIONS:
                return None
            decoder = decoder_of(value_class, version)
        decoded_value, _ = decoder(value, 2)
        return CoordinatorRecord(decoded_key, decoded_value, version)
    except (MalformedRequest, struct.error) as error:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"not a record of __consumer_offsets: {error}"
        ) from error


def _decode_key(key: bytes) -> CoordinatorKey | None:
    (key_type,) = _INT16.unpack_from(key)
    key_class = _KEY_CLASSES.get(key_type)
    if key_class is None:
        return None
    decoded, _ = decode(key_class, key, 0, 2)
    if isinstance(decoded, LegacyOffsetCommitKey):
        return OffsetCommitKey(
            group=decoded.group, topic=decoded.topic, partition=decoded.partition
        )
    return decoded
