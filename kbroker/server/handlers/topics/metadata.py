"""Metadata v0-13: brokers, topics and partitions as a client needs them to find leaders.

v1: no topics means none, null means all; controller id, rack, internal. v2: cluster id. v4: the
client may forbid auto-creation. v5: offline replicas. v6: LISTENER_NOT_FOUND instead of
LEADER_NOT_AVAILABLE. v7: leader epoch (KIP-320). v8: authorized operations (KIP-430; v8-10 also of
the cluster, which DescribeCluster took over). v10: topic ids in the response. v12: topics by id
(KIP-516). v13: error code of the whole response (KIP-1102). v0 leaves out a replica whose broker is
not reachable, and then, as in Kafka, has REPLICA_NOT_AVAILABLE where later versions do not.

A topic that is created automatically is answered UNKNOWN_TOPIC_OR_PARTITION once, as in Kafka, and
the client asks again; of more than `kbroker.auto.create.topics.per.request` unknown topics the rest
is created by the next requests. The controller id is a broker's: clients send to any broker, which
forwards (KIP-590). Kafka takes a random one, kbroker the first. Deviation: no ACLs yet, so every
operation is authorized. Neighbours: `topic_partitions` and `cluster` describe the same image.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from kbroker.broker.topic_creation import auto_create
from kbroker.metadata.cluster_view import ClusterView
from kbroker.metadata.image import PartitionImage, TopicImage
from kbroker.metadata.internal_topics import INTERNAL_TOPICS
from kbroker.metadata.topic_names import name_error
from kbroker.model import ZERO_UUID
from kbroker.protocol.acl_operations import AclResource, authorized_operations
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
)
from kbroker.replication.time_slices import STEP_ITEMS, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.data import METADATA as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import CHEAP_ITEMS, once_each, sliced

TOPIC_OPERATIONS: Final = authorized_operations(AclResource.TOPIC)

IDS_SINCE: Final = 12
"""Topics by id."""

AUTO_CREATE_LIMIT: Final = "kbroker.auto.create.topics.per.request"
CREATIONS_PER_STEP: Final = 8

_AskedTopic = MetadataRequest.MetadataRequestTopic
_Pauses = Generator[None, None, None]


def metadata_error(request: MetadataRequest, error: ErrorCode, message: str) -> MetadataResponse:
    """The error for each requested topic, and in v13 for the whole response."""
    del message
    return MetadataResponse(
        error_code=error,
        topics=[
            MetadataResponse.MetadataResponseTopic(
                error_code=error, name=entry.name or "", topic_id=entry.topic_id
            )
            for entry in request.topics or ()
        ],
    )


@sliced
def handle_metadata(
    services: Services, context: RequestContext, request: MetadataRequest
) -> Steps[MetadataResponse]:
    """Brokers and topics of the image as it is when the request begins."""
    version = context.api_version
    view = ClusterView(services.image, context.session.listener_name)
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
        if not (yield from _is_by_name(request, version)):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "A topic needs a name, or from version 12 on an id."
            )
        yield from _topics_by_name(services, context, view, request, response)
    if request.include_topic_authorized_operations:
        for count, topic in enumerate(response.topics, 1):
            if count % CHEAP_ITEMS == 0:
                yield None
            if topic.error_code == ErrorCode.NONE:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = authorized_operations(AclResource.CLUSTER)
    return response


def _all_topics(view: ClusterView, version: int, response: MetadataResponse) -> _Pauses:
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
    view: ClusterView, wanted: list[_AskedTopic], version: int, response: MetadataResponse
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


def _is_by_name(request: MetadataRequest, version: int) -> Generator[None, None, bool]:
    """Whether each topic has a name, and before `IDS_SINCE` no id."""
    for count, entry in enumerate(request.topics or (), 1):
        if count % CHEAP_ITEMS == 0:
            yield
        if entry.name is None or (version < IDS_SINCE and entry.topic_id != ZERO_UUID):
            return False
    return True


def _topics_by_name(
    services: Services,
    context: RequestContext,
    view: ClusterView,
    request: MetadataRequest,
    response: MetadataResponse,
) -> _Pauses:
    names = yield from once_each(
        entry.name for entry in request.topics or () if entry.name is not None
    )
    config = services.config
    creations = 0
    if request.allow_auto_topic_creation and config.get_bool("auto.create.topics.enable"):
        creations = config.get_int(AUTO_CREATE_LIMIT)
    for count, name in enumerate(names, 1):
        if count % STEP_ITEMS == 0:
            yield None
        topic = view.image.topics.get(name)
        if topic is not None:
            response.topics.append(_topic(view, topic, context.api_version))
            continue
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if name_error(name) is not None:
            error = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif creations > 0:
            creations -= 1
            error = auto_create(services.channel, name, context.identity, node_id=services.node_id)
            if creations % CREATIONS_PER_STEP == 0:
                yield None
        response.topics.append(
            MetadataResponse.MetadataResponseTopic(
                error_code=error, name=name, is_internal=name in INTERNAL_TOPICS
            )
        )


def _topic(
    view: ClusterView, topic: TopicImage, version: int
) -> MetadataResponse.MetadataResponseTopic:
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
    view: ClusterView, index: int, partition: PartitionImage, version: int
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


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.METADATA,
        handle_metadata,
        metadata_error,
        POLICIES[ApiKey.METADATA],
        refusal=Division(("topics",), ("topics",)),
    ),
)
