"""Topics that the broker has created for its clients: on a Metadata request for an unknown topic,
those of coordinators on FindCoordinator, and the internal topics of streams groups (KIP-1071),
repartition topics and changelogs that a heartbeat found missing. All of these clients ask again
until the topics exist.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from kbroker.log_lines import shown
from kbroker.metadata.internal_topics import INTERNAL_TOPICS
from kbroker.model import ClientIdentity
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse

logger = logging.getLogger(__name__)

CreatableTopic = CreateTopicsRequest.CreatableTopic
MAX_FAILURES: Final = 1_000
"""Of more failures the oldest is dropped; its topic is then tried again at once."""


class TopicCreator(Protocol):
    """The part of `BrokerChannel` that creates several topics at once."""

    def create_topics(
        self, request: CreateTopicsRequest, *, client: ClientIdentity | None
    ) -> Deferred[CreateTopicsResponse]: ...


class AutomaticTopicCreator(Protocol):
    """The part of `BrokerChannel` that creates single topics."""

    def ensure_topic(self, name: str, client: ClientIdentity | None) -> Deferred[ErrorCode]: ...

    def ensure_internal_topic(self, name: str) -> Deferred[ErrorCode]: ...


def auto_create(
    creator: AutomaticTopicCreator, name: str, client: ClientIdentity, *, node_id: int
) -> ErrorCode:
    """Request a topic with the broker's defaults, in the name of the client. Returns the error for
    the client meanwhile.
    """

    def refused(error: KafkaError) -> None:
        logger.info("node %d: topic %s is not created: %s", node_id, shown(name), shown(error))

    try:
        if name in INTERNAL_TOPICS:
            asked = creator.ensure_internal_topic(name)
        else:
            asked = creator.ensure_topic(name, client)
    except KafkaError as error:
        refused(error)
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if asked.done and asked.error is None and asked.value == ErrorCode.INVALID_TOPIC_EXCEPTION:
        return ErrorCode.INVALID_TOPIC_EXCEPTION

    def report(code: ErrorCode) -> None:
        if code != ErrorCode.NONE:
            logger.warning(
                "node %d: topic %s could not be created: %s", node_id, shown(name), code.name
            )

    asked.on_done(report, refused)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class InternalTopics:
    """Creations of internal topics for clients that are answered meanwhile (Kafka's
    AutoTopicCreationManager). While one is under way no client's request adds to it: clients ask
    several times per second, and the controller may be away for long.
    """

    __slots__ = ("_under_way",)

    def __init__(self) -> None:
        self._under_way: set[str] = set()

    def create(self, name: str, creator: AutomaticTopicCreator, *, node_id: int) -> None:
        """Request an internal topic, unless it is under way."""
        if name in self._under_way:
            return

        def refused(error: KafkaError) -> None:
            self._under_way.discard(name)
            logger.warning("node %d: %s is not created: %s", node_id, name, shown(error))

        self._under_way.add(name)
        try:
            asked = creator.ensure_internal_topic(name)
        except KafkaError as error:
            refused(error)
        else:  # the channel logs an error of the controller
            asked.on_done(lambda _: self._under_way.discard(name), refused)


class StreamsTopics:
    """Creations under way and recent failures. A failed topic is not requested again before the
    retry time.
    """

    __slots__ = ("_failures", "_under_way")

    def __init__(self) -> None:
        self._under_way: set[str] = set()
        self._failures: dict[str, tuple[int, str]] = {}
        """By topic name: the end of the retry time in ms, and the reason."""

    def create(
        self,
        topics: Sequence[CreatableTopic],
        creator: TopicCreator,
        client: ClientIdentity,
        *,
        now_ms: int,
        retry_ms: int,
    ) -> None:
        """Request the topics that are neither under way nor failed within retry_ms, in the name of
        the client.
        """
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
            asked = creator.create_topics(request, client=client)
        except KafkaError as error:
            self._refused(names, now_ms + retry_ms, error)
            return
        asked.on_done(
            partial(self._created, names, now_ms + retry_ms),
            partial(self._refused, names, now_ms + retry_ms),
        )

    def failures(self, topics: Iterable[CreatableTopic]) -> list[str]:
        """Name and reason of each of these topics that failed."""
        return [
            f"{topic.name} ({self._failures[topic.name][1]})"
            for topic in topics
            if topic.name in self._failures
        ]

    def _refused(self, names: list[str], until_ms: int, error: KafkaError) -> None:
        self._under_way.difference_update(names)
        for name in names:
            self._fail(name, until_ms, error.message or error.code.name)

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
