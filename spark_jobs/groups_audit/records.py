"""Records of `__consumer_offsets` and `__transaction_state` as values. Pure.

Record types of later brokers, and those that say nothing on commits, are None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from kbroker.protocol.batches.records import Record
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import KafkaError, MalformedRequest
from kbroker.protocol.messages.coordinators.consumer_protocol import ConsumerProtocolAssignment
from kbroker.protocol.messages.stored.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kbroker.protocol.messages.stored.transaction_records import (
    TransactionLogKey,
    TransactionLogValue,
)

M = TypeVar("M", bound=Message)

_VERSION_BYTES: Final = 2

STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
"""Of transactions, by the number in their records."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group. partitions: assigned ones, by topic name or, in groups of KIP-848, by
    the id of the topic in hexadecimal digits; None if they are not known.
    """

    member_id: str
    client_id: str = ""
    host: str = ""
    partitions: frozenset[tuple[str, int]] | None = None

    def __str__(self) -> str:
        return f"{self.client_id or self.member_id}@{self.host.removeprefix('/')}"


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset. offset: None if it was deleted or has expired."""

    group: str
    topic: str
    partition: int
    offset: int | None = None
    time_ms: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a classic group, all of them."""

    group: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class MemberChange:
    """A member of a group of KIP-848: its client or its assignment. member: None if it has left."""

    group: str
    member_id: str
    is_assignment: bool
    member: Member | None


@dataclass(frozen=True, slots=True)
class TransactionState:
    """The newest state of a transactional id. value: None if the id was forgotten."""

    transactional_id: str
    value: TransactionLogValue | None

    @property
    def status(self) -> str:
        """Its name in Kafka."""
        number = -1 if self.value is None else self.value.transaction_status
        return STATES[number] if 0 <= number < len(STATES) else f"state {number}"


GroupEvent = Committed | Members | MemberChange


def group_event(record: Record) -> GroupEvent | None:
    """A record of `__consumer_offsets`. Raises MalformedRequest for one that cannot be read."""
    key, value = bytes(record.key or b""), record.value
    body = None if value is None else bytes(value)
    match _int16(key):
        case 0:
            return _legacy_commit(key, body)
        case 1:
            place = _message(OffsetCommitKey, key, is_key=True)
            if body is None:
                return Committed(place.group, place.topic, place.partition)
            of = _message(OffsetCommitValue, body)
            return Committed(
                place.group,
                place.topic,
                place.partition,
                of.offset,
                of.commit_timestamp,
                of.metadata,
            )
        case 2:
            group = _message(GroupMetadataKey, key, is_key=True).group
            return Members(group, () if body is None else _classic_members(body))
        case 5:
            return _client(key, body)
        case 8:
            return _assignment(key, body)
    return None


def transaction_state(record: Record) -> TransactionState | None:
    """A record of `__transaction_state`. Raises MalformedRequest for one that cannot be read."""
    key = bytes(record.key or b"")
    if _int16(key) != 0:
        return None
    name = _message(TransactionLogKey, key, is_key=True).transactional_id
    if record.value is None:
        return TransactionState(name, None)
    return TransactionState(name, _message(TransactionLogValue, bytes(record.value)))


def _legacy_commit(key: bytes, body: bytes | None) -> Committed:
    place = _message(LegacyOffsetCommitKey, key, is_key=True)
    if body is None:
        return Committed(place.group, place.topic, place.partition)
    # Brokers have always written the newer values behind the older key too.
    is_newer = _int16(body) in OffsetCommitValue.VERSIONS and _int16(body) > 0
    of: OffsetCommitValue | LegacyOffsetCommitValue = (
        _message(OffsetCommitValue, body) if is_newer else _message(LegacyOffsetCommitValue, body)
    )
    return Committed(
        place.group, place.topic, place.partition, of.offset, of.commit_timestamp, of.metadata
    )


def _classic_members(body: bytes) -> tuple[Member, ...]:
    group = _message(GroupMetadataValue, body)
    is_consumer = group.protocol_type == "consumer"
    return tuple(
        Member(
            member.member_id,
            member.client_id,
            member.client_host,
            _assigned(bytes(member.assignment)) if is_consumer else None,
        )
        for member in group.members
    )


def _assigned(assignment: bytes) -> frozenset[tuple[str, int]] | None:
    """What a classic consumer was assigned; None for bytes that only its assignor understands."""
    if not assignment:
        return frozenset()
    try:
        found = _message(ConsumerProtocolAssignment, assignment, is_whole=False)
    except MalformedRequest:
        return None
    return frozenset(
        (topic.topic, partition)
        for topic in found.assigned_partitions
        for partition in topic.partitions
    )


def _client(key: bytes, body: bytes | None) -> MemberChange:
    place = _message(ConsumerGroupMemberMetadataKey, key, is_key=True)
    if body is None:
        return MemberChange(place.group_id, place.member_id, False, None)
    of = _message(ConsumerGroupMemberMetadataValue, body)
    member = Member(place.member_id, of.client_id, of.client_host)
    return MemberChange(place.group_id, place.member_id, False, member)


def _assignment(key: bytes, body: bytes | None) -> MemberChange:
    place = _message(ConsumerGroupCurrentMemberAssignmentKey, key, is_key=True)
    if body is None:
        return MemberChange(place.group_id, place.member_id, True, None)
    of = _message(ConsumerGroupCurrentMemberAssignmentValue, body)
    partitions = frozenset(
        (topic.topic_id.hex(), partition)
        for topic in (*of.assigned_partitions, *of.partitions_pending_revocation)
        for partition in topic.partitions
    )
    member = Member(place.member_id, partitions=partitions)
    return MemberChange(place.group_id, place.member_id, True, member)


def _message(kind: type[M], data: bytes, *, is_key: bool = False, is_whole: bool = True) -> M:
    """A message behind its version, which is the record type in a key."""
    version = 0 if is_key else _int16(data)
    if len(data) < _VERSION_BYTES or version not in kind.VERSIONS:
        raise MalformedRequest(f"{kind.__name__} of version {version}, {len(data)} bytes")
    try:
        message, end = decode(kind, data, version, _VERSION_BYTES)
    except KafkaError as error:
        raise MalformedRequest(f"{kind.__name__}: {error}") from error
    if is_whole and end != len(data):
        raise MalformedRequest(f"{len(data) - end} bytes too many behind a {kind.__name__}")
    return message


def _int16(data: bytes) -> int:
    return int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
