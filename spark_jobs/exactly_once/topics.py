"""The topics of a sink: those it writes to, and the compacted topic of its tokens."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.configs import DescribeConfigsRequest, DescribeConfigsResponse
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse

from ..wire.client import BlockingClient
from ..wire.offsets import is_missing
from .errors import SinkError, sink_error

logger = logging.getLogger(__name__)

TOPIC_RESOURCE: Final = 2
PROPAGATION_S: Final = 3.0
"""How long a topic may be unknown before it counts as missing."""

TOKENS_TOPIC: Final = "__spark_batches"
TOKENS_PARTITIONS: Final = 4
MAX_REPLICATION: Final = 3
TOKENS_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    # A claim counts while its transaction is open, at most transaction.max.timeout.ms (15 minutes
    # by default): no record is compacted before.
    "min.compaction.lag.ms": "3600000",
    # The log is read from its start by each new driver: small segments, so that it is compacted.
    "segment.bytes": "16777216",
}

MAP_TOPIC: Final = "__spark_offsets"
MAP_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "2592000000",  # 30 days
    "segment.bytes": "67108864",
}


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic that is written to. max_message_bytes: the largest batch, None if unknown."""

    name: str
    partition_count: int
    max_message_bytes: int | None


def target_topic(client: BlockingClient, name: str) -> TargetTopic:
    """Look a topic up. Raises SinkError if it does not exist."""
    try:
        count = _partition_count(client, name)
    except KafkaError as error:
        if is_missing(error):
            raise SinkError(
                f"topic {name} does not exist: create it with the partitions it is to have, "
                "or correct its name"
            ) from None
        raise sink_error(error, f"looking topic {name} up") from error
    configs = describe_topic(client, name, ["max.message.bytes"])
    limit = configs.get("max.message.bytes")
    return TargetTopic(name, count, None if limit is None else int(limit))


def _partition_count(client: BlockingClient, name: str) -> int:
    """Raises KafkaError. A topic that was just created may not be known to every broker yet."""
    try:
        return client.retry(lambda: client.partition_count(name), is_final=is_missing)
    except KafkaError as error:
        if not is_missing(error):
            raise
    return client.retry(lambda: client.partition_count(name), timeout_s=PROPAGATION_S)


def describe_topic(client: BlockingClient, name: str, keys: Sequence[str]) -> dict[str, str]:
    """Those configurations of a topic that could be read: none without the right to describe
    configurations, and none of brokers before Kafka 1.1. Raises SinkError.
    """
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=list(keys)
            )
        ]
    )

    def describe() -> DescribeConfigsResponse.DescribeConfigsResult:
        response = client.any(request, DescribeConfigsResponse, max_version=4)
        (result,) = response.results
        if result.error_code:
            raise KafkaError(ErrorCode(result.error_code), result.error_message or "")
        return result

    try:
        result = client.retry(describe)
    except KafkaError as error:
        if error.code in (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            ErrorCode.UNSUPPORTED_VERSION,
        ):
            logger.info("configurations of topic %s cannot be read: %s", name, error)
            return {}
        raise sink_error(error, f"reading the configurations of topic {name}") from error
    return {config.name: config.value for config in result.configs if config.value is not None}


def prepare_tokens_topic(client: BlockingClient, name: str) -> int:
    """Create the topic of tokens if it does not exist; returns its partition count.

    Raises SinkError if it cannot be created, or if its tokens would expire.
    """
    count = _prepare(client, name, TOKENS_CONFIGS)
    check_tokens_policy(client, name)
    return count


def prepare_map_topic(client: BlockingClient, name: str) -> int:
    """Create the topic of offset maps if it does not exist; returns its partition count. Raises
    SinkError.
    """
    return _prepare(client, name, MAP_CONFIGS)


def _prepare(client: BlockingClient, name: str, configs: Mapping[str, str]) -> int:
    try:
        client.retry(lambda: client.partition_count(name), is_final=is_missing)
    except KafkaError as error:
        if not is_missing(error):
            raise sink_error(error, f"looking topic {name} up") from error
        create_topic(client, name, TOKENS_PARTITIONS, configs)
    try:
        return client.retry(lambda: client.partition_count(name))
    except KafkaError as error:
        raise sink_error(error, f"looking topic {name} up") from error


def check_tokens_policy(client: BlockingClient, name: str) -> None:
    """Raises SinkError if the tokens of a topic would expire."""
    policy = describe_topic(client, name, ["cleanup.policy"]).get("cleanup.policy", "compact")
    if policy != "compact":
        raise SinkError(
            f"topic {name} has cleanup.policy={policy}, so that tokens of finished batches would "
            "be deleted and their batches written again: set cleanup.policy=compact"
        )


def create_topic(
    client: BlockingClient, name: str, partition_count: int, configs: Mapping[str, str]
) -> None:
    """Create a topic with up to MAX_REPLICATION replicas, unless it exists. Raises SinkError."""
    request = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=partition_count,
                replication_factor=min(MAX_REPLICATION, max(client.broker_count(), 1)),
                configs=[
                    CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                    for key, value in configs.items()
                ],
            )
        ],
        timeout_ms=30_000,
    )

    def create() -> None:
        response = client.any(request, CreateTopicsResponse, max_version=5)
        (result,) = response.topics
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise KafkaError(ErrorCode(result.error_code), result.error_message or "")

    try:
        client.retry(create)
    except KafkaError as error:
        raise sink_error(error, f"creating topic {name}") from error
    logger.info("created topic %s with %d partitions", name, partition_count)
