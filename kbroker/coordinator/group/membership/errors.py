"""Errors that consumer, share and streams groups have in common. The texts are Kafka's: clients
show them, and tests of clients compare them.
"""

from __future__ import annotations

from kbroker.protocol.errors import ErrorCode, KafkaError


def group_not_found(kind: str, group_id: str) -> KafkaError:
    """kind: "consumer", "share" or "streams", here and below."""
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"{kind.capitalize()} group {group_id} not found."
    )


def unknown_member(group_id: str, member_id: str) -> KafkaError:
    """The group has no such member."""
    message = f"Member {member_id} is not a member of group {group_id}."
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)


def group_is_full(kind: str, max_size: int) -> KafkaError:
    """The group has reached its maximum size."""
    message = f"The {kind} group has reached its maximum capacity of {max_size} members."
    return KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)


def fenced_epoch(kind: str, epoch: int, known_epoch: int, detail: str = "") -> KafkaError:
    """A member's epoch differs from the one it sent."""
    greater = "greater" if epoch > known_epoch else "smaller"
    return KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The {kind} group member has a {greater} member epoch ({epoch}) than the one known by "
        f"the group coordinator ({known_epoch}){detail}. "
        "The member must abandon all its partitions and rejoin.",
    )
