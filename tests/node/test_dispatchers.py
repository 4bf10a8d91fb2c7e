"""What a node's listeners serve of the active controller's decisions: in the process on a node that
is its whole cluster, in Envelopes on any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from kbroker.client.connection import BrokerConnection
from kbroker.model import ClientIdentity
from kbroker.node.node import Broker
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.forwarded_client import envelope
from kbroker.protocol.framing import decode_response_header, encode_request_frame
from kbroker.protocol.messages.admin.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kbroker.protocol.messages.admin.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.messages.cluster import (
    EnvelopeRequest,
    EnvelopeResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kbroker.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.tables.keys import ResourceType
from tests.node.cluster import Cluster, create_topic, running, until

CONTROLLERS = {1: "controller", 2: "controller", 3: "controller"}
QUORUM = DescribeQuorumRequest(
    topics=[
        DescribeQuorumRequest.TopicData(
            topic_name="__cluster_metadata",
            partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)],
        )
    ]
)


def run(script: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(script())


def voters_in(response: DescribeQuorumResponse) -> list[int]:
    assert response.error_code == 0, response
    (partition,) = response.topics[0].partitions
    assert partition.error_code == 0, response
    return sorted(each.replica_id for each in partition.current_voters)


@pytest.mark.parametrize("listeners", ["broker's", "both"])
def test_a_node_that_is_its_whole_cluster(tmp_path: Path, listeners: str) -> None:
    """Its broker has what only controllers handle, also where the controller has no listener."""

    async def script() -> None:
        settings = {
            "log.dirs": str(tmp_path),
            "node.id": "7",
            "listeners": "PLAINTEXT://127.0.0.1:0",
        }
        if listeners == "both":
            settings["listeners"] += ",CONTROLLER://127.0.0.1:0"
            settings["controller.listener.names"] = "CONTROLLER"
        node = Broker(BrokerConfig.from_properties(settings))
        await node.start()
        try:
            bound = node.bound_listeners[0]
            async with await BrokerConnection.connect(bound.host, bound.port) as connection:
                assert voters_in(await connection.request(QUORUM, DescribeQuorumResponse)) == [7]
                request = UnregisterBrokerRequest(broker_id=99)
                answer = await connection.request(request, UnregisterBrokerResponse)
                assert answer.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
                removed = await connection.request(
                    RemoveRaftVoterRequest(cluster_id="another", voter_id=7),
                    RemoveRaftVoterResponse,
                )
                assert removed.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        finally:
            await node.stop()
        assert node.failure is None

    run(script)


def forwarded(node: Broker) -> dict[int, int]:
    """The requests that a controller got in Envelopes, by API."""
    assert node._controllers is not None
    return node._controllers.forwarded.requests


def errors_of_forwarded(node: Broker) -> dict[tuple[int, int], int]:
    """Those of them that were refused as a whole, by API and code."""
    assert node._controllers is not None
    return node._controllers.errors.counts


def test_a_broker_forwards_what_its_controllers_decide(tmp_path: Path) -> None:
    async def script() -> None:
        async with running(Cluster(tmp_path, CONTROLLERS | {4: "broker"})) as cluster:
            port = cluster.client_ports[4]
            async with await BrokerConnection.connect("127.0.0.1", port) as connection:
                await _decisions(cluster, connection)
                standby = next(each for each in CONTROLLERS if each != cluster.active())
                assert not forwarded(cluster.nodes[standby])
                unregistered = ApiKey.UNREGISTER_BROKER, ErrorCode.BROKER_ID_NOT_REGISTERED
                assert errors_of_forwarded(cluster.nodes[cluster.active()])[unregistered] == 1
                counts = forwarded(cluster.nodes[cluster.active()])
                assert counts[ApiKey.CREATE_TOPICS] == 1
                assert set(counts) == {
                    ApiKey.CREATE_TOPICS,
                    ApiKey.INCREMENTAL_ALTER_CONFIGS,
                    ApiKey.UPDATE_FEATURES,
                    ApiKey.DESCRIBE_QUORUM,
                    ApiKey.UNREGISTER_BROKER,
                    ApiKey.DELETE_TOPICS,
                }

    run(script)


async def _decisions(cluster: Cluster, connection: BrokerConnection) -> None:
    """A request of each kind through the broker; each takes effect there."""
    image = cluster.nodes[4].metadata
    topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=1)
    created = await connection.request(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse)
    assert created.topics[0].error_code == 0
    assert created.topics[0].num_partitions == 2
    await until(lambda: "t" in image.image.topics)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=ResourceType.TOPIC,
        resource_name="t",
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(name="retention.ms", value="77777")
        ],
    )
    altered = await connection.request(
        IncrementalAlterConfigsRequest(resources=[resource]), IncrementalAlterConfigsResponse
    )
    assert altered.responses[0].error_code == 0
    await until(lambda: image.image.configs.get((ResourceType.TOPIC, "t")))
    update = UpdateFeaturesRequest.FeatureUpdateKey(feature="no.such.feature", max_version_level=1)
    features = await connection.request(
        UpdateFeaturesRequest(feature_updates=[update], validate_only=True), UpdateFeaturesResponse
    )
    assert features.error_code != 0
    quorum = await connection.request(QUORUM, DescribeQuorumResponse)
    assert voters_in(quorum) == sorted(CONTROLLERS)
    assert quorum.topics[0].partitions[0].leader_id == cluster.active()
    unregistered = await connection.request(
        UnregisterBrokerRequest(broker_id=99), UnregisterBrokerResponse
    )
    assert unregistered.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    state = DeleteTopicsRequest.DeleteTopicState(name="t")
    deleted = await connection.request(DeleteTopicsRequest(topics=[state]), DeleteTopicsResponse)
    assert deleted.responses[0].error_code == 0
    await until(lambda: "t" not in image.image.topics)


def test_requests_wait_for_the_next_active_controller(tmp_path: Path) -> None:
    """A request that is under way when the active controller is killed is answered by the next."""

    async def script() -> None:
        cluster = Cluster(tmp_path, CONTROLLERS | {4: "broker"})
        async with running(cluster), cluster.client(4) as client:
            assert await create_topic(client, "before") == ErrorCode.NONE
            killed = cluster.active()
            cluster.kill(killed)
            assert await create_topic(client, "after") == ErrorCode.NONE
            assert cluster.active() not in (killed, -1)

    run(script)


def test_an_envelope_for_a_standby_and_for_the_active_controller(tmp_path: Path) -> None:
    async def script() -> None:
        async with running(Cluster(tmp_path, CONTROLLERS)) as cluster:
            await until(lambda: cluster.active() != -1)
            codes = {}
            for number, node in cluster.nodes.items():
                bound = node.bound_listeners[0]
                async with await BrokerConnection.connect(bound.host, bound.port) as connection:
                    answer = await connection.request(_deletion(), EnvelopeResponse)
                    codes[number] = answer.error_code
                    if number == cluster.active():
                        assert _deleted(answer) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert codes == {
                number: 0 if number == cluster.active() else ErrorCode.NOT_CONTROLLER
                for number in CONTROLLERS
            }

    run(script)


def _deletion() -> EnvelopeRequest:
    state = DeleteTopicsRequest.DeleteTopicState(name="no-such-topic")
    parts = encode_request_frame(DeleteTopicsRequest(topics=[state]), 6, 5, "client")
    frame = b"".join(cast(list[bytes], parts))[4:]
    return envelope(frame, ClientIdentity("User:alice", "10.0.0.9"))


def _deleted(answer: EnvelopeResponse) -> int:
    assert answer.response_data is not None
    _, position = decode_response_header(answer.response_data, ApiKey.DELETE_TOPICS, 6)
    response, _ = decode(DeleteTopicsResponse, answer.response_data, 6, position)
    return response.responses[0].error_code


def test_automatic_topics_are_created_in_the_name_of_the_client(tmp_path: Path) -> None:
    async def script() -> None:
        async with running(Cluster(tmp_path, {1: "controller", 4: "broker"})) as cluster:
            async with cluster.client(4) as client:
                await client.retry(lambda: client.topic("made", allow_auto_creation=True))
            assert forwarded(cluster.nodes[1]) == {ApiKey.CREATE_TOPICS: 1}

    run(script)


def test_versions_are_those_of_broker_and_controller(tmp_path: Path) -> None:
    """Of the same version, so that nothing is missing once they are known."""

    async def script() -> None:
        async with running(Cluster(tmp_path, {1: "controller", 4: "broker"})) as cluster:
            port = cluster.client_ports[4]
            async with await BrokerConnection.connect("127.0.0.1", port) as connection:
                found = await connection.request(
                    ApiVersionsRequest(client_software_name="t", client_software_version="1"),
                    ApiVersionsResponse,
                )
            to_controller = cluster.nodes[4]._to_controller
            assert to_controller is not None
            versions = to_controller.controller_api_versions()
            assert versions is not None
            announced = {
                each.api_key: (each.min_version, each.max_version) for each in found.api_keys
            }
            for key in (ApiKey.CREATE_TOPICS, ApiKey.DESCRIBE_QUORUM, ApiKey.UNREGISTER_BROKER):
                assert announced[key] == versions.range_of(key)

    run(script)
