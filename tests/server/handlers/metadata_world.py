"""A hand-made image and the services of the handlers that describe it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from kbroker.metadata.image import (
    BrokerRegistration,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from kbroker.metadata.layered_map import LayeredMap
from kbroker.model import ClientIdentity, Uuid
from kbroker.ports import Deferred, UnlimitedMemory
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.metadata import (
    MetadataRequest,
)
from kbroker.replication.time_slices import FairSlices
from kbroker.server.requests import Outcome
from kbroker.server.services import Services
from tests.replication.test_time_slices import Ticks, Turns

DIRECTORY = bytes([9] * 16)
EVENTS_ID = bytes([1] * 16)
LIMITS = {
    "max.request.partition.size.limit": 2000,
    "kbroker.auto.create.topics.per.request": 100,
}
MetadataRequestTopic = MetadataRequest.MetadataRequestTopic


def broker(
    number: int, *, fenced: bool = False, listeners: str = "PLAINTEXT"
) -> BrokerRegistration:
    endpoints = {name: Endpoint(name, f"host-{number}", 9092) for name in listeners.split()}
    return BrokerRegistration(
        number, 100 + number, bytes(16), endpoints, f"rack-{number}", fenced, log_dirs=(DIRECTORY,)
    )


def topic(name: str, topic_id: Uuid, partitions: int, leader: int = 1) -> TopicImage:
    return TopicImage(
        name,
        topic_id,
        {
            index: PartitionImage((1, 2), (DIRECTORY,) * 2, (1, 2), leader=leader, leader_epoch=3)
            for index in range(partitions)
        },
    )


class Controller:
    """Remembers which topics were to be created."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.clients: list[ClientIdentity | None] = []
        self.answer: Deferred[ErrorCode] = Deferred()

    def ensure_topic(self, name: str, client: ClientIdentity | None) -> Deferred[ErrorCode]:
        self.asked.append(name)
        self.clients.append(client)
        return self.answer

    def ensure_internal_topic(self, name: str) -> Deferred[ErrorCode]:
        self.asked.append(f"internal {name}")
        return self.answer


def services(
    *, brokers: list[BrokerRegistration] | None = None, leader: int = 1, auto_create: bool = True
) -> Services:
    topics = [
        topic("events", EVENTS_ID, 3, leader),
        topic("__consumer_offsets", bytes([2] * 16), 1, leader),
    ]
    image = MetadataImage(
        cluster_id="cluster",
        brokers={b.id: b for b in brokers or [broker(1), broker(2)]},
        topics=LayeredMap({t.name: t for t in topics}),
        topics_by_id=LayeredMap({t.topic_id: t for t in topics}),
    )
    config = SimpleNamespace(get_bool=lambda name: auto_create, get_int=LIMITS.__getitem__)
    turns = Turns()
    return cast(
        Services,
        SimpleNamespace(
            node_id=1,
            cluster_id="cluster",
            image=image,
            config=config,
            channel=Controller(),
            timers=turns,
            slices=FairSlices(turns, seconds=0.004, clock=Ticks()),
            memory=UnlimitedMemory(),
        ),
    )


def answer(of: Services, outcome: Outcome) -> Any:
    """The response, after as many turns of the loop as it takes."""
    if isinstance(outcome, Deferred):
        while not outcome.done:
            cast(Turns, of.timers).turn()
        return outcome.value
    return outcome
