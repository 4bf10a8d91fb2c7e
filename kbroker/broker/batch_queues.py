"""Requests to other brokers in batches: one request is in flight per key, and the entries that are
added meanwhile leave together in the next one.

Kafka has the same queues in TransactionMarkerChannelManager, AddPartitionsToTxnManager and
PersisterStateManager. What a request contains and what its response means is decided in
`remote_markers`, `remote_verification` and `remote_share_states`. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from kbroker.ports import Deferred
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.schema import Response

K = TypeVar("K", bound=Hashable)
E = TypeVar("E")
R = TypeVar("R", bound=Response)

MAX_ENTRIES: Final = 1_000
"""Entries of one request. The others wait for its response."""


class BatchQueues(Generic[K, E, R]):
    """One queue per key; a key names a broker, and whatever else must be alike in one request.

    send: sends one request for some entries of a key. settle: called with the entries and their
    response. fail: called with the entries of a request without a response. Both give every entry
    its outcome; entries they add leave in the next request.
    """

    __slots__ = ("_fail", "_in_flight", "_send", "_settle", "_waiting")

    def __init__(
        self,
        send: Callable[[K, Sequence[E]], Deferred[R]],
        settle: Callable[[Sequence[E], R], None],
        fail: Callable[[Sequence[E], KafkaError], None],
    ) -> None:
        self._send = send
        self._settle = settle
        self._fail = fail
        self._waiting: dict[K, list[E]] = {}
        self._in_flight: set[K] = set()

    def add(self, key: K, entry: E) -> None:
        """Send the entry: at once if no request of its key is in flight."""
        self._waiting.setdefault(key, []).append(entry)
        self._send_next(key)

    def remove(self, key: K, entry: E) -> None:
        """Take a waiting entry out; its outcome is the caller's business."""
        self._waiting[key].remove(entry)

    def remove_all(self, is_removed: Callable[[E], bool]) -> list[E]:
        """Take waiting entries of all keys out. Those in flight are not recalled."""
        removed: list[E] = []
        for key, waiting in list(self._waiting.items()):
            gone = [entry for entry in waiting if is_removed(entry)]
            if gone:
                removed += gone
                self._waiting[key] = [entry for entry in waiting if not is_removed(entry)]
        return removed

    def _send_next(self, key: K) -> None:
        while key not in self._in_flight:
            waiting = self._waiting.pop(key, None)
            if not waiting:
                return
            if len(waiting) > MAX_ENTRIES:
                self._waiting[key] = waiting[MAX_ENTRIES:]
            entries = waiting[:MAX_ENTRIES]
            self._in_flight.add(key)
            sent = self._send(key, entries)
            if not sent.done:
                sent.on_done(
                    partial(self._answered, key, entries), partial(self._failed, key, entries)
                )
                return
            # In a loop: a broker that cannot be reached fails each request within the call.
            try:
                sent.on_done(partial(self._settle, entries), partial(self._fail, entries))
            finally:
                self._in_flight.discard(key)

    def _answered(self, key: K, entries: Sequence[E], response: R) -> None:
        try:
            self._settle(entries, response)
        finally:
            self._in_flight.discard(key)
            self._send_next(key)

    def _failed(self, key: K, entries: Sequence[E], error: KafkaError) -> None:
        try:
            self._fail(entries, error)
        finally:
            self._in_flight.discard(key)
            self._send_next(key)
