"""`AppendRequest`: the options that all batches of one request are appended with."""

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
"""Earlier Produce requests have rules of their own for message sets and zstd."""

Reverify = Callable[[TopicPartition, bytearray | memoryview], Callable[[], ErrorCode] | None]
"""Makes the check of a batch that waits for its turn: called in its turn, it returns an error if
the batch may not be appended any more. None: there is nothing to check.
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
    """Made once per Produce request, for all its partitions; read-only.

    acks: 0, 1, or -1 (every member of the ISR). timeout_ms: how long an answer may wait for the
    ISR, None for as long as the partition is led here. now_ms: the wall clock. produce_version:
    None without a Produce request.
    transaction_version: of the transaction that a marker ends, or of the batches' producer.
    reverify: None if the request has no transaction; its transactional batches are refused.
    is_plain: of a client, with a version and acks that are not special.
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
        """The request of a coordinator or another part of the broker."""
        request = cls(acks, timeout_ms, now_ms, None, transaction_version)
        request.origin = origin
        request.is_plain = origin is _CLIENT and request.is_plain
        return request

    def at(self, now_ms: int) -> AppendRequest:
        """The same request of a client at a later time."""
        return AppendRequest(
            self.acks,
            self.timeout_ms,
            now_ms,
            self.produce_version,
            self.transaction_version,
            self.reverify,
        )

    def lacks_transaction(self, batches: bytearray | memoryview) -> bool:
        """Whether the batches belong to a transaction that the request does not have."""
        return self.reverify is None and is_transactional(batches)
