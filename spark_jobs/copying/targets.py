"""The topics that a copy writes: looked up, created, grown, and their settings copied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kbroker.protocol.messages.admin.topics import CreatePartitionsRequest, CreatePartitionsResponse

from ..cluster import Topics
from ..errors import JobError
from ..exactly_once.errors import SinkError, sink_error
from ..exactly_once.topics import (
    TOPIC_RESOURCE,
    TargetTopic,
    create_topic,
    describe_topic,
    target_topic,
)
from ..topic_checks import counted
from ..wire.client import BlockingClient, ClusterAddress
from ..wire.offsets import is_missing, topic_facts

DYNAMIC_TOPIC_CONFIG: Final = 1
"""The source of a configuration that was set for the topic itself."""

SET: Final = 0
"""The operation of IncrementalAlterConfigs."""

NOT_COPIED: Final = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
        "unclean.leader.election.enable",
        "min.insync.replicas",
    }
)
"""What MirrorMaker 2 leaves out by default (`config.properties.exclude`), for the same reasons: it
belongs to the cluster, or would change timestamps.
"""

RESTORED_CONFIGS: Final = {"retention.ms": "-1"}
"""Of a topic that is created for old records, which the default retention would delete at once."""

RETENTION_KEYS: Final = ("retention.ms", "retention.bytes")


class Retention(NamedTuple):
    """How long the brokers keep records of a topic, and how many bytes of a partition; -1 for no
    limit.
    """

    ms: int
    size_bytes: int

    def shorter_than(self, other: Retention) -> dict[str, int]:
        """The limits of `other` that are above these, by configuration."""
        return {
            key: wanted
            for key, limit, wanted in zip(RETENTION_KEYS, self, other, strict=True)
            if limit >= 0 and (wanted < 0 or limit < wanted)
        }


FOR_EVER: Final = Retention(-1, -1)


def retention_of(client: BlockingClient, name: str) -> Retention:
    """The retention of a topic, wherever it is set; FOR_EVER for one that is only compacted, and
    where it cannot be read. Raises SinkError.
    """
    return _retention(describe_topic(client, name, ["cleanup.policy", *RETENTION_KEYS]))


def _retention(configs: Mapping[str, str]) -> Retention:
    if "delete" not in configs.get("cleanup.policy", "delete"):
        return FOR_EVER
    return Retention(*(int(configs.get(key, "-1")) for key in RETENTION_KEYS))


def find_target(client: BlockingClient, name: str) -> TargetTopic | None:
    """A topic that is to be written; None if it does not exist. Raises SinkError."""
    try:
        client.retry(lambda: client.partition_count(name), is_final=is_missing)
    except KafkaError as error:
        if is_missing(error):
            return None
        raise sink_error(error, f"looking topic {name} up") from error
    return target_topic(client, name)


def look_at_targets(servers: str, names: Iterable[str]) -> Topics:
    """Those of the topics that exist, with their ids and ends. Raises JobError."""
    client = BlockingClient(ClusterAddress(servers))
    try:
        return topic_facts(client, names)
    except KafkaError as error:
        raise sink_error(error, "looking the target topics up") from error
    finally:
        client.close()


def check_target(
    client: BlockingClient,
    target: TargetTopic,
    partition_count: int,
    source: Retention = FOR_EVER,
) -> list[str]:
    """Whether records of a topic with so many partitions can be copied as they are; gives notes,
    also where records are deleted sooner than in the source. Raises JobError.
    """
    if target.partition_count < partition_count:
        raise JobError(
            f"topic {target.name} has {counted(target.partition_count, 'partition')}, the source "
            f"{partition_count}: add partitions, or name another topic"
        )
    configs = describe_topic(
        client, target.name, ["message.timestamp.type", "cleanup.policy", *RETENTION_KEYS]
    )
    if configs.get("message.timestamp.type") == "LogAppendTime":
        raise JobError(
            f"topic {target.name} has message.timestamp.type=LogAppendTime, which replaces the "
            "times of records: set CreateTime"
        )
    deleted = {
        "retention.ms": "records that are older",
        "retention.bytes": "the oldest records of a partition that is larger",
    }
    return [
        f"topic {target.name} has {key}={configs[key]}: the brokers delete {deleted[key]}"
        for key in _retention(configs).shorter_than(source)
    ]


def create_target(
    client: BlockingClient, name: str, partition_count: int, configs: Mapping[str, str]
) -> TargetTopic:
    """Create a topic and wait until it can be looked up. Without a message.timestamp.type in
    configs its records keep their times, whatever the cluster's default is. Raises SinkError.
    """
    kept = {"message.timestamp.type": "CreateTime", **configs}
    create_topic(client, name, partition_count, kept)
    return target_topic(client, name)


def create_copy(
    client: BlockingClient,
    name: str,
    partition_count: int,
    configs: Mapping[str, str],
    source: Retention,
) -> tuple[TargetTopic, str]:
    """Create a topic that keeps records at least as long as the topic that they come from: they
    keep their times, so a shorter default would delete them soon. Gives a note. Raises SinkError.
    """
    retention: dict[str, str] = {}
    if source.ms < 0 and "delete" in configs.get("cleanup.policy", "delete"):
        retention = RESTORED_CONFIGS
    topic = create_target(client, name, partition_count, {**retention, **configs})
    # What the default of a cluster is can be seen of a topic that has it.
    longer = retention_of(client, name).shorter_than(source)
    if longer:
        retention = retention | {key: str(limit) for key, limit in longer.items()}
        set_configs(client, name, retention)
    shown = f" and {shown_configs(retention)}" if retention else ""
    return topic, f"created topic {name} with {counted(partition_count, 'partition')}{shown}"


def shown_configs(configs: Mapping[str, str]) -> str:
    """`retention.bytes=5, retention.ms=-1`."""
    return ", ".join(f"{key}={value}" for key, value in sorted(configs.items()))


def add_partitions(client: BlockingClient, name: str, count: int) -> None:
    """Give a topic so many partitions. Raises SinkError."""
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        ],
        timeout_ms=30_000,
        validate_only=False,
    )

    def add() -> None:
        response = client.any(request, CreatePartitionsResponse, max_version=3)
        (result,) = response.results
        if result.error_code not in (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS):
            raise KafkaError(ErrorCode(result.error_code), result.error_message or "")

    def is_there() -> None:
        if client.partition_count(name) < count:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")

    try:
        client.retry(add)
        client.retry(is_there)
    except KafkaError as error:
        raise sink_error(error, f"adding partitions to topic {name}") from error


def own_configs(client: BlockingClient, name: str) -> dict[str, str]:
    """What was set for a topic itself and is copied: without NOT_COPIED. Raises SinkError."""
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None
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
        raise sink_error(error, f"reading the configurations of topic {name}") from error
    return {
        config.name: config.value
        for config in result.configs
        if config.config_source == DYNAMIC_TOPIC_CONFIG
        and config.value is not None
        and not config.is_sensitive
        and config.name not in NOT_COPIED
    }


def set_configs(client: BlockingClient, name: str, configs: Mapping[str, str]) -> None:
    """Set configurations of a topic; the others stay. Raises SinkError."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=TOPIC_RESOURCE,
                resource_name=name,
                configs=[
                    IncrementalAlterConfigsRequest.AlterableConfig(
                        name=key, config_operation=SET, value=value
                    )
                    for key, value in sorted(configs.items())
                ],
            )
        ],
        validate_only=False,
    )

    def alter() -> None:
        response = client.any(request, IncrementalAlterConfigsResponse, max_version=1)
        (result,) = response.responses
        if result.error_code:
            raise KafkaError(ErrorCode(result.error_code), result.error_message or "")

    try:
        client.retry(alter)
    except KafkaError as error:
        raise SinkError(f"setting the configurations of topic {name}: {error}") from error
