"""What can fail in an exactly-once write, each in one line that says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from kbroker.protocol.errors import ErrorCode, KafkaError

from ..session import JobError


class SinkError(JobError):
    """A batch cannot be written; the query stops. One line that names cause and remedy."""


class SecondDriver(SinkError):
    """Another driver has taken over the transactional id."""


class BatchTooLong(SinkError):
    """The broker aborted the transaction, because the batch took longer than its timeout."""


class AttemptRefused(Exception):
    """An earlier attempt of the same task may have written to the partition in this transaction.

    Raised, not reported: Spark then runs the task again or lets the earlier attempt finish.
    """


class Failure(Enum):
    """What the driver does about the failure of a task."""

    RESTART = "restart"
    """Abort, and begin the batch again under a new epoch."""
    FATAL = "fatal"
    """Abort and stop: a new attempt would fail too."""
    FENCED = "fenced"
    """The producer epoch is no longer valid: another driver, or the transaction timeout."""


class TaskFailure(Exception):
    """A task cannot write its rows. It is reported to the driver as a result, so that attempts of
    Spark, which would be refused, do not hide its cause.
    """

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message


FENCED_CODES: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""Another driver has a newer epoch of the transactional id, or the transaction timed out."""

_RESTART_CODES: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)

_ADVICE: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create the topic first, or correct its name",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant Write and Describe on the topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "grant Read on the group",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "grant Write and Describe on the transactional id"
    ),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "grant IdempotentWrite on the cluster",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (
        "the cluster has no transaction coordinator: has it as many brokers as "
        "transaction.state.log.replication.factor?"
    ),
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        "lower transaction_timeout_ms, or raise transaction.max.timeout.ms of the brokers"
    ),
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (
        "fewer replicas are in sync than min.insync.replicas"
    ),
    ErrorCode.UNSUPPORTED_VERSION: "transactions need brokers of Apache Kafka 0.11 or later",
    ErrorCode.MESSAGE_TOO_LARGE: "raise max.message.bytes of the topic",
    ErrorCode.RECORD_LIST_TOO_LARGE: "raise segment.bytes of the topic",
    ErrorCode.INVALID_TIMESTAMP: (
        "the topic limits timestamps (message.timestamp.before.max.ms, after.max.ms)"
    ),
    ErrorCode.INVALID_RECORD: "a compacted topic takes no record without a key",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "choose another compression",
}


def described(error: KafkaError, action: str) -> str:
    """`action: error; advice`, in one line."""
    text = f"{action}: {error}"
    advice = _ADVICE.get(error.code)
    if advice is not None:
        text += f"; {advice}"
    return text.replace("\n", " ")


def sink_error(error: KafkaError, action: str) -> SinkError:
    """The error of a request that the driver gave up. action: what it was to do."""
    return SinkError(described(error, action))


def task_failure(error: KafkaError, action: str) -> TaskFailure:
    """The failure of a task whose request was answered with error, after all retries."""
    if error.code in FENCED_CODES:
        failure = Failure.FENCED
    elif error.code in _RESTART_CODES or error.code.retriable:
        failure = Failure.RESTART
    else:
        failure = Failure.FATAL
    return TaskFailure(failure, described(error, action))
