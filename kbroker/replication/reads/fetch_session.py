"""Fetch sessions (KIP-227, topic ids by KIP-516): a session remembers what a client reads, so that
its requests name only changes.

The partitions of a session are a `FetchSet` that outlives the request; a request without a session
gets a set of its own. Which context a request has, by its (session id, session epoch):

    (any, -1)   no session; an old one of that id is closed
    (any, 0)    full: an old one is closed, a new one made if the cache has room
    (id, n)     incremental: session id must be there, at epoch n, and name topics in the same way

A session needs a slot, and memory for each partition. Kafka counts slots only, and a slot may hold
any number of partitions (docs/adr/0016). A session that grows beyond the memory is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from copy import copy
from random import Random
from typing import Final

from kbroker.ports import Memory, UnlimitedMemory
from kbroker.protocol.codecs.pieces import pieces
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.replication.reads.fetch_set import (
    STEP_ITEMS,
    FetchSet,
)

NO_SESSION_ID: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MIN_EVICTION_MS: Final = 120_000
"""A session that is younger, or was used more recently, is not evicted for a smaller one."""


class FetchSession(FetchSet):
    """A set that outlives the request. epoch: the session epoch of the next request. charged_bytes:
    the memory that is charged for it.
    """

    __slots__ = ("by_id", "charged_bytes", "created_ms", "epoch", "id")

    lasts = True

    def __init__(self, session_id: int, *, by_id: bool, replica_id: int, now_ms: int) -> None:
        super().__init__(replica_id)
        self.id = session_id
        self.by_id = by_id
        self.charged_bytes = 0
        self.epoch = INITIAL_EPOCH + 1
        self.created_ms = now_ms
        self.last_used_ms = now_ms

    @property
    def is_privileged(self) -> bool:
        """Whether it is a follower's session, which is never evicted for a client's."""
        return self.replica_id >= 0


def next_epoch(epoch: int) -> int:
    """The epoch after this one; 0 and -1 are skipped, as they have meanings of their own."""
    return 1 if epoch == 0x7FFF_FFFF else epoch + 1


class FetchContext:
    """The partitions from which a request is answered. error: the whole request fails with it, and
    nothing else is set.

    full: the response has every partition; otherwise only those with records or changes.
    """

    __slots__ = ("error", "fetch_set", "full", "session_id")

    def __init__(
        self,
        fetch_set: FetchSet,
        *,
        full: bool,
        session_id: int = NO_SESSION_ID,
        error: ErrorCode = ErrorCode.NONE,
    ) -> None:
        self.fetch_set = fetch_set
        self.full = full
        self.session_id = session_id
        self.error = error


def _at_once(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


class FetchSessionCache:
    """All sessions of a broker, least recently used first. slots:
    max.incremental.fetch.session.cache.slots. memory: charged for them, from its share for kept
    bytes. close: takes the steps in which a session of perhaps very many partitions is closed, the
    first one at once. evictions: sessions closed for other sessions or for memory, so far.
    """

    __slots__ = ("_close", "_memory", "_random", "_sessions", "evictions", "slots")

    def __init__(
        self,
        slots: int,
        random: Random,
        memory: Memory | None = None,
        *,
        close: Callable[[Iterator[None]], object] = _at_once,
    ) -> None:
        self.slots = slots
        self._close = close
        self._random = random
        self._memory = memory or UnlimitedMemory()
        self._sessions: dict[int, FetchSession] = {}
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    @property
    def partition_count(self) -> int:
        return sum(session.size for session in self._sessions.values())

    def context(
        self, request: FetchRequest, *, by_id: bool, replica_id: int, now_ms: int
    ) -> FetchContext:
        """Find or create the set that a request reads, and apply the request's changes to it.
        by_id: v13 and newer.
        """
        epoch = request.session_epoch
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if request.session_id != NO_SESSION_ID:
                self.remove(request.session_id)
            fetch_set: FetchSet | None = None
            session_id = NO_SESSION_ID
            if epoch == INITIAL_EPOCH and request.topics:
                session = self._create(request, by_id=by_id, replica_id=replica_id, now_ms=now_ms)
                if session is not None:
                    fetch_set, session_id = session, session.id
            if fetch_set is None:
                fetch_set = FetchSet(replica_id)
                fetch_set.update(request.topics, by_id=by_id)
            return FetchContext(fetch_set, full=True, session_id=session_id)
        session = self._sessions.get(request.session_id)
        if session is None:
            return _failed(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return _failed(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            return _failed(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.waiter is not None:
            session.waiter.ready()
            session.waiter = None
        if request.topics:
            session.update(request.topics, by_id=by_id)
        if request.forgotten_topics_data:
            session.forget(request.forgotten_topics_data, by_id=by_id)
        if session.held_bytes != session.charged_bytes and not self._account(session, now_ms):
            self.remove(session.id)  # the client begins anew
            return _failed(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if not session.size:
            self.remove(session.id)
            return FetchContext(FetchSet(replica_id), full=True)
        session.epoch = next_epoch(epoch)
        session.last_used_ms = now_ms
        del self._sessions[session.id]
        self._sessions[session.id] = session
        return FetchContext(session, full=False, session_id=session.id)

    def context_in_steps(
        self, request: FetchRequest, *, by_id: bool, replica_id: int, now_ms: int
    ) -> Generator[None, None, FetchContext]:
        """As `context`, in steps, for a request of perhaps very many partitions.

        An incremental request advances the epoch in its first step. It fails if the session ends or
        another request of the session is handled before the last step.
        """
        unnamed = copy(request)
        unnamed.topics, unnamed.forgotten_topics_data = [], []
        context = self.context(unnamed, by_id=by_id, replica_id=replica_id, now_ms=now_ms)
        if context.error:
            return context
        if not context.full:
            return (yield from self._change_in_steps(context, request, by_id, now_ms))
        if request.session_epoch == INITIAL_EPOCH and request.topics:
            size = sum(len(topic.partitions) for topic in request.topics)
            if self._has_slot(size, replica_id, now_ms):
                session = self._new_session(by_id, replica_id, now_ms)
                yield from _fill_in_steps(session, request, by_id)
                if self._has_slot(size, replica_id, now_ms) and self._keep(session, now_ms):
                    return FetchContext(session, full=True, session_id=session.id)
                yield from session.close_in_steps()
        yield from _fill_in_steps(context.fetch_set, request, by_id)
        return context

    def _change_in_steps(
        self, context: FetchContext, request: FetchRequest, by_id: bool, now_ms: int
    ) -> Generator[None, None, FetchContext]:
        """Apply the changes of an incremental request to its session."""
        session = self._sessions[context.session_id]
        epoch = session.epoch
        for piece in _changes(request):
            session.update(piece.topics, by_id=by_id)
            session.forget(piece.forgotten_topics_data, by_id=by_id)
            if not self._account(session, now_ms):
                self.remove(session.id)
            else:
                yield
            if session.closed:
                return _failed(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            if session.epoch != epoch:
                return _failed(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if not session.size:
            self.remove(session.id)
            return FetchContext(FetchSet(session.replica_id), full=True)
        return context

    def remove(self, session_id: int) -> None:
        """Close a session. No effect if it does not exist."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._memory.drop(session.charged_bytes)
            session.charged_bytes = 0
            self._close(session.close_in_steps())

    def withdraw(self, response: FetchResponse) -> int:
        """Called when a response is not sent: its partitions are dirty again, so that the next
        response has the same. Returns the session id for the empty response in its place:
        NO_SESSION_ID without a session, and if the client does not know the session yet, which is
        closed then.
        """
        session = self._sessions.get(response.session_id)
        if session is None:
            return NO_SESSION_ID
        if session.epoch == INITIAL_EPOCH + 1:
            self.remove(session.id)
            return NO_SESSION_ID
        for topic in response.responses:
            key = topic.topic_id if session.by_id else topic.topic
            session.reread(key, (data.partition_index for data in topic.partitions))
        return session.id

    def give_back_memory(self) -> None:
        """Called under memory pressure: closes the least recently used sessions until the rest is
        within its share.
        """
        while self._sessions and self._memory.overdrawn:
            self.evictions += 1
            self.remove(next(iter(self._sessions)))

    def close(self) -> None:
        """Called when the broker stops."""
        for session_id in tuple(self._sessions):
            self.remove(session_id)

    def _create(
        self, request: FetchRequest, *, by_id: bool, replica_id: int, now_ms: int
    ) -> FetchSession | None:
        size = sum(len(topic.partitions) for topic in request.topics)
        if not self._has_slot(size, replica_id, now_ms):
            return None
        session = self._new_session(by_id, replica_id, now_ms)
        session.update(request.topics, by_id=by_id)
        if not self._keep(session, now_ms):
            session.clear()
            return None
        return session

    def _has_slot(self, size: int, replica_id: int, now_ms: int) -> bool:
        """Whether a new session of so many partitions has a slot; may evict another session."""
        return len(self._sessions) < self.slots or self._evict(
            size, privileged=replica_id >= 0, now_ms=now_ms
        )

    def _new_session(self, by_id: bool, replica_id: int, now_ms: int) -> FetchSession:
        """A session that is not in the cache yet."""
        session_id = NO_SESSION_ID
        while session_id == NO_SESSION_ID or session_id in self._sessions:
            session_id = self._random.randrange(1, 0x7FFF_FFFF)
        return FetchSession(session_id, by_id=by_id, replica_id=replica_id, now_ms=now_ms)

    def _keep(self, session: FetchSession, now_ms: int) -> bool:
        """Add a new session to the cache. Returns False if there is no memory for it."""
        if session.id in self._sessions or not self._account(session, now_ms):
            return False
        self._sessions[session.id] = session
        return True

    def _account(self, session: FetchSession, now_ms: int) -> bool:
        """Charge a session by its present size. Returns False if there is no memory for it."""
        growth = session.held_bytes - session.charged_bytes
        if growth < 0:
            self._memory.drop(-growth)
        else:
            while not self._memory.lend(growth):
                if not self._evict_for_memory(session, now_ms):
                    return False
        session.charged_bytes += growth
        return True

    def _evict_for_memory(self, session: FetchSession, now_ms: int) -> bool:
        """Evict a session that was not used for long, or a client's session for a follower's.

        A larger session does not win here: it would displace many.
        """
        for other in self._sessions.values():  # the stalest first
            if other is session:
                continue
            if now_ms - other.last_used_ms > MIN_EVICTION_MS or (
                session.is_privileged and not other.is_privileged
            ):
                self.evictions += 1
                self.remove(other.id)
                return True
            if not session.is_privileged:
                break
        return False

    def _evict(self, size: int, *, privileged: bool, now_ms: int) -> bool:
        """Free a slot: evict the least recently used session if it was not used for long, otherwise
        one that ranks below the new one.

        A follower's session ranks above a client's, and then a larger one above a smaller one.
        Young sessions stay, except that a follower's evicts a young client's.
        """
        stalest = next(iter(self._sessions.values()), None)
        if stalest is None:
            return False
        victim: FetchSession | None = stalest
        if now_ms - stalest.last_used_ms <= MIN_EVICTION_MS:
            victim = min(self._evictable(privileged, now_ms), key=_worth, default=None)
            if victim is None or (privileged, size) <= _worth(victim)[:2]:
                return False
        if victim is not None:
            self.evictions += 1
            self.remove(victim.id)
        return True

    def _evictable(self, privileged: bool, now_ms: int) -> Iterable[FetchSession]:
        for session in self._sessions.values():
            if now_ms - session.created_ms > MIN_EVICTION_MS or (
                privileged and not session.is_privileged
            ):
                yield session


def _fill_in_steps(fetch_set: FetchSet, request: FetchRequest, by_id: bool) -> Iterator[None]:
    """Add the partitions that a request names to a new set, which is cleared if the request ends
    before the last step.
    """
    is_filled = False
    try:
        for piece, _ in pieces(request, ("topics", "partitions"), STEP_ITEMS):
            fetch_set.update(piece.topics, by_id=by_id)
            yield
        is_filled = True
    finally:
        if not is_filled:
            fetch_set.clear()


def _changes(request: FetchRequest) -> Iterator[FetchRequest]:
    """The partitions that an incremental request adds or changes, then those that it drops."""
    updates, drops = copy(request), copy(request)
    updates.forgotten_topics_data, drops.topics = [], []
    for piece, _ in pieces(updates, ("topics", "partitions"), STEP_ITEMS):
        yield piece
    for piece, _ in pieces(drops, ("forgotten_topics_data", "partitions"), STEP_ITEMS):
        yield piece


def _worth(session: FetchSession) -> tuple[bool, int, int]:
    return session.is_privileged, session.size, session.id


def _failed(error: ErrorCode) -> FetchContext:
    return FetchContext(FetchSet(), full=True, error=error)
