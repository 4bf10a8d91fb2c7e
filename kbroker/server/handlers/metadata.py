"""Metadata v0-13, DescribeTopicPartitions v0, DescribeCluster v0-2: what the cluster looks like to
a client.

Metadata v1: no topics means none, null means all; controller id, rack, internal. v2: cluster id.
v4: the client may forbid auto-creation. v5: offline replicas. v6: LISTENER_NOT_FOUND instead of
LEADER_NOT_AVAILABLE. v7: leader epoch (KIP-320). v8: authorized operations (KIP-430; v8-10 also of
the cluster, which DescribeCluster took over). v10: topic ids in the answer. v12: topics by id
(KIP-516). v13: error code of the whole answer (KIP-1102). v0 leaves a replica in whose broker is
gone; as in Kafka it then says REPLICA_NOT_AVAILABLE where later versions do not. A topic that is to
be created by itself is answered UNKNOWN_TOPIC_OR_PARTITION once, as Kafka does; the client asks
again; of more than `kbroker.auto.create.topics.per.request` unknown topics the rest is created by
the next requests. The controller id is a broker's: clients send to any broker, which forwards
(KIP-590). Kafka draws one, we take the first. DescribeTopicPartitions (KIP-966): sorted by name,
`max.request.partition.size.limit` partitions, cursor to go on. DescribeCluster v1: endpoint type
(KIP-919). v2: fenced brokers (KIP-1073). Deviation: no ACLs yet, so every operation is authorized.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from typing import Final

from kbroker.log_lines import shown
from kbroker.metadata.image import MetadataImage, PartitionImage, TopicImage, has_online_directory
from kbroker.metadata.internal_topics import INTERNAL_TOPICS
from kbroker.metadata.topic_names import name_error
from kbroker.model import ZERO_UUID
from kbroker.protocol.acl_operations import AclOperation, AclResource, authorized_operations
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kbroker.server.api_policy import (
    DESCRIBE_EACH_TOPIC,
    NO_AUTHORISATION,
    Access,
    ApiPolicy,
    Extent,
    Versions,
)
from kbroker.server.dispatch import ApiHandler, RequestContext
from kbroker.server.services import Services
from kbroker.server.sliced import CHEAP_ITEMS, STEP_ITEMS, Steps, once_each, sliced, sorted_in_steps

logger = logging.getLogger(__name__)

CLUSTER_OPERATIONS: Final = authorized_operations(AclResource.CLUSTER)
TOPIC_OPERATIONS: Final = authorized_operations(AclResource.TOPIC)

IDS_SINCE: Final = 12
"""Topics by id."""

AUTO_CREATE_LIMIT: Final = "kbroker.auto.create.topics.per.request"
CREATIONS_PER_STEP: Final = 8

_AskedTopic = MetadataRequest.MetadataRequestTopic
_Pauses = Generator[None, None, None]

BROKER_ENDPOINT: Final = 1
CONTROLLER_ENDPOINT: Final = 2


class _View:
    """An image as a client of one listener sees it: which brokers it can reach there."""

    __slots__ = ("_offline_dirs", "image", "listener_name", "reachable")

    def __init__(self, image: MetadataImage, listener_name: str) -> None:
        self.image = image
        self.listener_name = listener_name
        self.reachable = {
            broker.id: broker
            for broker in image.usable_brokers()
            if listener_name in broker.endpoints
        }

    def has_endpoint(self, broker_id: int) -> bool:
        """Whether the broker, fenced or not, is registered with this listener."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and self.listener_name in broker.endpoints

    def leader_error(self, leader: int, *, listener_errors: bool) -> ErrorCode:
        """NONE if the leader can be named to this client."""
        if self.has_endpoint(leader):
            return ErrorCode.NONE
        if leader in self.image.brokers and listener_errors:
            return ErrorCode.LISTENER_NOT_FOUND
        return ErrorCode.LEADER_NOT_AVAILABLE

    def offline_replicas(self, partition: PartitionImage) -> list[int]:
        """Replicas on brokers gone, fenced or unreachable, or in a directory that failed."""
        offline = []
        for replica, directory in zip(partition.replicas, partition.directories, strict=False):
            broker = self.reachable.get(replica)
            if broker is None or not has_online_directory(broker, directory):
                offline.append(replica)
        return offline


# Metadata


def metadata_error(request: MetadataRequest, error: ErrorCode, message: str) -> MetadataResponse:
    """The error stands at each topic asked for, and in v13 at the whole answer."""
    return MetadataResponse(
        topics=[
            MetadataResponse.MetadataResponseTopic(
                error_code=error, name=entry.name or "", topic_id=entry.topic_id
            )
            for entry in request.topics or ()
        ],
        error_code=error,
    )


@sliced(metadata_error)
def handle_metadata(
    services: Services, context: RequestContext, request: MetadataRequest
) -> Steps[MetadataResponse]:
    """Brokers and topics of the image as it is when the request begins."""
    version = context.api_version
    view = _View(services.image, context.session.listener_name)
    response = MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=broker.id,
                host=broker.endpoints[context.session.listener_name].host,
                port=broker.endpoints[context.session.listener_name].port,
                rack=broker.rack,
            )
            for broker in view.reachable.values()
        ],
        cluster_id=services.cluster_id,
        controller_id=min(view.reachable, default=-1),
    )
    wanted = request.topics
    if wanted is None or (version == 0 and not wanted):
        yield from _all_topics(view, version, response)
    elif version >= IDS_SINCE and (yield from _any_id(wanted)):
        yield from _topics_by_id(view, wanted, version, response)
    else:
        yield from _topics_by_name(services, view, request, version, response)
    if request.include_topic_authorized_operations:
        for count, topic in enumerate(response.topics, 1):
            if count % CHEAP_ITEMS == 0:
                yield None
            if topic.error_code == ErrorCode.NONE:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def _all_topics(view: _View, version: int, response: MetadataResponse) -> _Pauses:
    partitions = 0
    for topic in view.image.topics.values():
        partitions += max(len(topic.partitions), 1)
        if partitions >= STEP_ITEMS:
            partitions = 0
            yield None
        response.topics.append(_topic(view, topic, version))


def _any_id(wanted: list[_AskedTopic]) -> Generator[None, None, bool]:
    for count, entry in enumerate(wanted, 1):
        if count % CHEAP_ITEMS == 0:
            yield None
        if entry.topic_id != ZERO_UUID:
            return True
    return False


def _topics_by_id(
    view: _View, wanted: list[_AskedTopic], version: int, response: MetadataResponse
) -> _Pauses:
    """Entries without an id are passed over, as in Kafka."""
    asked = yield from once_each(entry.topic_id for entry in wanted if entry.topic_id != ZERO_UUID)
    for count, topic_id in enumerate(asked, 1):
        if count % STEP_ITEMS == 0:
            yield None
        topic = view.image.topics_by_id.get(topic_id)
        response.topics.append(
            _topic(view, topic, version)
            if topic is not None
            else MetadataResponse.MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id
            )
        )


def _topics_by_name(
    services: Services,
    view: _View,
    request: MetadataRequest,
    version: int,
    response: MetadataResponse,
) -> _Pauses:
    wanted = request.topics or []
    if version < IDS_SINCE:
        for count, entry in enumerate(wanted, 1):
            if count % CHEAP_ITEMS == 0:
                yield None
            if entry.name is None or entry.topic_id != ZERO_UUID:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Topics go by name in version {version}, not by id."
                )
    asked = yield from once_each(entry.name for entry in wanted)
    names = [name for name in asked if name is not None]
    if len(names) < len(asked):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A topic needs a name or an id.")
    config = services.config
    creations = 0
    if request.allow_auto_topic_creation and config.get_bool("auto.create.topics.enable"):
        creations = config.get_int(AUTO_CREATE_LIMIT)
    for count, name in enumerate(names, 1):
        if count % STEP_ITEMS == 0:
            yield None
        topic = view.image.topics.get(name)
        if topic is not None:
            response.topics.append(_topic(view, topic, version))
            continue
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if name_error(name) is not None:
            error = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif creations > 0:
            creations -= 1
            error = auto_create(services, name)
            if creations % CREATIONS_PER_STEP == 0:
                yield None
        response.topics.append(
            MetadataResponse.MetadataResponseTopic(
                error_code=error, name=name, is_internal=name in INTERNAL_TOPICS
            )
        )


def auto_create(services: Services, name: str) -> ErrorCode:
    """Ask the controller for a topic with the broker's defaults; what to tell the client now."""
    controller = services.controller
    try:
        if name in INTERNAL_TOPICS:
            asked = controller.ensure_internal_topic(name)
        else:
            asked = controller.ensure_topic(name)
    except KafkaError as error:
        logger.info(
            "node %d: topic %s is not created: %s", services.node_id, shown(name), shown(error)
        )
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if asked.done and asked.value == ErrorCode.INVALID_TOPIC_EXCEPTION:
        return ErrorCode.INVALID_TOPIC_EXCEPTION

    def report(code: ErrorCode) -> None:
        if code != ErrorCode.NONE:
            logger.warning(
                "node %d: topic %s could not be created: %s",
                services.node_id,
                shown(name),
                code.name,
            )

    asked.on_done(report)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _topic(view: _View, topic: TopicImage, version: int) -> MetadataResponse.MetadataResponseTopic:
    return MetadataResponse.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _partition(view, index, partition, version)
            for index, partition in topic.partitions.items()
        ],
    )


def _partition(
    view: _View, index: int, partition: PartitionImage, version: int
) -> MetadataResponse.MetadataResponsePartition:
    replicas, isr = list(partition.replicas), list(partition.isr)
    error = view.leader_error(partition.leader, listener_errors=version >= 6)
    leader = partition.leader if error == ErrorCode.NONE else -1
    if version == 0:
        replicas = [replica for replica in replicas if replica in view.reachable]
        isr = [replica for replica in isr if replica in view.reachable]
        missing = len(replicas) < len(partition.replicas) or len(isr) < len(partition.isr)
        if missing and error == ErrorCode.NONE:
            error = ErrorCode.REPLICA_NOT_AVAILABLE
    return MetadataResponse.MetadataResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=view.offline_replicas(partition),
    )


# DescribeTopicPartitions


def describe_topic_partitions_error(
    request: DescribeTopicPartitionsRequest, error: ErrorCode, message: str
) -> DescribeTopicPartitionsResponse:
    """The error stands at each topic asked for."""
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
                error_code=error, name=topic.name
            )
            for topic in request.topics
        ]
    )


@sliced(describe_topic_partitions_error)
def handle_describe_topic_partitions(
    services: Services, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> Steps[DescribeTopicPartitionsResponse]:
    """Topics by name from the cursor on, until the limit of partitions is reached."""
    view = _View(services.image, context.session.listener_name)
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Cursor partition {cursor.partition_index} is not valid."
        )
    all_topics = not request.topics
    names: Iterable[str] = view.image.topics if all_topics else (t.name for t in request.topics)
    wanted = yield from once_each(names)
    start = "" if cursor is None else cursor.topic_name
    if cursor is not None and not all_topics and start not in wanted:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"The topic list does not contain the cursor topic {start}.",
        )
    in_order = yield from sorted_in_steps(name for name in wanted if name >= start)
    limit = services.config.get_int("max.request.partition.size.limit")
    left = max(min(limit, request.response_partition_limit), 1)
    response = DescribeTopicPartitionsResponse()
    for count, name in enumerate(in_order, 1):
        if count % STEP_ITEMS == 0:
            yield None
        if left == 0:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(
                topic_name=name, partition_index=0
            )
            break
        topic = view.image.topics.get(name)
        if topic is None:
            if not all_topics:
                response.topics.append(_undescribable_topic(name))
            continue
        first = cursor.partition_index if cursor and cursor.topic_name == name else 0
        indexes = [index for index in sorted(topic.partitions) if index >= first]
        response.topics.append(_described_topic(view, topic, indexes[:left]))
        if len(indexes) > left:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(
                topic_name=name, partition_index=indexes[left]
            )
            break
        left -= len(indexes)
    return response


def _undescribable_topic(
    name: str,
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    valid = name_error(name) is None
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if valid
        else ErrorCode.INVALID_TOPIC_EXCEPTION,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _described_topic(
    view: _View, topic: TopicImage, indexes: list[int]
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    partitions = []
    for index in indexes:
        partition = topic.partitions[index]
        error = view.leader_error(partition.leader, listener_errors=True)
        partitions.append(
            DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
                error_code=error,
                partition_index=index,
                leader_id=partition.leader if error == ErrorCode.NONE else -1,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.elr),
                last_known_elr=list(partition.last_known_elr),
                offline_replicas=view.offline_replicas(partition),
            )
        )
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


# DescribeCluster


def handle_describe_cluster(
    services: Services, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """The brokers of this listener."""
    endpoint_type = request.endpoint_type
    if endpoint_type == CONTROLLER_ENDPOINT:
        raise KafkaError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if context.api_version
            else ErrorCode.INVALID_REQUEST,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint "
            "of type CONTROLLER",
        )
    if endpoint_type != BROKER_ENDPOINT:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            if context.api_version
            else ErrorCode.INVALID_REQUEST,
            f"Unsupported endpoint type {endpoint_type}",
        )
    image, listener_name = services.image, context.session.listener_name
    view = _View(image, listener_name)
    brokers = [
        broker
        for broker in sorted(image.brokers.values(), key=lambda broker: broker.id)
        if listener_name in broker.endpoints
        and (request.include_fenced_brokers or not broker.fenced)
    ]
    response = DescribeClusterResponse(
        cluster_id=services.cluster_id,
        controller_id=min(view.reachable, default=-1),
        endpoint_type=BROKER_ENDPOINT,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=broker.id,
                host=broker.endpoints[listener_name].host,
                port=broker.endpoints[listener_name].port,
                rack=broker.rack,
                is_fenced=request.include_fenced_brokers and broker.fenced,
            )
            for broker in brokers
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def describe_cluster_error(
    request: DescribeClusterRequest, error: ErrorCode, message: str
) -> DescribeClusterResponse:
    """One error for the whole answer."""
    return DescribeClusterResponse(error_code=error, error_message=message or None)


HANDLERS: tuple[ApiHandler, ...] = (
    ApiHandler(
        ApiKey.METADATA,
        handle_metadata,
        metadata_error,
        ApiPolicy(
            # CREATE: topics that are created automatically.
            Versions(0, 13),
            (
                DESCRIBE_EACH_TOPIC,
                Access(Extent.INSTEAD, AclResource.CLUSTER, (AclOperation.CREATE,)),
                Access(Extent.SOME, AclResource.TOPIC, (AclOperation.CREATE,)),
            ),
        ),
    ),
    ApiHandler(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        handle_describe_topic_partitions,
        describe_topic_partitions_error,
        ApiPolicy(Versions(0, 0), (DESCRIBE_EACH_TOPIC,)),
    ),
    ApiHandler(
        ApiKey.DESCRIBE_CLUSTER,
        handle_describe_cluster,
        describe_cluster_error,
        ApiPolicy(Versions(0, 2), NO_AUTHORISATION),
    ),
)
