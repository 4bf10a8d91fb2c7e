"""Share sessions (KIP-932): the partitions that a member of a share group reads, across requests.

Epoch 0 begins a session, every further request increments the epoch, -1 ends the session. A session
belongs to the connection that began it and ends with that connection. Sessions are limited in
number, as in Kafka, and in memory for their partitions (docs/adr/0016). This is a core.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from kbroker.model import TopicIdPartition
from kbroker.ports import Memory, UnlimitedMemory
from kbroker.protocol.errors import ErrorCode, KafkaError

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_MAX_EPOCH: Final = 2**31 - 1

PARTITION_BYTES: Final = 320
"""Memory of a partition in a session: topic id, number, dict slot."""

SessionKey = tuple[str, str]
"""Group id, member id."""


class ShareSession:
    """One session. partitions: in the order in which they are served."""

    __slots__ = ("charged_bytes", "connection_id", "epoch", "key", "partitions")

    def __init__(self, key: SessionKey, connection_id: str) -> None:
        self.key = key
        self.connection_id = connection_id
        self.epoch = INITIAL_EPOCH
        self.charged_bytes = 0
        self.partitions: dict[TopicIdPartition, None] = {}

    @property
    def member_id(self) -> str:
        return self.key[1]

    def update(
        self, added: Iterable[TopicIdPartition], forgotten: Iterable[TopicIdPartition]
    ) -> None:
        """Add and remove partitions."""
        for place in forgotten:
            self.partitions.pop(place, None)
        for place in added:
            self.partitions.setdefault(place)

    def served(self, place: TopicIdPartition) -> None:
        """Move a partition that returned records to the end of the order."""
        if place in self.partitions:
            del self.partitions[place]
            self.partitions[place] = None

    def count(self) -> None:
        """Advance the epoch after a request of this session was accepted."""
        self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1


class ShareSessions:
    """The sessions of this broker, at most limit of them. memory: its share for kept memory is
    charged.
    """

    __slots__ = ("_by_group", "_limit", "_memory", "_sessions")

    def __init__(self, limit: int, memory: Memory | None = None) -> None:
        self._limit = limit
        self._memory = memory or UnlimitedMemory()
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_group: Counter[str] = Counter()
        """The number of sessions of each group; no group has 0."""

    def __len__(self) -> int:
        return len(self._sessions)

    def is_alive(self, session: ShareSession) -> bool:
        """Whether the session has neither ended nor been replaced."""
        return self._sessions.get(session.key) is session

    def has_group(self, group_id: str) -> bool:
        """Whether the group has a session."""
        return group_id in self._by_group

    def begin(self, key: SessionKey, connection_id: str) -> ShareSession:
        """Epoch 0: begin a session, which replaces the member's former one. Raises
        KafkaError(SHARE_SESSION_LIMIT_REACHED).
        """
        if key not in self._sessions and len(self._sessions) >= self._limit:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        former = self._sessions.get(key)
        if former is None:
            self._by_group[key[0]] += 1
        else:
            self._drop(former)
        session = self._sessions[key] = ShareSession(key, connection_id)
        session.count()
        return session

    def go_on(self, key: SessionKey, epoch: int) -> ShareSession:
        """Continue the session with a further request. Raises KafkaError: SHARE_SESSION_NOT_FOUND,
        INVALID_SHARE_SESSION_EPOCH.
        """
        session = self._find(key)
        if epoch != session.epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.count()
        return session

    def end(self, key: SessionKey) -> ShareSession:
        """Epoch -1: the last request. Raises KafkaError(SHARE_SESSION_NOT_FOUND)."""
        session = self._find(key)
        del self._sessions[key]
        self._by_group[key[0]] -= 1
        if not self._by_group[key[0]]:
            del self._by_group[key[0]]
        self._drop(session)
        return session

    def account(self, session: ShareSession) -> bool:
        """Charge the current size of a session. Returns False if the memory is not available: the
        session must end.
        """
        if not self.is_alive(session):
            return True  # this was its last request
        growth = len(session.partitions) * PARTITION_BYTES - session.charged_bytes
        if growth <= 0:
            self._memory.drop(-growth)
        elif not self._memory.keep(growth):
            return False
        session.charged_bytes += growth
        return True

    def of_connection(self, connection_id: str) -> list[ShareSession]:
        """The sessions that end with a connection."""
        return [
            session for session in self._sessions.values() if session.connection_id == connection_id
        ]

    def _drop(self, session: ShareSession) -> None:
        self._memory.drop(session.charged_bytes)
        session.charged_bytes = 0

    def _find(self, key: SessionKey) -> ShareSession:
        session = self._sessions.get(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session
