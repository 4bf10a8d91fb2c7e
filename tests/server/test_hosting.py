"""Creating and deleting many partitions while each of them takes a turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kbroker.metadata.image import MetadataImage
from kbroker.model import TopicPartition
from kbroker.node.broker import broker_role as broker_module
from kbroker.node.node import Broker
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, DeleteTopicsRequest
from kbroker.replication.appends.append import PartitionAppendResult
from kbroker.replication.time_slices import TimeSlices
from kbroker.settings.broker import BrokerConfig
from kbroker.testing.embedded import EmbeddedBroker

PARTITIONS = 40


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedBroker]:
    monkeypatch.setattr(broker_module, "TimeSlices", partial(TimeSlices, seconds=0))
    with EmbeddedBroker() as broker:
        yield broker


def creation(name: str) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=PARTITIONS, replication_factor=1
    )
    return CreateTopicsRequest(topics=[topic])


def error_of_last(broker: Broker, topic: str) -> ErrorCode:
    outcome = broker.services.replicas.append(
        TopicPartition(topic, PARTITIONS - 1),
        build_batch([(0, None, b"v", [])]),
        acks=1,
        timeout_ms=1000,
    )
    assert isinstance(outcome, PartitionAppendResult)
    return outcome.error


def test_the_answer_waits_for_the_last_partition(broker: EmbeddedBroker) -> None:
    broker.create_topic("events", PARTITIONS)
    assert broker.call(lambda each: error_of_last(each, "events")) == ErrorCode.NONE


def test_what_the_metadata_has_and_is_not_hosted_yet(broker: EmbeddedBroker) -> None:
    """The client is not told: a producer whose first batch came too early and whose second one did
    not would never get the first one in.
    """
    errors: list[ErrorCode] = []
    told: list[bool] = []

    def create_and_look(each: Broker):  # type: ignore[no-untyped-def]  # a Deferred
        def published(old: MetadataImage, new: MetadataImage) -> None:
            errors.append(error_of_last(each, "events"))
            told.append("events" in each.services.image.topics)

        each.metadata.on_image(published)
        return each.services.controller.create_topics(creation("events"))

    broker.wait(create_and_look)
    assert told == [False, False]
    assert broker.call(lambda each: "events" in each.services.image.topics)
    assert errors[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors[1] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert broker.call(lambda each: error_of_last(each, "events")) == ErrorCode.NONE


def test_deleted_and_made_anew_at_once(broker: EmbeddedBroker) -> None:
    broker.create_topic("events", PARTITIONS)
    broker.call(lambda each: error_of_last(each, "events"))
    answers: list[str] = []

    def delete_and_create(each: Broker):  # type: ignore[no-untyped-def]  # a Deferred
        controller = each.services.controller
        deletion = DeleteTopicsRequest(topic_names=["events"])
        controller.delete_topics(deletion, api_version=5).on_done(
            lambda response: answers.append("deleted")
        )
        created = controller.create_topics(creation("events"))
        created.on_done(lambda response: answers.append("created"))
        return created

    broker.wait(delete_and_create)
    assert answers == ["deleted", "created"]

    def hosted(each: Broker) -> set[bytes]:
        image = each.services.image
        logs = each.services.replicas.logs.logs
        assert len(logs) == PARTITIONS
        assert all(log.log_end_offset == 0 for log in logs.values())
        return {log.topic_id for log in logs.values()} ^ {image.topics["events"].topic_id}  # type: ignore[arg-type]  # each has an id

    assert broker.call(hosted) == set()


def test_an_answer_without_a_change_waits_too(broker: EmbeddedBroker) -> None:
    hosted: list[int] = []

    def create_twice(each: Broker):  # type: ignore[no-untyped-def]  # a Deferred
        controller = each.services.controller

        def answered(error: ErrorCode) -> None:
            assert error == ErrorCode.NONE
            hosted.append(len(each.services.replicas.logs.logs))

        def published(old: object, new: MetadataImage) -> None:
            if "events" in new.topics and not hosted:
                controller.ensure_topic("events").on_done(answered)

        each.metadata.on_image(published)
        return controller.create_topics(creation("events"))

    broker.wait(create_twice)
    assert hosted == [PARTITIONS]


@pytest.mark.parametrize("clean", [True, False])
def test_an_end_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: bool) -> None:
    monkeypatch.setattr(broker_module, "TimeSlices", partial(TimeSlices, seconds=0))
    config = BrokerConfig.from_properties(
        {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    )

    async def script() -> None:
        broker = Broker(config)
        await broker.start()
        published = asyncio.Event()
        broker.metadata.on_image(
            lambda old, new: published.set() if "events" in new.topics else None
        )
        broker.services.controller.create_topics(creation("events"))
        await published.wait()
        assert 0 < len(broker.services.replicas.logs.logs) < PARTITIONS
        if clean:
            await broker.stop()
        else:
            broker.kill()
            await asyncio.sleep(0)

    async def again() -> None:
        broker = Broker(config)
        await broker.start()
        assert len(broker.services.replicas.logs.logs) == PARTITIONS
        assert error_of_last(broker, "events") == ErrorCode.NONE
        await broker.stop()

    asyncio.run(script())
    asyncio.run(again())
