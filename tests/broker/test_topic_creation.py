"""Topics created for clients: automatically, and the internal topics of streams groups, which are
requested once; a failure is reported and tried again later.
"""

from __future__ import annotations

import logging

import pytest

from kbroker.broker.topic_creation import InternalTopics, StreamsTopics, auto_create
from kbroker.model import ClientIdentity
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse

CLIENT = ClientIdentity("User:a", "10.0.0.9", client_id="app")


class Creator:
    """Answers when told to. errors: by topic name."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.waiting: list[tuple[list[str], Deferred[CreateTopicsResponse]]] = []
        self.is_down = False

    def create_topics(
        self, request: CreateTopicsRequest, *, client: ClientIdentity | None
    ) -> Deferred[CreateTopicsResponse]:
        assert client == CLIENT
        if self.is_down:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        names = [topic.name for topic in request.topics]
        self.asked.append(names)
        deferred: Deferred[CreateTopicsResponse] = Deferred()
        self.waiting.append((names, deferred))
        return deferred

    def answer(self, **errors: ErrorCode) -> None:
        names, deferred = self.waiting.pop(0)
        results = [
            CreateTopicsResponse.CreatableTopicResult(
                name=name, error_code=errors.get(name, ErrorCode.NONE), error_message=None
            )
            for name in names
        ]
        deferred.resolve(CreateTopicsResponse(topics=results))


def topics(*names: str) -> list[CreateTopicsRequest.CreatableTopic]:
    return [CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1) for name in names]


def test_what_is_under_way_is_not_asked_for_again() -> None:
    creator, streams = Creator(), StreamsTopics()
    streams.create(topics("a", "b"), creator, CLIENT, now_ms=0, retry_ms=100)
    streams.create(topics("b", "c"), creator, CLIENT, now_ms=1, retry_ms=100)
    assert creator.asked == [["a", "b"], ["c"]]
    creator.answer()
    creator.answer(c=ErrorCode.TOPIC_ALREADY_EXISTS)
    assert streams.failures(topics("a", "b", "c")) == []
    streams.create(topics("a"), creator, CLIENT, now_ms=2, retry_ms=100)  # it was deleted since
    assert creator.asked[2:] == [["a"]]


def test_a_failure_is_told_until_it_is_tried_again() -> None:
    creator, streams = Creator(), StreamsTopics()
    streams.create(topics("a", "b"), creator, CLIENT, now_ms=0, retry_ms=100)
    creator.answer(b=ErrorCode.INVALID_REPLICATION_FACTOR)
    assert streams.failures(topics("a", "b")) == ["b (INVALID_REPLICATION_FACTOR)"]
    streams.create(topics("b"), creator, CLIENT, now_ms=99, retry_ms=100)
    assert len(creator.asked) == 1
    streams.create(topics("b"), creator, CLIENT, now_ms=100, retry_ms=100)
    assert creator.asked[1:] == [["b"]]
    assert streams.failures(topics("b")) == []


def test_a_controller_that_refuses_is_a_failure() -> None:
    creator, streams = Creator(), StreamsTopics()
    creator.is_down = True
    streams.create(topics("a"), creator, CLIENT, now_ms=0, retry_ms=100)
    assert streams.failures(topics("a")) == ["a (NOT_CONTROLLER)"]
    creator.is_down = False
    streams.create(topics("a"), creator, CLIENT, now_ms=100, retry_ms=100)
    assert creator.asked == [["a"]]


class SingleTopics:
    """Where topics are created automatically."""

    def __init__(self, answer: Deferred[ErrorCode] | KafkaError) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str]] = []

    def ensure_topic(self, name: str, client: ClientIdentity | None) -> Deferred[ErrorCode]:
        assert client == CLIENT
        return self._asked("topic", name)

    def ensure_internal_topic(self, name: str) -> Deferred[ErrorCode]:
        return self._asked("internal topic", name)

    def _asked(self, kind: str, name: str) -> Deferred[ErrorCode]:
        self.asked.append((kind, name))
        if isinstance(self.answer, KafkaError):
            raise self.answer
        return self.answer


def test_an_internal_topic_is_created_with_its_own_settings() -> None:
    creator = SingleTopics(Deferred())
    for name in ("events", "__consumer_offsets"):
        error = auto_create(creator, name, CLIENT, node_id=1)
        assert error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert creator.asked == [("topic", "events"), ("internal topic", "__consumer_offsets")]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Deferred.of(ErrorCode.NONE), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (Deferred.of(ErrorCode.INVALID_TOPIC_EXCEPTION), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (Deferred.of(ErrorCode.POLICY_VIOLATION), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (KafkaError(ErrorCode.NOT_CONTROLLER), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_what_the_client_is_told_meanwhile(
    answer: Deferred[ErrorCode] | KafkaError, error: ErrorCode
) -> None:
    assert auto_create(SingleTopics(answer), "events", CLIENT, node_id=1) is error


def test_a_creation_that_fails_later_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    creator = SingleTopics(answer := Deferred())
    auto_create(creator, "events", CLIENT, node_id=1)
    assert not caplog.records
    answer.resolve(ErrorCode.POLICY_VIOLATION)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "events" in record.getMessage() and "POLICY_VIOLATION" in record.getMessage()


def test_an_internal_topic_under_way_is_not_requested_again() -> None:
    topics, creator = InternalTopics(), SingleTopics(answer := Deferred())
    for name in ("__consumer_offsets", "__transaction_state") * 2:
        topics.create(name, creator, node_id=1)
    names = [name for _, name in creator.asked]
    assert names == ["__consumer_offsets", "__transaction_state"]
    answer.resolve(ErrorCode.INVALID_REPLICATION_FACTOR)
    topics.create("__consumer_offsets", creator, node_id=1)
    assert len(creator.asked) == 3


@pytest.mark.parametrize("at_once", [True, False])
def test_a_controller_that_does_not_create_an_internal_topic_is_asked_again(
    at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    error = KafkaError(ErrorCode.NOT_CONTROLLER)
    topics, creator = InternalTopics(), SingleTopics(error if at_once else Deferred.failed(error))
    for _ in range(2):
        topics.create("__consumer_offsets", creator, node_id=1)
    assert len(creator.asked) == len(caplog.records) == 2
