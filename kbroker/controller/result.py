"""The result of a decision of the controller: records to append and the response to give once they
are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError

MAX_RECORDS_PER_OPERATION: Final = 10_000
MAX_REGISTERED_ITEMS: Final = 1000
"""Listeners that a node may register, features, and directories. Its registration is one record,
which every node replays at once. Kafka has no bound.
"""

TOO_MANY_RECORDS: Final = "Unable to perform excessively large batch operation."


R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
T = TypeVar("T")

CHANGES_PER_STEP: Final = 16
"""Partitions whose change is decided in one step: a few milliseconds of work."""


class ControllerResult(msgspec.Struct, Generic[R_co], frozen=True):
    """atomic: the records count together or not at all, so they go into one batch. kraft_version:
    the quorum is upgraded to that level, by control records before these.
    """

    records: Sequence[Message]
    response: R_co
    atomic: bool = True
    kraft_version: int | None = None


DecisionSteps = Generator[None, None, ControllerResult[R_co]]
"""A decision in steps; it holds the image across them, since no other operation is carried out
before the last one.
"""

Decision = ControllerResult[R_co] | DecisionSteps[R_co]

RecordSteps = Generator[None, None, list[Message]]
"""Records of a decision, found in steps."""


def in_steps(decision: Decision[R]) -> DecisionSteps[R]:
    """The steps of a decision, none if it is complete."""
    if isinstance(decision, ControllerResult):
        return decision
    return (yield from decision)


ChargePartitions = Callable[[int], None]
"""Charges so many created or deleted partitions to the client's quota, where they would be decided
on (KIP-599). Raises KafkaError(THROTTLING_QUOTA_EXCEEDED) to refuse them.
"""


def free_of_charge(partition_count: int) -> None:
    """The charge of a client without a quota."""


def check_record_count(count: int) -> None:
    """Raises KafkaError(POLICY_VIOLATION) for more records than one request of a client may
    write.
    """
    if count > MAX_RECORDS_PER_OPERATION:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, TOO_MANY_RECORDS)


def check_registration_size(*lists: Sequence[object]) -> None:
    """Raises KafkaError(INVALID_REGISTRATION) if a node registers too many listeners, features or
    directories.
    """
    if any(len(each) > MAX_REGISTERED_ITEMS for each in lists):
        message = f"A node registers at most {MAX_REGISTERED_ITEMS} listeners, features, log_dirs"
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, message)
