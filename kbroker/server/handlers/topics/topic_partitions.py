"""DescribeTopicPartitions v0 (KIP-966): topics sorted by name, with their eligible leader replicas.

A response has at most `max.request.partition.size.limit` partitions, and a cursor with which the
client asks for the next ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kbroker.metadata.cluster_view import ClusterView
from kbroker.metadata.image import TopicImage
from kbroker.metadata.internal_topics import INTERNAL_TOPICS
from kbroker.metadata.topic_names import name_error
from kbroker.protocol.acl_operations import AclResource, authorized_operations
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from kbroker.replication.time_slices import STEP_ITEMS, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.data import TOPIC_PARTITIONS as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import once_each, sliced, sorted_in_steps

TOPIC_OPERATIONS: Final = authorized_operations(AclResource.TOPIC)


def describe_topic_partitions_error(
    request: DescribeTopicPartitionsRequest, error: ErrorCode, message: str
) -> DescribeTopicPartitionsResponse:
    """The error for each requested topic."""
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
                error_code=error, name=topic.name
            )
            for topic in request.topics
        ]
    )


@sliced
def handle_describe_topic_partitions(
    services: Services, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> Steps[DescribeTopicPartitionsResponse]:
    """Topics by name from the cursor on, until the limit of partitions is reached."""
    view = ClusterView(services.image, context.session.listener_name)
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
    view: ClusterView, topic: TopicImage, indexes: list[int]
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


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        handle_describe_topic_partitions,
        describe_topic_partitions_error,
        POLICIES[ApiKey.DESCRIBE_TOPIC_PARTITIONS],
        refusal=Division(("topics",), ("topics",)),
    ),
)
