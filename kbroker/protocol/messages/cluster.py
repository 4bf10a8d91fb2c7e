"""Brokers, controllers and the partitions between them."""

from __future__ import annotations

from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import (
    Binary,
    Request,
    Response,
    Struct,
    array,
    binary,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)


class BrokerRegistrationRequest(
    Request, api_key=62, versions="0-4", flexible="0+", listeners="controller"
):
    class Listener(Struct):
        name: str = string("0+")
        host: str = string("0+")
        port: int = uint16("0+")
        security_protocol: int = int16("0+")

    class Feature(Struct):
        name: str = string("0+")
        min_supported_version: int = int16("0+")
        max_supported_version: int = int16("0+")

    broker_id: int = int32("0+")
    cluster_id: str = string("0+")
    incarnation_id: Uuid = uuid("0+")
    listeners: list[BrokerRegistrationRequest.Listener] = array("Listener", "0+")
    features: list[BrokerRegistrationRequest.Feature] = array("Feature", "0+")
    rack: str | None = string("0+", nullable="0+")
    is_migrating_zk_broker: bool = boolean("1+", default=False)
    log_dirs: list[Uuid] = array("uuid", "2+", ignorable=True)
    previous_broker_epoch: int = int64("3+", default=-1, ignorable=True)


class BrokerRegistrationResponse(Response, api_key=62, versions="0-4", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    broker_epoch: int = int64("0+", default=-1)


class BrokerHeartbeatRequest(
    Request, api_key=63, versions="0-2", flexible="0+", listeners="controller"
):
    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    current_metadata_offset: int = int64("0+")
    want_fence: bool = boolean("0+")
    want_shut_down: bool = boolean("0+")
    offline_log_dirs: list[Uuid] = array("uuid", "1+", tag=0, tagged="1+")
    cordoned_log_dirs: list[Uuid] | None = array(
        "uuid", "2+", nullable="2+", tag=1, tagged="2+", default=None
    )


class BrokerHeartbeatResponse(Response, api_key=63, versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    is_caught_up: bool = boolean("0+", default=False)
    is_fenced: bool = boolean("0+", default=True)
    should_shut_down: bool = boolean("0+")


class UnregisterBrokerRequest(
    Request, api_key=64, versions="0", flexible="0+", listeners="broker controller"
):
    broker_id: int = int32("0+")


class UnregisterBrokerResponse(Response, api_key=64, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class ControllerRegistrationRequest(
    Request, api_key=70, versions="0", flexible="0+", listeners="controller"
):
    class Listener(Struct):
        name: str = string("0+")
        host: str = string("0+")
        port: int = uint16("0+")
        security_protocol: int = int16("0+")

    class Feature(Struct):
        name: str = string("0+")
        min_supported_version: int = int16("0+")
        max_supported_version: int = int16("0+")

    controller_id: int = int32("0+")
    incarnation_id: Uuid = uuid("0+")
    zk_migration_ready: bool = boolean("0+")
    listeners: list[ControllerRegistrationRequest.Listener] = array("Listener", "0+")
    features: list[ControllerRegistrationRequest.Feature] = array("Feature", "0+")


class ControllerRegistrationResponse(Response, api_key=70, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class AlterPartitionRequest(
    Request, api_key=56, versions="2-3", flexible="0+", listeners="controller"
):
    class BrokerState(Struct):
        broker_id: int = int32("3+")
        broker_epoch: int = int64("3+", default=-1)

    class PartitionData(Struct):
        partition_index: int = int32("0+")
        leader_epoch: int = int32("0+")
        new_isr: list[int] = array("int32", "0-2")
        new_isr_with_epochs: list[AlterPartitionRequest.BrokerState] = array("BrokerState", "3+")
        leader_recovery_state: int = int8("1+", default=0)
        partition_epoch: int = int32("0+")

    class TopicData(Struct):
        topic_id: Uuid = uuid("2+", ignorable=True)
        partitions: list[AlterPartitionRequest.PartitionData] = array("PartitionData", "0+")

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    topics: list[AlterPartitionRequest.TopicData] = array("TopicData", "0+")


class AlterPartitionResponse(Response, api_key=56, versions="2-3", flexible="0+"):
    class PartitionData(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+")
        isr: list[int] = array("int32", "0+")
        leader_recovery_state: int = int8("1+", default=0, ignorable=True)
        partition_epoch: int = int32("0+")

    class TopicData(Struct):
        topic_id: Uuid = uuid("2+", ignorable=True)
        partitions: list[AlterPartitionResponse.PartitionData] = array("PartitionData", "0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    topics: list[AlterPartitionResponse.TopicData] = array("TopicData", "0+")


class ElectLeadersRequest(
    Request, api_key=43, versions="0-2", flexible="2+", listeners="broker controller"
):
    class TopicPartitions(Struct):
        topic: str = string("0+")
        partitions: list[int] = array("int32", "0+")

    election_type: int = int8("1+")
    topic_partitions: list[ElectLeadersRequest.TopicPartitions] | None = array(
        "TopicPartitions", "0+", nullable="0+"
    )
    timeout_ms: int = int32("0+", default=60000)


class ElectLeadersResponse(Response, api_key=43, versions="0-2", flexible="2+"):
    class PartitionResult(Struct):
        partition_id: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")

    class ReplicaElectionResult(Struct):
        topic: str = string("0+")
        partition_result: list[ElectLeadersResponse.PartitionResult] = array(
            "PartitionResult", "0+"
        )

    throttle_time_ms: int = int32("0+")
    # Not ignorable in Kafka, whose code sets it from v1 on; here handlers need not know it.
    error_code: int = int16("1+", ignorable=True)
    replica_election_results: list[ElectLeadersResponse.ReplicaElectionResult] = array(
        "ReplicaElectionResult", "0+"
    )


class AlterPartitionReassignmentsRequest(
    Request, api_key=45, versions="0-1", flexible="0+", listeners="broker controller"
):
    class ReassignablePartition(Struct):
        partition_index: int = int32("0+")
        replicas: list[int] | None = array("int32", "0+", nullable="0+", default=None)

    class ReassignableTopic(Struct):
        name: str = string("0+")
        partitions: list[AlterPartitionReassignmentsRequest.ReassignablePartition] = array(
            "ReassignablePartition", "0+"
        )

    timeout_ms: int = int32("0+", default=60000)
    allow_replication_factor_change: bool = boolean("1+", default=True)
    topics: list[AlterPartitionReassignmentsRequest.ReassignableTopic] = array(
        "ReassignableTopic", "0+"
    )


class AlterPartitionReassignmentsResponse(Response, api_key=45, versions="0-1", flexible="0+"):
    class ReassignablePartitionResponse(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")

    class ReassignableTopicResponse(Struct):
        name: str = string("0+")
        partitions: list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse] = array(
            "ReassignablePartitionResponse", "0+"
        )

    throttle_time_ms: int = int32("0+")
    allow_replication_factor_change: bool = boolean("1+", default=True, ignorable=True)
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    responses: list[AlterPartitionReassignmentsResponse.ReassignableTopicResponse] = array(
        "ReassignableTopicResponse", "0+"
    )


class ListPartitionReassignmentsRequest(
    Request, api_key=46, versions="0", flexible="0+", listeners="broker controller"
):
    class ListPartitionReassignmentsTopics(Struct):
        name: str = string("0+")
        partition_indexes: list[int] = array("int32", "0+")

    timeout_ms: int = int32("0+", default=60000)
    topics: list[ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics] | None = array(
        "ListPartitionReassignmentsTopics", "0+", nullable="0+", default=None
    )


class ListPartitionReassignmentsResponse(Response, api_key=46, versions="0", flexible="0+"):
    class OngoingPartitionReassignment(Struct):
        partition_index: int = int32("0+")
        replicas: list[int] = array("int32", "0+")
        adding_replicas: list[int] = array("int32", "0+")
        removing_replicas: list[int] = array("int32", "0+")

    class OngoingTopicReassignment(Struct):
        name: str = string("0+")
        partitions: list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment] = array(
            "OngoingPartitionReassignment", "0+"
        )

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    topics: list[ListPartitionReassignmentsResponse.OngoingTopicReassignment] = array(
        "OngoingTopicReassignment", "0+"
    )


class AllocateProducerIdsRequest(
    Request, api_key=67, versions="0", flexible="0+", listeners="controller"
):
    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)


class AllocateProducerIdsResponse(Response, api_key=67, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id_start: int = int64("0+")
    producer_id_len: int = int32("0+")


class EnvelopeRequest(Request, api_key=58, versions="0", flexible="0+", listeners="controller"):
    request_data: Binary = binary("0+")
    request_principal: Binary | None = binary("0+", nullable="0+")
    client_host_address: Binary = binary("0+")


class EnvelopeResponse(Response, api_key=58, versions="0", flexible="0+"):
    response_data: Binary | None = binary("0+", nullable="0+", default=None)
    error_code: int = int16("0+")


class AssignReplicasToDirsRequest(
    Request, api_key=73, versions="0", flexible="0+", listeners="controller"
):
    class PartitionData(Struct):
        partition_index: int = int32("0+")

    class TopicData(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[AssignReplicasToDirsRequest.PartitionData] = array("PartitionData", "0+")

    class DirectoryData(Struct):
        id: Uuid = uuid("0+")
        topics: list[AssignReplicasToDirsRequest.TopicData] = array("TopicData", "0+")

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    directories: list[AssignReplicasToDirsRequest.DirectoryData] = array("DirectoryData", "0+")


class AssignReplicasToDirsResponse(Response, api_key=73, versions="0", flexible="0+"):
    class PartitionData(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class TopicData(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[AssignReplicasToDirsResponse.PartitionData] = array("PartitionData", "0+")

    class DirectoryData(Struct):
        id: Uuid = uuid("0+")
        topics: list[AssignReplicasToDirsResponse.TopicData] = array("TopicData", "0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    directories: list[AssignReplicasToDirsResponse.DirectoryData] = array("DirectoryData", "0+")


class UpdateFeaturesRequest(
    Request, api_key=57, versions="0-2", flexible="0+", listeners="broker controller"
):
    class FeatureUpdateKey(Struct):
        feature: str = string("0+")
        max_version_level: int = int16("0+")
        allow_downgrade: bool = boolean("0")
        upgrade_type: int = int8("1+", default=1)

    timeout_ms: int = int32("0+", default=60000)
    feature_updates: list[UpdateFeaturesRequest.FeatureUpdateKey] = array("FeatureUpdateKey", "0+")
    validate_only: bool = boolean("1+", default=False)


class UpdateFeaturesResponse(Response, api_key=57, versions="0-2", flexible="0+"):
    class UpdatableFeatureResult(Struct):
        feature: str = string("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    results: list[UpdateFeaturesResponse.UpdatableFeatureResult] = array(
        "UpdatableFeatureResult", "0-1", ignorable=True
    )
