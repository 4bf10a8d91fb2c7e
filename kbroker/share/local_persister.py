"""The way from share groups and share partitions to the coordinator of their states, which is on
this broker. What is only for a while - its topic is being made or loaded - is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from kbroker.coordinator.share_state.persister import (
    SharePlace,
    StateFound,
    StateSummary,
    StateWrite,
)
from kbroker.coordinator.share_state.service import ShareCoordinator, gathered
from kbroker.model import TopicIdPartition
from kbroker.ports import Deferred, Timers
from kbroker.protocol.errors import ErrorCode, KafkaError

PASSING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
TRIES: Final = 6
FIRST_PAUSE_MS: Final = 50
"""Doubled from try to try."""

T = TypeVar("T")


class LocalSharePersister:
    """A `coordinator.share_persister.SharePersister`. ensure_topic: makes `__share_group_state`
    unless it is there; raises KafkaError.
    """

    __slots__ = ("_coordinator", "_ensure_topic", "_timers", "on_reset")

    def __init__(
        self,
        coordinator: ShareCoordinator,
        timers: Timers,
        ensure_topic: Callable[[], Deferred[ErrorCode]],
    ) -> None:
        self._coordinator = coordinator
        self._timers = timers
        self._ensure_topic = ensure_topic
        self.on_reset: Callable[[SharePlace], None] = lambda key: None
        """Told of states that began anew or ended."""

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        """See the port."""
        return self._try(lambda: self._coordinator.read(key, leader_epoch), lambda r: r.error)

    def write(self, key: SharePlace, write: StateWrite) -> Deferred[ErrorCode]:
        """See the port."""
        return self._try(lambda: self._coordinator.write(key, write), _same)

    def initialize(
        self, group_id: str, state_epoch: int, start_offsets: Mapping[TopicIdPartition, int]
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        """See the port."""
        made = {}
        for place, offset in start_offsets.items():
            key = SharePlace(group_id, place)
            ask = partial(self._coordinator.initialize, key, state_epoch, offset)
            made[place] = self._try(ask, _same)
            made[place].on_done(partial(self._reset, key))
        return gathered(made)

    def delete(
        self, group_id: str, places: Sequence[TopicIdPartition]
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        """See the port."""
        deleted = {}
        for place in places:
            key = SharePlace(group_id, place)
            deleted[place] = self._try(partial(self._coordinator.delete, key), _same)
            deleted[place].on_done(partial(self._reset, key))
        return gathered(deleted)

    def _reset(self, key: SharePlace, error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            self.on_reset(key)

    def summarize(
        self, group_id: str, places: Sequence[TopicIdPartition]
    ) -> Deferred[Mapping[TopicIdPartition, StateSummary]]:
        """See the port."""
        return gathered(
            {
                place: self._try(
                    partial(self._coordinator.summarize, SharePlace(group_id, place)),
                    lambda r: r.error,
                )
                for place in places
            }
        )

    def _try(
        self, ask: Callable[[], Deferred[T]], error_of: Callable[[T], ErrorCode]
    ) -> Deferred[T]:
        tries = _Tries(ask, error_of, self._timers, self._ensure_topic)
        tries.begin()
        return tries


class _Tries(Deferred[T], Generic[T]):
    """The answer to what is asked until it is more than a passing error, `TRIES` times at most."""

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

    def begin(self) -> None:
        """Ask once more."""
        self._ask().on_done(self._answered)

    def _answered(self, found: T) -> None:
        self._count += 1
        if self._error_of(found) not in PASSING or self._count == TRIES:
            self.resolve(found)
            return
        self._timers.call_later(self._pause_ms, self._again)
        self._pause_ms *= 2

    def _again(self) -> None:
        """Ask once the states have a topic, or at once where it cannot be made."""
        try:
            created = self._ensure_topic()
        except KafkaError:
            self.begin()
        else:
            created.on_done(lambda _: self.begin())


def _same(error: ErrorCode) -> ErrorCode:
    return error
