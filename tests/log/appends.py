"""Appends to a log in tests."""

from __future__ import annotations

from kbroker.log.append_request import AppendRequest
from kbroker.log.appending import Postponed
from kbroker.log.partition_log import PartitionLog
from kbroker.log.results import Appended, FlushDue, Refused
from kbroker.log.validator import AppendOrigin
from kbroker.protocol.errors import KafkaError


def request_of(
    now_ms: int,
    *,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    produce_version: int | None = None,
    transaction_version: int = 0,
) -> AppendRequest:
    """A request with acks=1."""
    if origin is AppendOrigin.CLIENT:
        return AppendRequest(1, 0, now_ms, produce_version, transaction_version)
    return AppendRequest.of_origin(origin, 1, 0, now_ms, transaction_version)


def append_as_leader(
    log: PartitionLog,
    batches: bytearray | memoryview,
    *,
    leader_epoch: int,
    now_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    produce_version: int | None = None,
    transaction_version: int = 0,
) -> Appended:
    """Append, synchronously. Raises KafkaError for rejected batches, LogDirectoryError."""
    request = request_of(
        now_ms,
        origin=origin,
        produce_version=produce_version,
        transaction_version=transaction_version,
    )
    return appended(log.append(batches, leader_epoch, request))


def appended(outcome: Appended | FlushDue | Refused | Postponed) -> Appended:
    """The offsets of the appended batches. Raises KafkaError for rejected ones."""
    if isinstance(outcome, Refused):
        raise KafkaError(outcome.error, outcome.error_message or "")
    if isinstance(outcome, FlushDue):
        return outcome.appended
    assert isinstance(outcome, Appended)
    return outcome
