"""ShareFetch and ShareAcknowledge of very many partitions: taken over in steps, with the answer of
the handler that takes none.
"""

from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.schema import Request
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.share_groups import (
    ShareAcknowledgeRequest,
    ShareFetchRequest,
)
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.time_slices import STEP_ITEMS
from kbroker.server.handlers.groups.share_fetch import HANDLERS
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services
from kbroker.server.session import Session
from kbroker.server.slicing.sliced import CHEAP_ITEMS
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.share_groups import ShareGroupConfig
from kbroker.share import reader
from kbroker.share.partitions import SharePartitions
from kbroker.share.persister import SharePersister
from kbroker.share.reader import ShareReader
from tests.share.test_skips import FakePersister, FakeReplica, FakeReplicas
from tests.sim.offload import run_inline
from tests.sim.timers import SimTimers

MANY = 2000
MEMBER = ("g", "member")
TOPIC_ID = bytes(15) + b"t"
CONNECTION = Session("c", "PLAINTEXT", "127.0.0.1")


class NoReplicas(FakeReplicas):
    """No partition is hosted."""

    def find(self, topic_id: bytes, index: int) -> Any:
        return ErrorCode.UNKNOWN_TOPIC_ID


class World:
    """A reader whose acknowledgements and releases are counted."""

    def __init__(self) -> None:
        self.timers = SimTimers()
        replicas = cast(ReplicaManager, NoReplicas(FakeReplica([]), self.timers))
        config = ShareGroupConfig()
        partitions = SharePartitions(
            replicas, cast(SharePersister, FakePersister()), self.timers, lambda _: config
        )
        self.acknowledged: list[int] = []
        self.released: list[str] = []
        acknowledge, release = partitions.acknowledge, partitions.release

        def counted(key: Any, *rest: Any, **options: Any) -> Any:
            self.acknowledged.append(key.place[1])
            return acknowledge(key, *rest, **options)

        def noted(group_id: str, member_id: str) -> Any:
            self.released.append(member_id)
            return release(group_id, member_id)

        partitions.acknowledge, partitions.release = counted, noted  # type: ignore[method-assign]  # a stand-in
        self.reader = ShareReader(
            replicas,
            partitions,
            self.timers,
            lambda _: config,
            offload=run_inline,
            max_sessions=10,
        )
        self.services = cast(
            Services,
            SimpleNamespace(share_reader=self.reader, config=BrokerConfig.from_properties({})),
        )

    def steps(self, request: Request) -> Generator[Deferred[Any] | None, None, Any]:
        handler = handler_of(request)
        assert handler.steps is not None
        return handler.steps(self.services, context_of(request), request)

    def at_once(self, request: Request) -> Any:
        outcome = handler_of(request).handle(self.services, context_of(request), request)
        assert isinstance(outcome, Deferred)
        self.timers.advance(1)
        return outcome.value

    def run(self, steps: Generator[Deferred[Any] | None, None, Any]) -> Any:
        """To the answer, from wherever the steps are."""
        while True:
            self.timers.advance(1)
            try:
                next(steps)
            except StopIteration as end:
                return end.value

    def begin(self) -> None:
        self.reader.session(MEMBER, 0, CONNECTION.connection_id)

    @property
    def size(self) -> int:
        session = self.reader.sessions._sessions.get(MEMBER)
        return len(session.partitions) if session else 0


def handler_of(request: Request) -> Any:
    is_fetch = isinstance(request, ShareFetchRequest)
    return next(each for each in HANDLERS if (each.api_key is ApiKey.SHARE_FETCH) == is_fetch)


def context_of(request: Request) -> RequestContext:
    return RequestContext(handler_of(request).api_key, 2, session=CONNECTION)


def fetch(epoch: int, count: int = MANY, *, acknowledge: bool = False) -> ShareFetchRequest:
    kind = ShareFetchRequest
    batches = [kind.AcknowledgementBatch(first_offset=3, last_offset=3, acknowledge_types=[1])]
    return kind(
        group_id=MEMBER[0],
        member_id=MEMBER[1],
        share_session_epoch=epoch,
        max_bytes=1000,
        topics=[
            kind.FetchTopic(
                topic_id=TOPIC_ID,
                partitions=[
                    kind.FetchPartition(
                        partition_index=index,
                        acknowledgement_batches=batches if acknowledge else [],
                    )
                    for index in range(count)
                ],
            )
        ],
    )


def acknowledge(epoch: int, count: int = MANY, *, batches: int = 1) -> ShareAcknowledgeRequest:
    kind = ShareAcknowledgeRequest
    said = [
        kind.AcknowledgementBatch(first_offset=offset, last_offset=offset, acknowledge_types=[1])
        for offset in range(batches)
    ]
    partitions = [
        kind.AcknowledgePartition(partition_index=index, acknowledgement_batches=said)
        for index in range(count)
    ]
    return kind(
        group_id=MEMBER[0],
        member_id=MEMBER[1],
        share_session_epoch=epoch,
        topics=[kind.AcknowledgeTopic(topic_id=TOPIC_ID, partitions=partitions)],
    )


@pytest.fixture
def world() -> World:
    return World()


def test_a_session_grows_in_steps(world: World) -> None:
    steps = world.steps(fetch(0))
    former = 0
    while world.size < MANY:
        assert next(steps) is None
        assert world.size - former <= reader.STEP_PLACES
        former = world.size
    response = world.run(steps)
    assert response == World().at_once(fetch(0))
    assert len(response.responses[0].partitions) == MANY


def test_a_session_shrinks_in_steps(world: World) -> None:
    world.run(world.steps(fetch(0)))
    request = fetch(1, 0)
    kind = ShareFetchRequest.ForgottenTopic
    request.forgotten_topics_data = [kind(topic_id=TOPIC_ID, partitions=list(range(MANY)))]
    steps = world.steps(request)
    former = MANY
    while world.size:
        assert next(steps) is None
        assert former - world.size <= reader.STEP_PLACES
        former = world.size
    assert not world.run(steps).responses


@pytest.mark.parametrize("make", [acknowledge, lambda epoch: fetch(epoch, acknowledge=True)])
def test_acknowledgements_are_passed_on_in_steps(world: World, make: Any) -> None:
    world.begin()
    steps = world.steps(make(1))
    former = 0
    while next(steps) is None:
        assert len(world.acknowledged) - former <= STEP_ITEMS
        former = len(world.acknowledged)
    whole = World()
    whole.begin()
    assert world.run(steps) == whole.at_once(make(1))
    assert world.acknowledged == list(range(MANY))


def test_many_batches_of_one_partition_are_looked_at_in_steps(world: World) -> None:
    world.begin()
    steps = world.steps(acknowledge(1, 1, batches=MANY))
    pauses = 0
    while next(steps) is None:
        pauses += 1
    assert pauses >= MANY // CHEAP_ITEMS
    assert world.acknowledged == [0]


@pytest.mark.parametrize("make", [acknowledge, fetch])
def test_a_last_request_whose_connection_is_closed_ends_the_session(
    world: World, make: Any
) -> None:
    """At every one of its steps: what the member had acquired is released."""
    for taken in range(1, 5):
        world.begin()
        world.released.clear()
        steps = world.steps(make(-1))
        for _ in range(taken):
            assert next(steps) is None
        steps.close()
        world.reader.disconnected(CONNECTION.connection_id)
        assert world.released == [MEMBER[1]]


def test_a_session_that_is_replaced_during_a_pause(world: World) -> None:
    steps = world.steps(fetch(0))
    while not world.size:
        assert next(steps) is None
    world.reader.session(MEMBER, 0, "another connection")
    with pytest.raises(KafkaError) as raised:
        world.run(steps)
    assert raised.value.code is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert world.size == 0
