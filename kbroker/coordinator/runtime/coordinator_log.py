"""The port to the logs of an internal topic, and the meaning of write errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode

ANY_EPOCH: Final = -1
"""Used instead of a leader epoch: any epoch in which this broker leads the partition."""
_NONE: Final = ErrorCode.NONE
"""Looking up an enum member costs ten times as much."""
_IN_LOG_ANYWAY: Final = frozenset(
    {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
)
"""The records were written; whether they are committed is not known."""
NOTHING_WRITTEN: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)
"""As the immediate result of an append these errors mean that nothing was written. After any other
error the log end offset is unknown.
"""

_CLIENT_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class Transactional(NamedTuple):
    """The producer whose transaction a write belongs to."""

    producer_id: int
    producer_epoch: int


class AppendOutcome(Protocol):
    """The outcome of an append; NONE: committed. Replication's PartitionAppendResult is one."""

    @property
    def error(self) -> ErrorCode: ...


class CoordinatorLog(Protocol):
    """The logs of the internal topic; `node/` binds it to the replica manager."""

    def append(
        self,
        topic_partition: TopicPartition,
        batch: bytearray,
        *,
        leader_epoch: int = ANY_EPOCH,
        transaction_version: int = 0,
    ) -> Deferred[AppendOutcome]:
        """Write one batch with acks=all. A pending Deferred means: written, not yet committed; it
        stays pending until the high watermark passes the batch or leadership is lost.

        leader_epoch: NOT_LEADER_OR_FOLLOWER unless this broker leads the partition in this epoch.
        transaction_version: that of the transaction that a marker completes.
        """
        ...

    def read(self, topic_partition: TopicPartition, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that contains offset on, at least one; b"" at the log's end.

        Up to the log end offset, not the high watermark: a leader never truncates its log, and a
        tail that was not replayed would be missing from the state once it is committed. An offset
        before the log start offset reads from there. Raises KafkaError.
        """
        ...

    def when_committed(self, topic_partition: TopicPartition) -> Deferred[ErrorCode]:
        """NONE once the high watermark reaches the current log end offset; the error if leadership
        is lost before. Never fails.
        """
        ...


def is_written(error: ErrorCode) -> bool:
    """Whether records whose append had this outcome are in the log and so in the state."""
    return error is _NONE or error in _IN_LOG_ANYWAY


def is_in_log(outcome: Deferred[ErrorCode]) -> bool:
    """Whether the records of a write with this outcome were replayed, even if its client gets an
    error. While the outcome is pending they are in the log.
    """
    return not outcome.done or is_written(outcome.value)


def client_error(error: ErrorCode) -> ErrorCode:
    """The error a client gets when its record could not be written for this reason, as in Kafka
    (CoordinatorOperationExceptionHelper).
    """
    return _CLIENT_ERRORS.get(error, error)


def commit_error(error: ErrorCode) -> ErrorCode:
    """As `client_error`, for committed offsets."""
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error in _TOO_LARGE else client_error(error)
