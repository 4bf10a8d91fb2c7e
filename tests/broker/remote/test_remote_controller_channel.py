"""The channel of a broker whose controller is elsewhere: what it sends, and what it makes of the
responses. When requests are sent again is in `test_node_to_controller`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import pytest

from kbroker.broker.controller_channel import BrokerRegistrationData
from kbroker.broker.node_to_controller import ActiveController, NodeToController
from kbroker.broker.principal_requests import CORRELATION_ID
from kbroker.broker.remote.remote_controller_channel import RemoteControllerChannel
from kbroker.controller.brokers.broker_heartbeat import HeartbeatReply
from kbroker.controller.configs.configs import (
    Alteration,
    AlterationOutcome,
    Alterations,
    AlteredResource,
)
from kbroker.controller.partitions.directories import Assignment
from kbroker.controller.producer_ids import ProducerIdBlock
from kbroker.metadata.image import Endpoint
from kbroker.model import ClientIdentity
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey, valid_versions
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.forwarded_client import client_of
from kbroker.protocol.framing import decode_request_header, encode_response_frame
from kbroker.protocol.messages.admin.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.cluster import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    EnvelopeRequest,
    EnvelopeResponse,
)
from kbroker.settings.broker import BrokerConfig
from tests.client.channel.peers import SILENT, SimWorld, channel_of

T = TypeVar("T")
Q = TypeVar("Q", bound=Request)

EPOCH = 40
TOPIC_ID, OTHER_ID = bytes(15) + b"\xaa", bytes(15) + b"\xbb"
HERE, THERE = bytes(15) + b"\xd1", bytes(15) + b"\xd2"
APIS = (
    ApiKey.BROKER_REGISTRATION,
    ApiKey.BROKER_HEARTBEAT,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    ApiKey.ALLOCATE_PRODUCER_IDS,
    ApiKey.ALTER_PARTITION,
    ApiKey.CREATE_TOPICS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ENVELOPE,
)


class World:
    """Broker 4 and the active controller, which answers as the test says."""

    def __init__(self, *, explicit: bool = True) -> None:
        """explicit: whether the broker's settings have defaults for topics."""
        self.world = SimWorld()
        self.peer = self.world.peer(1)
        for key in APIS:
            self.peer.versions[int(key)] = valid_versions(key)
        self.metadata_offset = 17
        defaults = {"num.partitions": "5", "default.replication.factor": "2"} if explicit else {}
        config = BrokerConfig.from_properties(
            {
                "process.roles": "broker",
                "node.id": "4",
                "controller.quorum.voters": "1@localhost:9093",
                "controller.listener.names": "CONTROLLER",
                "listeners": "PLAINTEXT://localhost:9092",
                "log.dirs": "/nowhere",
                "offsets.topic.num.partitions": "8",
                **defaults,
            }
        )
        requests = NodeToController(
            lambda: channel_of(self.world),
            lambda: ActiveController(1, self.world.address(1)),
            self.world.timers,
            request_timeout_ms=1_000,
        )
        self.channel = RemoteControllerChannel(
            config, requests, cluster_id="the-cluster", metadata_offset=lambda: self.metadata_offset
        )

    def given(self, *answers: object) -> None:
        """The controller's next answers, each to a request of its API."""
        for answer in answers:
            assert isinstance(answer, Response)
            self.peer.script(ApiKey(answer.API_KEY), answer)

    def value(self, answer: Deferred[T]) -> T:
        self.world.until(lambda: answer.done)
        return answer.value

    def error(self, answer: Deferred[T]) -> ErrorCode:
        self.world.until(lambda: answer.done)
        assert answer.error is not None
        return answer.error.code

    def sent(self, kind: type[Q]) -> list[Q]:
        """The requests of that class which the controller got."""
        return [request for _, _, request in self.peer.requests if isinstance(request, kind)]


@pytest.fixture
def world() -> World:
    return World()


REGISTRATION = BrokerRegistrationData(
    incarnation_id=bytes(15) + b"\x09",
    endpoints={"PLAINTEXT": Endpoint("PLAINTEXT", "broker", 9092)},
    log_dirs=(HERE, THERE),
    previous_broker_epoch=33,
    rack="r",
)


def test_a_broker_registers(world: World) -> None:
    world.given(BrokerRegistrationResponse(broker_epoch=EPOCH))
    assert world.value(world.channel.register_broker(REGISTRATION)) == EPOCH
    (request,) = world.sent(BrokerRegistrationRequest)
    assert (request.broker_id, request.cluster_id, request.rack) == (4, "the-cluster", "r")
    assert (request.log_dirs, request.previous_broker_epoch) == ([HERE, THERE], 33)
    assert [(each.name, each.host, each.port) for each in request.listeners] == [
        ("PLAINTEXT", "broker", 9092)
    ]
    assert "metadata.version" in {each.name for each in request.features}


def test_a_registration_that_is_refused(world: World) -> None:
    code = ErrorCode.DUPLICATE_BROKER_REGISTRATION
    world.given(BrokerRegistrationResponse(error_code=code))
    assert world.error(world.channel.register_broker(REGISTRATION)) is code


def test_a_heartbeat_names_the_metadata_this_broker_has(world: World) -> None:
    world.given(
        BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False, should_shut_down=False),
        BrokerHeartbeatResponse(is_caught_up=False, is_fenced=True, should_shut_down=True),
        BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH),
    )
    beat = world.channel.heartbeat
    assert world.value(beat(EPOCH, want_fence=False, want_shut_down=False)) == HeartbeatReply(
        is_caught_up=True, is_fenced=False, should_shut_down=False
    )
    world.metadata_offset = 30
    assert world.value(beat(EPOCH, want_fence=True, want_shut_down=True)) == HeartbeatReply(
        is_caught_up=False, is_fenced=True, should_shut_down=True
    )
    stale = beat(EPOCH, want_fence=False, want_shut_down=False)
    assert world.error(stale) is ErrorCode.STALE_BROKER_EPOCH
    first, second, _ = world.sent(BrokerHeartbeatRequest)
    assert (first.broker_id, first.broker_epoch) == (4, EPOCH)
    assert (first.current_metadata_offset, second.current_metadata_offset) == (17, 30)
    assert (first.want_fence, first.want_shut_down) == (False, False)
    assert (second.want_fence, second.want_shut_down) == (True, True)


def test_failed_directories_are_told_at_once_and_with_every_heartbeat(world: World) -> None:
    world.given(*[BrokerHeartbeatResponse()] * 4)
    world.value(world.channel.heartbeat(EPOCH, want_fence=False, want_shut_down=False))
    world.value(world.channel.directories_failed(EPOCH, [THERE]))
    world.value(world.channel.heartbeat(EPOCH, want_fence=False, want_shut_down=True))
    world.value(world.channel.directories_failed(EPOCH, [HERE]))
    sent = [
        (each.want_fence, each.want_shut_down, each.offline_log_dirs)
        for each in world.sent(BrokerHeartbeatRequest)
    ]
    assert sent == [
        (False, False, []),
        (False, False, [THERE]),
        (False, True, [THERE]),
        (False, True, [THERE, HERE]),
    ]


def test_a_directory_that_fails_before_the_first_heartbeat_unfences_nothing(world: World) -> None:
    world.given(BrokerHeartbeatResponse())
    world.value(world.channel.directories_failed(EPOCH, [THERE]))
    (request,) = world.sent(BrokerHeartbeatRequest)
    assert request.want_fence


def test_replicas_are_assigned_to_directories(world: World) -> None:
    data, topics = AssignReplicasToDirsResponse.DirectoryData, AssignReplicasToDirsResponse
    refused = data(
        id=HERE,
        topics=[
            topics.TopicData(
                topic_id=TOPIC_ID,
                partitions=[
                    topics.PartitionData(partition_index=0),
                    topics.PartitionData(
                        partition_index=1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER
                    ),
                ],
            )
        ],
    )
    world.given(
        AssignReplicasToDirsResponse(),
        AssignReplicasToDirsResponse(directories=[refused]),
        AssignReplicasToDirsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH),
    )
    assignments = [
        Assignment(TOPIC_ID, 0, HERE),
        Assignment(OTHER_ID, 3, HERE),
        Assignment(TOPIC_ID, 1, THERE),
        Assignment(TOPIC_ID, 2, HERE),
    ]
    assign = world.channel.assign_directories
    world.value(assign(EPOCH, assignments))
    (request,) = world.sent(AssignReplicasToDirsRequest)
    assert (request.broker_id, request.broker_epoch) == (4, EPOCH)
    found = {
        each.id: [
            (topic.topic_id, [part.partition_index for part in topic.partitions])
            for topic in each.topics
        ]
        for each in request.directories
    }
    assert found == {
        HERE: [(TOPIC_ID, [0, 2]), (OTHER_ID, [3])],
        THERE: [(TOPIC_ID, [1])],
    }
    missing = ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.value(assign(EPOCH, assignments)) == [
        ErrorCode.NONE, missing, ErrorCode.NOT_LEADER_OR_FOLLOWER, missing
    ]  # fmt: skip
    assert world.error(assign(EPOCH, assignments)) is ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize("level", ["the metadata.version", "the controller"])
def test_a_cluster_that_keeps_no_directories_refuses_none(world: World, level: str) -> None:
    if level == "the controller":
        del world.peer.versions[int(ApiKey.ASSIGN_REPLICAS_TO_DIRS)]
    else:
        world.given(AssignReplicasToDirsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))
    assigned = world.channel.assign_directories(EPOCH, [Assignment(TOPIC_ID, 0, HERE)] * 2)
    assert world.value(assigned) == [ErrorCode.NONE] * 2


def test_producer_ids_are_allocated(world: World) -> None:
    world.given(
        AllocateProducerIdsResponse(producer_id_start=3000, producer_id_len=1000),
        AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH),
    )
    allocate = world.channel.allocate_producer_ids
    assert world.value(allocate(EPOCH)) == ProducerIdBlock(3000, 1000)
    assert world.error(allocate(EPOCH)) is ErrorCode.STALE_BROKER_EPOCH
    request = world.sent(AllocateProducerIdsRequest)[0]
    assert (request.broker_id, request.broker_epoch) == (4, EPOCH)


def test_isrs_are_asked_for(world: World) -> None:
    """The sender of proposals reads the errors of the partitions itself."""
    answer = AlterPartitionResponse(topics=[AlterPartitionResponse.TopicData(topic_id=TOPIC_ID)])
    world.given(answer)
    request = AlterPartitionRequest(broker_id=4, broker_epoch=EPOCH)
    assert world.value(world.channel.alter_partition(request)).topics[0].topic_id == TOPIC_ID
    assert world.sent(AlterPartitionRequest)[0].broker_epoch == EPOCH


def created(name: str, code: ErrorCode = ErrorCode.NONE) -> CreateTopicsResponse:
    result = CreateTopicsResponse.CreatableTopicResult(name=name, error_code=code)
    return CreateTopicsResponse(topics=[result])


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.NONE, ErrorCode.NONE),
        (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NONE),
        (ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_a_topic_is_ensured_with_this_brokers_defaults(
    world: World, code: ErrorCode, expected: ErrorCode
) -> None:
    world.given(created("t", code))
    assert world.value(world.channel.ensure_topic("t")) is expected
    (topic,) = world.sent(CreateTopicsRequest)[0].topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("t", 5, 2)


def test_an_internal_topic_is_ensured_as_configured(world: World) -> None:
    world.given(created("__consumer_offsets"))
    assert world.value(world.channel.ensure_internal_topic("__consumer_offsets")) is ErrorCode.NONE
    (topic,) = world.sent(CreateTopicsRequest)[0].topics
    assert (topic.num_partitions, topic.replication_factor) == (8, 3)
    assert ("cleanup.policy", "compact") in {(each.name, each.value) for each in topic.configs}


def test_why_an_internal_topic_cannot_be_created_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients that look for a coordinator ask again and again until there are brokers enough."""
    name, refused = "__consumer_offsets", ErrorCode.INVALID_REPLICATION_FACTOR
    outcomes = [refused, refused, ErrorCode.NONE, refused]
    world.given(*(created(name, outcome) for outcome in outcomes))
    for outcome in outcomes:
        assert world.value(world.channel.ensure_internal_topic(name)) is outcome
    lines = [record.getMessage() for record in caplog.records]
    line = f"{name} cannot be created with replication factor 3: INVALID_REPLICATION_FACTOR"
    assert [line in each for each in lines] == [True] * 2


def test_an_internal_topic_that_a_client_needs_is_requested_once_and_not_waited_for(
    world: World,
) -> None:
    """Clients that look for a coordinator repeat their requests while the controller is away."""
    name = "__consumer_offsets"
    world.given(created(name, ErrorCode.INVALID_REPLICATION_FACTOR), created(name))
    answers = [world.channel.request_internal_topic(name) for _ in range(3)]
    assert [answer.done and answer.value for answer in answers] == [ErrorCode.NONE] * 3
    world.world.heap.advance(100)
    assert len(world.sent(CreateTopicsRequest)) == 1
    assert world.channel.request_internal_topic(name).value is ErrorCode.NONE
    world.world.heap.advance(100)
    assert len(world.sent(CreateTopicsRequest)) == 2


@pytest.mark.parametrize(
    "ensure",
    [
        pytest.param(lambda channel: channel.ensure_topic("a/b"), id="topic"),
        pytest.param(lambda channel: channel.ensure_internal_topic("t"), id="internal topic"),
    ],
)
def test_a_name_that_no_topic_may_have_is_refused_here(
    world: World, ensure: Callable[[RemoteControllerChannel], Deferred[ErrorCode]]
) -> None:
    answer = ensure(world.channel)
    assert answer.done and answer.value is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert world.sent(CreateTopicsRequest) == []


def test_one_request_per_topic_is_under_way(world: World) -> None:
    world.given(created("t"), created("t", ErrorCode.INVALID_REPLICATION_FACTOR))
    both = [world.channel.ensure_topic("t") for _ in range(2)]
    assert [world.value(each) for each in both] == [ErrorCode.NONE] * 2
    assert len(world.sent(CreateTopicsRequest)) == 1
    again = world.channel.ensure_topic("t")
    assert world.value(again) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert len(world.sent(CreateTopicsRequest)) == 2


def test_a_creation_that_times_out_can_be_asked_for_again(world: World) -> None:
    world.peer.script(ApiKey.CREATE_TOPICS, *[SILENT] * 100)
    lost = world.channel.ensure_topic("t")
    world.world.heap.advance(70_000)
    assert lost.error is not None and lost.error.code is ErrorCode.REQUEST_TIMED_OUT
    world.peer._scripts.clear()
    world.given(created("t"))
    assert world.value(world.channel.ensure_topic("t")) is ErrorCode.NONE


CLIENT = ClientIdentity("User:alice", "10.0.0.9", client_id="app")


def envelope_of(response: Response) -> EnvelopeResponse:
    key = ApiKey(response.API_KEY)
    version = valid_versions(key)[1]
    parts = encode_response_frame(key, version, CORRELATION_ID, response)
    return EnvelopeResponse(response_data=b"".join(cast(list[bytes], parts))[4:])


def test_topics_for_a_client_are_created_in_its_name(world: World) -> None:
    world.given(envelope_of(created("t")), envelope_of(created("u")))
    assert world.value(world.channel.ensure_topic("t", CLIENT)) is ErrorCode.NONE
    streams = world.channel.create_topics(CreateTopicsRequest(), client=CLIENT)
    assert [each.name for each in world.value(streams).topics] == ["u"]
    assert [client_of(each).principal for each in world.sent(EnvelopeRequest)] == ["User:alice"] * 2
    assert world.sent(CreateTopicsRequest) == []


def request_in(envelope: EnvelopeRequest, kind: type[Q]) -> Q:
    """The request that an Envelope carries."""
    frame = envelope.request_data
    header = decode_request_header(memoryview(frame))
    request, _ = decode(kind, frame, header.api_version, header.body_position)
    return request


ALTERED = (
    AlteredResource(2, "t", [Alteration("retention.ms", 0, "5"), Alteration("x", 1, None)]),
    AlteredResource(4, "", [Alteration("log.retention.ms", 2, "5")]),
)


def altered_by(kind: Any, *results: tuple[int, str, ErrorCode]) -> Response:
    """The controller's response, in its own order."""
    response: Response = kind(
        responses=[
            kind.AlterConfigsResourceResponse(
                resource_type=resource_type,
                resource_name=name,
                error_code=int(error),
                error_message="no" if error else None,
            )
            for resource_type, name, error in results
        ]
    )
    return response


def test_settings_are_altered_in_the_name_of_the_client(world: World) -> None:
    results = ((4, "", ErrorCode.NONE), (2, "t", ErrorCode.INVALID_CONFIG))
    world.given(
        envelope_of(altered_by(IncrementalAlterConfigsResponse, *results)),
        envelope_of(altered_by(AlterConfigsResponse, *results)),
    )
    expected = [
        AlterationOutcome(ErrorCode.INVALID_CONFIG, "no"),
        AlterationOutcome(ErrorCode.NONE, None),
    ]
    incremental = Alterations(ALTERED, incremental=True, validate_only=True)
    assert world.value(world.channel.alter_configs(incremental, CLIENT)) == expected
    whole = Alterations(ALTERED, incremental=False)
    assert world.value(world.channel.alter_configs(whole, CLIENT)) == expected
    first, second = world.sent(EnvelopeRequest)
    assert client_of(first).principal == "User:alice"
    sent = request_in(first, IncrementalAlterConfigsRequest)
    assert sent.validate_only
    assert [
        (each.resource_type, each.resource_name, [
            (one.name, one.config_operation, one.value) for one in each.configs
        ])
        for each in sent.resources
    ] == [
        (2, "t", [("retention.ms", 0, "5"), ("x", 1, None)]),
        (4, "", [("log.retention.ms", 2, "5")]),
    ]  # fmt: skip
    replaced = request_in(second, AlterConfigsRequest)
    assert not replaced.validate_only
    assert [each.resource_name for each in replaced.resources] == ["t", ""]


def test_a_controller_that_answers_too_few_resources(world: World) -> None:
    world.given(envelope_of(altered_by(IncrementalAlterConfigsResponse, (2, "t", ErrorCode.NONE))))
    answer = world.channel.alter_configs(Alterations(ALTERED, incremental=True), CLIENT)
    assert world.error(answer) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_settings_that_this_broker_has_not_are_the_controllers() -> None:
    world = World(explicit=False)
    world.given(created("t"))
    world.value(world.channel.ensure_topic("t"))
    (topic,) = world.sent(CreateTopicsRequest)[0].topics
    assert (topic.num_partitions, topic.replication_factor) == (-1, -1)
