"""`AppendRequest`: the options for appending all batches of one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kbroker.log.validator import AppendOrigin
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_header import (
    FLAGS_POSITION,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL_FLAG,
)
from kbroker.protocol.errors import ErrorCode

PLAIN_SINCE_PRODUCE_VERSION: Final = 7
"""Earlier Produce versions have rules of their own for message sets and zstd."""

Reverify = Callable[[TopicPartition, bytearray | memoryview], Callable[[], ErrorCode] | None]
"""Makes the check that runs before a postponed batch is appended: a function that returns an error
if the batch may not be appended any more. None: no check is needed.
"""

_CLIENT: Final = AppendOrigin.CLIENT


def is_transactional(batches: memoryview | bytearray) -> bool:
    """Whether the first batch belongs to a transaction. False for too few bytes, which the log then
    refuses.
    """
    return (
        len(batches) > FLAGS_POSITION
        and bool(batches[FLAGS_POSITION] & TRANSACTIONAL_FLAG)
        and batches[MAGIC_POSITION] == MAGIC
    )


def never_reverify(partition: TopicPartition, batches: bytearray | memoryview) -> None:
    """The `Reverify` of an appender whose transactions need no verification."""


class AppendRequest:
    """Made once per Produce request and shared by all its partitions; read-only.

    acks: 0, 1, or -1 (every member of the ISR). timeout_ms: how long the response may wait for the
    ISR; None: as long as this broker leads the partition. now_ms: the wall clock. produce_version:
    None if there is no Produce request. transaction_version: of the transaction that a marker
    completes, or of the producer of the batches. reverify: None if the request has no transaction;
    its transactional batches are refused. is_plain: sent by a client, with a Produce version and
    acks that need no special rule.
    """

    __slots__ = (
        "acks",
        "is_plain",
        "now_ms",
        "origin",
        "produce_version",
        "reverify",
        "timeout_ms",
        "transaction_version",
    )

    def __init__(
        self,
        acks: int,
        timeout_ms: int | None,
        now_ms: int,
        produce_version: int | None = None,
        transaction_version: int = 0,
        reverify: Reverify | None = never_reverify,
    ) -> None:
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.now_ms = now_ms
        self.produce_version = produce_version
        self.transaction_version = transaction_version
        self.reverify = reverify
        self.origin = _CLIENT
        self.is_plain = acks in (-1, 0, 1) and (
            produce_version is None or produce_version >= PLAIN_SINCE_PRODUCE_VERSION
        )

    @classmethod
    def of_origin(
        cls,
        origin: AppendOrigin,
        acks: int,
        timeout_ms: int | None,
        now_ms: int,
        transaction_version: int = 0,
    ) -> AppendRequest:
        """The request of a coordinator or another component of the broker."""
        request = cls(acks, timeout_ms, now_ms, None, transaction_version)
        request.origin = origin
        request.is_plain = origin is _CLIENT and request.is_plain
        return request

    def at(self, now_ms: int) -> AppendRequest:
        """The same client request, at a later time."""
        return AppendRequest(
            self.acks,
            self.timeout_ms,
            now_ms,
            self.produce_version,
            self.transaction_version,
            self.reverify,
        )

    def lacks_transaction(self, batches: bytearray | memoryview) -> bool:
        """Whether the batches are transactional although the request has no transaction."""
        return self.reverify is None and is_transactional(batches)
