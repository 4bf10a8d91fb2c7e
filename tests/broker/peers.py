"""Other brokers as a coordinator's requests reach them: each request waits until a test answers."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar, cast

from kbroker.metadata.image import PartitionImage
from kbroker.ports import Deferred
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError

R = TypeVar("R", bound=Response)


class Sent(NamedTuple):
    """A request under way."""

    broker_id: int
    purpose: str
    request: Any
    response: Deferred[Any]

    def fail(self, error: ErrorCode = ErrorCode.NETWORK_EXCEPTION) -> None:
        self.response.fail(KafkaError(error))


class Peers:
    """Of `PeerBrokers`. refused: brokers to which every request fails at once."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.refused: set[int] = set()

    def send(
        self, broker_id: int, purpose: str, request: Request, response_type: type[R]
    ) -> Deferred[R]:
        response: Deferred[R] = Deferred()
        self.sent.append(Sent(broker_id, purpose, request, cast(Deferred[Any], response)))
        if broker_id in self.refused:
            response.fail(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE))
        return response

    def take(self) -> list[Sent]:
        """The requests sent since the last call."""
        sent, self.sent = self.sent, []
        return sent


class Image:
    """The leaders of partitions, by (topic, index); a missing one was deleted."""

    def __init__(self, **leaders: list[int]) -> None:
        self.leaders = {
            (topic, index): leader
            for topic, ids in leaders.items()
            for index, leader in enumerate(ids)
        }
        self.topics_by_id: dict[bytes, object] = {}

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        leader = self.leaders.get((topic, index))
        if leader is None:
            return None
        return PartitionImage(replicas=(1, 2, 3), directories=(), isr=(1, 2, 3), leader=leader)
