"""Internal topics of streams groups: asked for once, a failure is told and tried again later."""

from __future__ import annotations

from kbroker.broker.topic_creation import StreamsTopics
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse


class Creator:
    """Answers when told to. errors: by topic name."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.waiting: list[tuple[list[str], Deferred[CreateTopicsResponse]]] = []
        self.is_down = False

    def create_topics(self, request: CreateTopicsRequest) -> Deferred[CreateTopicsResponse]:
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
    streams.create(topics("a", "b"), creator, now_ms=0, retry_ms=100)
    streams.create(topics("b", "c"), creator, now_ms=1, retry_ms=100)
    assert creator.asked == [["a", "b"], ["c"]]
    creator.answer()
    creator.answer(c=ErrorCode.TOPIC_ALREADY_EXISTS)
    assert streams.failures(topics("a", "b", "c")) == []
    streams.create(topics("a"), creator, now_ms=2, retry_ms=100)  # somebody deleted it
    assert creator.asked[2:] == [["a"]]


def test_a_failure_is_told_until_it_is_tried_again() -> None:
    creator, streams = Creator(), StreamsTopics()
    streams.create(topics("a", "b"), creator, now_ms=0, retry_ms=100)
    creator.answer(b=ErrorCode.INVALID_REPLICATION_FACTOR)
    assert streams.failures(topics("a", "b")) == ["b (INVALID_REPLICATION_FACTOR)"]
    streams.create(topics("b"), creator, now_ms=99, retry_ms=100)
    assert len(creator.asked) == 1
    streams.create(topics("b"), creator, now_ms=100, retry_ms=100)
    assert creator.asked[1:] == [["b"]]
    assert streams.failures(topics("b")) == []


def test_a_controller_that_refuses_is_a_failure() -> None:
    creator, streams = Creator(), StreamsTopics()
    creator.is_down = True
    streams.create(topics("a"), creator, now_ms=0, retry_ms=100)
    assert streams.failures(topics("a")) == ["a (NOT_CONTROLLER)"]
    creator.is_down = False
    streams.create(topics("a"), creator, now_ms=100, retry_ms=100)
    assert creator.asked == [["a"]]
