"""Requests to other brokers in batches: one request is in flight per key, and entries that are
added before its response are sent together in the next one.

Entries outlive the call that adds them, for as long as the other broker takes to answer. They are
charged to the node's memory for that time. Beyond a bound they are refused, and the caller answers
its client with a retriable error: while a broker does not answer, its queue must not grow with
every client.

Kafka has the same queues in TransactionMarkerChannelManager, AddPartitionsToTxnManager and
PersisterStateManager. What a request contains and what its response means is decided in
`remote_markers`, `remote_verification` and `remote_share_states`. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from kbroker.ports import Deferred, Memory
from kbroker.protocol.codecs.schema import Response
from kbroker.protocol.errors import KafkaError

K = TypeVar("K", bound=Hashable)
E = TypeVar("E")
R = TypeVar("R", bound=Response)

MAX_ENTRIES: Final = 1_000
"""Entries of one request, if each is small. The others wait for its response."""

MAX_HELD_BYTES: Final = 16 * 1024 * 1024
"""Of the entries of all keys, in flight or waiting. A single entry may be larger."""

ENTRY_BYTES: Final = 1_152
"""An entry with its Deferred and its part of the request (measured: 850 to 1,100 bytes). What it
names or holds comes on top.
"""

PARTITION_BYTES: Final = 112
"""A partition in an entry and in its request (measured: 80 to 100 bytes)."""


class BatchQueues(Generic[K, E, R]):
    """One queue per key; a key names a broker, and whatever else must be alike in one request.

    send: sends one request for some entries of a key. settle: called with the entries and their
    response. fail: called with the entries of a request without a response. Both give every entry
    its outcome; entries they add leave in the next request. size: the bytes that an entry holds,
    always the same. memory: where they are charged. max_entries: of one request, which is made in
    one turn of the loop.
    """

    __slots__ = (
        "_fail",
        "_held_bytes",
        "_in_flight",
        "_max_entries",
        "_memory",
        "_send",
        "_settle",
        "_size",
        "_waiting",
    )

    def __init__(
        self,
        send: Callable[[K, Sequence[E]], Deferred[R]],
        settle: Callable[[Sequence[E], R], None],
        fail: Callable[[Sequence[E], KafkaError], None],
        *,
        size: Callable[[E], int],
        memory: Memory,
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        self._send = send
        self._settle = settle
        self._fail = fail
        self._size = size
        self._memory = memory
        self._max_entries = max_entries
        self._held_bytes = 0
        self._waiting: dict[K, list[E]] = {}
        self._in_flight: set[K] = set()

    def add(self, key: K, entry: E) -> bool:
        """Send the entry: at once if no request of its key is in flight. False: there is no room
        for it, and its outcome is the caller's business. The first entry always has room.
        """
        count = self._size(entry)
        if self._held_bytes and (
            self._held_bytes + count > MAX_HELD_BYTES or not self._memory.has_room(count)
        ):
            return False
        self._held_bytes += count
        self._memory.charge(count)
        self._waiting.setdefault(key, []).append(entry)
        self._send_next(key)
        return True

    def remove(self, key: K, entry: E) -> None:
        """Take a waiting entry out; its outcome is the caller's business."""
        self._waiting[key].remove(entry)
        self._release((entry,))

    def remove_all(self, is_removed: Callable[[E], bool]) -> list[E]:
        """Take waiting entries of all keys out. Those in flight are not recalled."""
        removed: list[E] = []
        for key, waiting in list(self._waiting.items()):
            gone = [entry for entry in waiting if is_removed(entry)]
            if gone:
                removed += gone
                self._waiting[key] = [entry for entry in waiting if not is_removed(entry)]
        self._release(removed)
        return removed

    def _release(self, entries: Sequence[E]) -> None:
        count = sum(map(self._size, entries))
        self._held_bytes -= count
        self._memory.release(count)

    def _send_next(self, key: K) -> None:
        while key not in self._in_flight:
            waiting = self._waiting.pop(key, None)
            if not waiting:
                return
            if len(waiting) > self._max_entries:
                self._waiting[key] = waiting[self._max_entries :]
            entries = waiting[: self._max_entries]
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
                self._end(key, entries)

    def _answered(self, key: K, entries: Sequence[E], response: R) -> None:
        try:
            self._settle(entries, response)
        finally:
            self._end(key, entries)
            self._send_next(key)

    def _failed(self, key: K, entries: Sequence[E], error: KafkaError) -> None:
        try:
            self._fail(entries, error)
        finally:
            self._end(key, entries)
            self._send_next(key)

    def _end(self, key: K, entries: Sequence[E]) -> None:
        self._in_flight.discard(key)
        self._release(entries)
