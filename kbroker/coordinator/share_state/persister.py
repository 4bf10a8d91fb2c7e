"""Access to the states of share partitions whose coordinator is on this broker: the ports of
`share/persister` and `coordinator/group/share/persister`.

Errors that pass - the coordinator's topic is being created or loaded - are retried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from kbroker.coordinator.share_state.service import ShareCoordinator
from kbroker.model import TopicIdPartition
from kbroker.ports import Deferred, Timers, gather_by_key
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.share_partition_state import (
    COORDINATOR_IN_TRANSITION,
    SharePlace,
    StateFound,
    StateSummary,
    StateWrite,
)

TRIES: Final = 6
FIRST_PAUSE_MS: Final = 50
"""Before the second try; doubled from try to try."""

T = TypeVar("T")


class _Tries(Deferred[T], Generic[T]):
    """The result of a call, which is repeated while its error passes, `TRIES` times at most."""

    __slots__ = ("_ask", "_count", "_ensure_topic", "_error_of", "_pause_ms", "_timers")

    def __init__(
        self,
        ask: Callable[[], Deferred[T]],
        error_of: Callable[[T], ErrorCode],
        timers: Timers,
        ensure_topic: Callable[[], Deferred[ErrorCode]],
    ) -> None:
        super().__init__()
        self._ask = ask
        self._error_of = error_of
        self._timers = timers
        self._ensure_topic = ensure_topic
        self._count = 0
        self._pause_ms = FIRST_PAUSE_MS

    def begin(self, _: object = None) -> None:
        """Call once more."""
        self._ask().on_done(self._on_answer, self.fail)

    def _on_answer(self, found: T) -> None:
        self._count += 1
        if self._error_of(found) not in COORDINATOR_IN_TRANSITION or self._count == TRIES:
            self.resolve(found)
            return
        self._timers.call_later(self._pause_ms, self._retry)
        self._pause_ms *= 2

    def _retry(self) -> None:
        """Call again once `__share_group_state` exists, or at once if it cannot be created."""
        try:
            ensured = self._ensure_topic()
        except KafkaError:
            self.begin()
        else:
            ensured.on_done(self.begin, self.begin)


class _Retrying:
    """Calls to the coordinator. ensure_topic: creates `__share_group_state` unless it exists;
    raises KafkaError.
    """

    __slots__ = ("_coordinator", "_ensure_topic", "_timers")

    def __init__(
        self,
        coordinator: ShareCoordinator,
        timers: Timers,
        ensure_topic: Callable[[], Deferred[ErrorCode]],
    ) -> None:
        self._coordinator = coordinator
        self._timers = timers
        self._ensure_topic = ensure_topic

    def _try(
        self, ask: Callable[[], Deferred[T]], error_of: Callable[[T], ErrorCode]
    ) -> Deferred[T]:
        tries = _Tries(ask, error_of, self._timers, self._ensure_topic)
        tries.begin()
        return tries


class LocalSharePersister(_Retrying):
    """A `SharePersister`: for the leaders of share partitions."""

    __slots__ = ()

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        """See the port."""
        return self._try(lambda: self._coordinator.read(key, leader_epoch), _error_of_state)

    def write(self, key: SharePlace, write: StateWrite) -> Deferred[ErrorCode]:
        """See the port."""
        return self._try(lambda: self._coordinator.write(key, write), _same)


class LocalGroupStatePersister(_Retrying):
    """A `GroupStatePersister`: for share groups. on_reset: called with every state that was created
    anew or deleted, since a leader of the partition may still hold the former one.
    """

    __slots__ = ("_on_reset",)

    def __init__(
        self,
        coordinator: ShareCoordinator,
        timers: Timers,
        ensure_topic: Callable[[], Deferred[ErrorCode]],
        *,
        on_reset: Callable[[SharePlace], None],
    ) -> None:
        super().__init__(coordinator, timers, ensure_topic)
        self._on_reset = on_reset

    def initialize(
        self, group_id: str, state_epoch: int, start_offsets: Mapping[TopicIdPartition, int]
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        """See the port."""
        initialized = {}
        for place, offset in start_offsets.items():
            key = SharePlace(group_id, place)
            initialized[place] = self._reset(
                key, partial(self._coordinator.initialize, key, state_epoch, offset)
            )
        return gather_by_key(initialized)

    def delete(
        self, group_id: str, places: Sequence[TopicIdPartition]
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        """See the port."""
        deleted = {}
        for place in places:
            key = SharePlace(group_id, place)
            deleted[place] = self._reset(key, partial(self._coordinator.delete, key))
        return gather_by_key(deleted)

    def summarize(
        self, group_id: str, places: Sequence[TopicIdPartition]
    ) -> Deferred[Mapping[TopicIdPartition, StateSummary]]:
        """See the port."""
        return gather_by_key(
            {
                place: self._try(
                    partial(self._coordinator.summarize, SharePlace(group_id, place)),
                    _error_of_summary,
                )
                for place in places
            }
        )

    def _reset(
        self, key: SharePlace, ask: Callable[[], Deferred[ErrorCode]]
    ) -> Deferred[ErrorCode]:
        def reset(error: ErrorCode) -> ErrorCode:
            if error is ErrorCode.NONE:
                self._on_reset(key)
            return error

        return self._try(ask, _same).then(reset)


def _same(error: ErrorCode) -> ErrorCode:
    return error


def _error_of_state(found: StateFound) -> ErrorCode:
    return found.error


def _error_of_summary(found: StateSummary) -> ErrorCode:
    return found.error
