"""Share sessions: what they hold of memory. Their epochs are in the tests of the handlers."""

from __future__ import annotations

import pytest

from kbroker.model import TopicIdPartition
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.share.session import PARTITION_BYTES, ShareSession, ShareSessions

KEY = ("group", "member")


def places(count: int, start: int = 0) -> list[TopicIdPartition]:
    return [(bytes(16), index) for index in range(start, start + count)]


def begun(sessions: ShareSessions, count: int, member: str = "member") -> ShareSession:
    session = sessions.begin(("group", member), "connection")
    session.update(places(count), ())
    return session


def test_a_session_beyond_the_share_of_memory_has_no_room() -> None:
    memory = MemoryPool(1 << 20)
    sessions = ShareSessions(2000, memory)
    fits = memory.kept_limit // PARTITION_BYTES
    assert sessions.account(begun(sessions, fits))
    assert not sessions.account(begun(sessions, 1, "another"))
    assert memory.kept == fits * PARTITION_BYTES


def test_memory_comes_back_with_partitions_forgotten_and_sessions_ended() -> None:
    memory = MemoryPool(1 << 20)
    sessions = ShareSessions(2000, memory)
    session = begun(sessions, 100)
    assert sessions.account(session)
    session.update((), places(60))
    assert sessions.account(session)
    assert memory.kept == 40 * PARTITION_BYTES
    again = begun(sessions, 10)
    assert memory.kept == 0, "the member begins anew"
    assert sessions.account(again)
    sessions.end(KEY)
    assert memory.kept == 0
    assert sessions.account(again), "the last request of a session"
    assert memory.kept == 0


def test_places_are_bounded_too() -> None:
    sessions = ShareSessions(1)
    begun(sessions, 1)
    with pytest.raises(KafkaError) as raised:
        begun(sessions, 1, "another")
    assert raised.value.code == ErrorCode.SHARE_SESSION_LIMIT_REACHED


def test_a_group_has_a_session_until_its_last_one_ends() -> None:
    sessions = ShareSessions(4)
    for member in ("a", "b", "a"):  # the third one replaces the first
        sessions.begin(("g", member), "c")
    sessions.begin(("h", "a"), "c")
    sessions.end(("g", "a"))
    assert sessions.has_group("g") and sessions.has_group("h")
    sessions.end(("g", "b"))
    assert not sessions.has_group("g") and sessions.has_group("h")
    sessions.begin(("g", "b"), "c")
    assert sessions.has_group("g")
