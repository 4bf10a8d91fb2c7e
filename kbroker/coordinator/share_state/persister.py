"""Access to the states of share partitions: the ports of `share/persister` and
`coordinator/group/share/persister`.

Retriable errors (the coordinator's topic is being created or loaded, or moves to another broker)
are retried. `ShareStates` is the coordinator of this broker (`service`), or in a cluster the
coordinators of all brokers (`broker/remote/remote_share_states`). A call to the coordinator of this
broker appends at once, so the calls about many partitions are begun in slices of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from kbroker.model import TopicIdPartition
from kbroker.ports import Deferred, Timers, as_kafka_error, follow, gather_by_key
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
"""The delay before the second attempt; doubled for each further one."""

CLUSTER_TRIES: Final = 10
"""The number of attempts in a cluster: 25 seconds in total, in which another broker takes over from
a failed coordinator. Kafka's five attempts take 31 seconds.
"""

T = TypeVar("T")


class ShareStates(Protocol):
    """Share coordinators. An error is part of each result; no Deferred fails."""

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        """ReadShareGroupState, one partition."""
        ...

    def write(self, key: SharePlace, write: StateWrite) -> Deferred[ErrorCode]:
        """WriteShareGroupState, one partition."""
        ...

    def initialize(
        self, key: SharePlace, state_epoch: int, start_offset: int
    ) -> Deferred[ErrorCode]:
        """InitializeShareGroupState, one partition."""
        ...

    def delete(self, key: SharePlace) -> Deferred[ErrorCode]:
        """DeleteShareGroupState, one partition."""
        ...

    def summarize(self, key: SharePlace) -> Deferred[StateSummary]:
        """ReadShareGroupStateSummary, one partition."""
        ...


class CallSlices(Protocol):
    """Runs steps in slices of the loop; `FairSlices` of `replication/time_slices` is one."""

    def begin(self, steps: Iterator[None], then: Callable[[Exception | None], None]) -> object:
        """Take these steps (each `next` is one), then call `then` with what a step raised or None;
        perhaps before this returns.
        """
        ...


class _Tries(Deferred[T], Generic[T]):
    """The result of a call that is repeated while its error is retriable, up to a number of
    attempts.
    """

    __slots__ = ("_ask", "_ensure_topic", "_error_of", "_left", "_pause_ms", "_timers")

    def __init__(
        self,
        ask: Callable[[], Deferred[T]],
        error_of: Callable[[T], ErrorCode],
        timers: Timers,
        ensure_topic: Callable[[], Deferred[ErrorCode]],
        tries: int,
    ) -> None:
        super().__init__()
        self._ask = ask
        self._error_of = error_of
        self._timers = timers
        self._ensure_topic = ensure_topic
        self._left = tries
        self._pause_ms = FIRST_PAUSE_MS

    def begin(self, _: object = None) -> None:
        """Make the next attempt."""
        self._ask().on_done(self._on_answer, self.fail)

    def _on_answer(self, found: T) -> None:
        self._left -= 1
        if self._error_of(found) not in COORDINATOR_IN_TRANSITION or not self._left:
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
    """Calls to the coordinators. ensure_topic: creates `__share_group_state` unless it exists;
    raises KafkaError. tries: the number of attempts of each call.
    """

    __slots__ = ("_ensure_topic", "_states", "_timers", "_tries")

    def __init__(
        self,
        states: ShareStates,
        timers: Timers,
        ensure_topic: Callable[[], Deferred[ErrorCode]],
        *,
        tries: int = TRIES,
    ) -> None:
        self._states = states
        self._timers = timers
        self._ensure_topic = ensure_topic
        self._tries = tries

    def _try(
        self, ask: Callable[[], Deferred[T]], error_of: Callable[[T], ErrorCode]
    ) -> Deferred[T]:
        tries = _Tries(ask, error_of, self._timers, self._ensure_topic, self._tries)
        tries.begin()
        return tries


class RetryingSharePersister(_Retrying):
    """A `SharePersister`: for the leaders of share partitions."""

    __slots__ = ()

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        """See the port."""
        return self._try(lambda: self._states.read(key, leader_epoch), _error_of_state)

    def write(self, key: SharePlace, write: StateWrite) -> Deferred[ErrorCode]:
        """See the port."""
        return self._try(lambda: self._states.write(key, write), _same)


class RetryingGroupStatePersister(_Retrying):
    """A `GroupStatePersister`: for share groups. on_reset: called with every state that was created
    again or deleted, since this broker may still cache the former one as the leader of the
    partition. Another broker detects the change when it next writes the state, as in Kafka. slices:
    the first slice is taken within a call; the results fail with BROKER_NOT_AVAILABLE if it is
    closed before all of them.
    """

    __slots__ = ("_on_reset", "_slices")

    def __init__(
        self,
        states: ShareStates,
        timers: Timers,
        ensure_topic: Callable[[], Deferred[ErrorCode]],
        *,
        on_reset: Callable[[SharePlace], None],
        slices: CallSlices,
        tries: int = TRIES,
    ) -> None:
        super().__init__(states, timers, ensure_topic, tries=tries)
        self._on_reset = on_reset
        self._slices = slices

    def initialize(
        self, group_id: str, state_epoch: int, start_offsets: Mapping[TopicIdPartition, int]
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        """See the port."""

        def ask(place: TopicIdPartition) -> Deferred[ErrorCode]:
            key, offset = SharePlace(group_id, place), start_offsets[place]
            return self._reset(key, partial(self._states.initialize, key, state_epoch, offset))

        return self._ask_each(start_offsets, ask)

    def delete(
        self, group_id: str, places: Sequence[TopicIdPartition]
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        """See the port."""

        def ask(place: TopicIdPartition) -> Deferred[ErrorCode]:
            key = SharePlace(group_id, place)
            return self._reset(key, partial(self._states.delete, key))

        return self._ask_each(places, ask)

    def summarize(
        self, group_id: str, places: Sequence[TopicIdPartition]
    ) -> Deferred[Mapping[TopicIdPartition, StateSummary]]:
        """See the port."""

        def ask(place: TopicIdPartition) -> Deferred[StateSummary]:
            key = SharePlace(group_id, place)
            return self._try(partial(self._states.summarize, key), _error_of_summary)

        return self._ask_each(places, ask)

    def _ask_each(
        self, places: Collection[TopicIdPartition], ask: Callable[[TopicIdPartition], Deferred[T]]
    ) -> Deferred[Mapping[TopicIdPartition, T]]:
        """The result of each partition. places: not changed by the caller afterwards."""
        asked: dict[TopicIdPartition, Deferred[T]] = {}
        result: Deferred[Mapping[TopicIdPartition, T]] = Deferred()

        def steps() -> Iterator[None]:
            for place in places:
                asked[place] = ask(place)
                yield

        def begun(failure: Exception | None) -> None:
            if failure is None:
                follow(result, gather_by_key(asked))
            else:
                result.fail(as_kafka_error(failure))

        self._slices.begin(steps(), begun)
        return result

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
