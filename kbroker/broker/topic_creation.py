"""Creates the internal topics of streams groups (KIP-1071): repartition topics and changelogs that
a heartbeat found missing. The member asks again until they are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse

CreatableTopic = CreateTopicsRequest.CreatableTopic
MAX_FAILURES: Final = 1_000
"""The oldest is forgotten, and so tried again, before its time."""


class TopicCreator(Protocol):
    """Where topics are created; ControllerRuntime is one."""

    def create_topics(self, request: CreateTopicsRequest) -> Deferred[CreateTopicsResponse]: ...


class StreamsTopics:
    """What is under way, and what failed lately. A failure is not tried again before its time."""

    __slots__ = ("_failures", "_under_way")

    def __init__(self) -> None:
        self._under_way: set[str] = set()
        self._failures: dict[str, tuple[int, str]] = {}
        """Until when, and why."""

    def create(
        self,
        topics: Sequence[CreatableTopic],
        creator: TopicCreator,
        *,
        now_ms: int,
        retry_ms: int,
    ) -> None:
        """Ask for those that are neither under way nor failed within retry_ms."""
        for name, (until_ms, _) in list(self._failures.items()):
            if until_ms <= now_ms:
                del self._failures[name]
        wanted = [
            topic
            for topic in topics
            if topic.name not in self._under_way and topic.name not in self._failures
        ]
        if not wanted:
            return
        names = [topic.name for topic in wanted]
        self._under_way.update(names)
        request = CreateTopicsRequest(topics=wanted, timeout_ms=retry_ms)
        try:
            asked = creator.create_topics(request)
        except KafkaError as error:
            self._under_way.difference_update(names)
            for name in names:
                self._fail(name, now_ms + retry_ms, error.message or error.code.name)
            return
        asked.on_done(partial(self._created, names, now_ms + retry_ms))

    def failures(self, topics: Iterable[CreatableTopic]) -> list[str]:
        """What went wrong with these: name and reason."""
        return [
            f"{topic.name} ({self._failures[topic.name][1]})"
            for topic in topics
            if topic.name in self._failures
        ]

    def _created(self, names: list[str], until_ms: int, response: CreateTopicsResponse) -> None:
        self._under_way.difference_update(names)
        for result in response.topics:
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                words = result.error_message or ErrorCode(result.error_code).name
                self._fail(result.name, until_ms, words)

    def _fail(self, name: str, until_ms: int, words: str) -> None:
        self._failures[name] = (until_ms, words)
        while len(self._failures) > MAX_FAILURES:
            del self._failures[next(iter(self._failures))]
