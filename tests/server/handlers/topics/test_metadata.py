"""Metadata over a hand-made image."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import pytest

from kbroker.metadata.image import (
    BrokerRegistration,
)
from kbroker.model import ZERO_UUID, Uuid
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataResponse,
)
from kbroker.server.handlers.topics import metadata, topic_partitions
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services
from tests.replication.test_time_slices import Turns
from tests.server.handlers.metadata_world import (
    EVENTS_ID,
    Controller,
    MetadataRequestTopic,
    answer,
    broker,
    services,
)


def ask(
    of: Services,
    names: list[str | None] | None = None,
    version: int = 13,
    ids: list[Uuid] | None = None,
    **fields: bool,
) -> MetadataResponse:
    entries = None if names is None else [MetadataRequestTopic(name=name) for name in names]
    if ids is not None:
        entries = [MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in ids]
    context = RequestContext(ApiKey.METADATA, version)
    request = MetadataRequest(topics=entries, **fields)  # type: ignore[arg-type]  # fields of the request
    return cast(MetadataResponse, answer(of, metadata.handle_metadata(of, context, request)))


def test_brokers_and_all_topics() -> None:
    response = ask(services())
    assert response.cluster_id == "cluster"
    assert [(b.node_id, b.host, b.port, b.rack) for b in response.brokers] == [
        (1, "host-1", 9092, "rack-1"),
        (2, "host-2", 9092, "rack-2"),
    ]
    assert response.controller_id in {b.node_id for b in response.brokers}
    events, offsets = response.topics
    assert (events.name, events.topic_id, events.is_internal) == ("events", EVENTS_ID, False)
    assert (offsets.name, offsets.is_internal) == ("__consumer_offsets", True)
    partition = events.partitions[2]
    assert (partition.partition_index, partition.leader_id, partition.leader_epoch) == (2, 1, 3)
    assert (partition.replica_nodes, partition.isr_nodes) == ([1, 2], [1, 2])
    assert partition.offline_replicas == [] and partition.error_code == ErrorCode.NONE


def test_no_topics_means_all_in_v0_and_none_later() -> None:
    assert len(ask(services(), [], version=0).topics) == 2
    assert ask(services(), [], version=1).topics == []


def test_unknown_topics_without_creation() -> None:
    names: list[str | None] = ["nope", "bad name", "events", "nope"]
    response = ask(services(), names, allow_auto_topic_creation=False)
    assert [(t.name, t.error_code) for t in response.topics] == [
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("events", ErrorCode.NONE),
    ]


def test_auto_creation_asks_the_controller_and_says_unknown_for_now() -> None:
    of = services()
    controller = cast(Controller, of.channel)
    response = ask(of, ["new", "__transaction_state", "bad name", "events"])
    assert controller.asked == ["new", "internal __transaction_state"]
    assert controller.clients == [RequestContext(ApiKey.METADATA, 13).identity], "in its name"
    assert [t.error_code for t in response.topics] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NONE,
    ]


def test_auto_creation_that_is_refused() -> None:
    of = services()
    cast(Controller, of.channel).answer = Deferred.of(ErrorCode.INVALID_TOPIC_EXCEPTION)
    assert ask(of, ["a.b"]).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    cast(Controller, of.channel).answer = Deferred.of(ErrorCode.INVALID_REPLICATION_FACTOR)
    assert ask(of, ["new"]).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(("by_broker", "by_client"), [(False, True), (True, False)])
def test_no_auto_creation_unless_both_want_it(by_broker: bool, by_client: bool) -> None:
    of = services(auto_create=by_broker)
    ask(of, ["new"], allow_auto_topic_creation=by_client)
    assert cast(Controller, of.channel).asked == []


def test_one_request_creates_a_bounded_number_of_topics() -> None:
    """312 KB of names became 12,000 topics. A client asks again for those that are not there."""
    of = services()
    names: list[str | None] = [f"t{index}" for index in range(12_000)]
    response = ask(of, names)
    assert cast(Controller, of.channel).asked == names[:100]
    assert [each.name for each in response.topics] == names
    assert {each.error_code for each in response.topics} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    cast(Turns, of.timers).turn()
    ask(of, ["events", *names[100:110]])
    assert cast(Controller, of.channel).asked == names[:110]


def test_topics_are_created_in_slices() -> None:
    of = services()
    outcome = metadata.handle_metadata(
        of,
        RequestContext(ApiKey.METADATA, 13),
        MetadataRequest(topics=[MetadataRequestTopic(name=f"t{index}") for index in range(100)]),
    )
    asked = cast(Controller, of.channel).asked
    assert isinstance(outcome, Deferred)
    counts = [len(asked)]
    while not outcome.done:
        cast(Turns, of.timers).turn()
        counts.append(len(asked))
    assert counts[-1] == 100
    assert max(b - a for a, b in pairwise([0, *counts])) <= 40


def test_many_names_are_looked_up_in_slices() -> None:
    of = services(auto_create=False)
    names = [f"t{index}" for index in range(5000)]
    for outcome in (
        metadata.handle_metadata(
            of,
            RequestContext(ApiKey.METADATA, 13),
            MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names]),
        ),
        topic_partitions.handle_describe_topic_partitions(
            of,
            RequestContext(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0),
            DescribeTopicPartitionsRequest(
                topics=[
                    DescribeTopicPartitionsRequest.TopicRequest(name=name)
                    for name in reversed(names)
                ],
                response_partition_limit=1,
            ),
        ),
    ):
        assert isinstance(outcome, Deferred)
        assert sorted(each.name for each in answer(of, outcome).topics) == sorted(names)


def test_topics_by_id() -> None:
    missing = bytes([7] * 16)
    known, unknown = ask(services(), ids=[EVENTS_ID, missing]).topics
    assert (known.name, known.error_code) == ("events", ErrorCode.NONE)
    assert (unknown.name, unknown.topic_id, unknown.error_code) == (
        None, missing, ErrorCode.UNKNOWN_TOPIC_ID,
    )  # fmt: skip


@pytest.mark.parametrize("version", [10, 11])
def test_ids_only_from_v12(version: int) -> None:
    with pytest.raises(KafkaError) as error:
        ask(services(), ids=[EVENTS_ID], version=version)
    assert error.value.code == ErrorCode.INVALID_REQUEST


def test_neither_name_nor_id() -> None:
    with pytest.raises(KafkaError):
        ask(services(), ids=[ZERO_UUID])


@pytest.mark.parametrize(
    ("brokers", "leader", "version", "error", "leader_id"),
    [
        pytest.param([broker(1)], -1, 13, ErrorCode.LEADER_NOT_AVAILABLE, -1, id="nobody leads"),
        pytest.param([broker(2)], 1, 13, ErrorCode.LEADER_NOT_AVAILABLE, -1, id="leader is gone"),
        pytest.param(
            [broker(1, listeners="OTHER"), broker(2)],
            1, 13, ErrorCode.LISTENER_NOT_FOUND, -1, id="leader is not on this listener",
        ),
        pytest.param(
            [broker(1, listeners="OTHER"), broker(2)],
            1, 5, ErrorCode.LEADER_NOT_AVAILABLE, -1, id="the same before v6",
        ),
        pytest.param([broker(1)], 1, 13, ErrorCode.NONE, 1, id="a follower is gone"),
        pytest.param([broker(1)], 1, 0, ErrorCode.REPLICA_NOT_AVAILABLE, 1, id="the same in v0"),
    ],
)  # fmt: skip
def test_leader_errors(
    brokers: list[BrokerRegistration], leader: int, version: int, error: ErrorCode, leader_id: int
) -> None:
    response = ask(services(brokers=brokers, leader=leader), ["events"], version=version)
    partition = response.topics[0].partitions[0]
    assert (partition.error_code, partition.leader_id) == (error, leader_id)


def test_offline_replicas_and_fenced_brokers() -> None:
    response = ask(services(brokers=[broker(1), broker(2, fenced=True)]))
    assert [b.node_id for b in response.brokers] == [1]
    assert response.topics[0].partitions[0].offline_replicas == [2]


def test_authorized_operations() -> None:
    response = ask(
        services(),
        ["events"],
        version=8,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    assert response.cluster_authorized_operations == 8096
    assert response.topics[0].topic_authorized_operations == 3576
    plain = ask(services(), ["events"], version=8)
    assert plain.cluster_authorized_operations == plain.topics[0].topic_authorized_operations
    assert plain.cluster_authorized_operations == -(2**31)
