"""The topic that a snapshot or a clone is written to.

While it is filled, nothing may delete its old records or change their timestamps: it is created
with `FILLING`, and gets the configurations of the source when all records are in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kbroker.cli.configs.resources import (
    ConfigChange,
    ResourceKind,
    change_configs,
    described_configs,
)
from kbroker.cli.console.output import counted, note
from kbroker.client.cluster import LATEST_TIMESTAMP
from kbroker.model import ConfigOperation, StartupError, TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse

if TYPE_CHECKING:
    from kbroker.client.cluster import Client

_ALWAYS: Final = str((1 << 63) - 1)
FILLING: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": _ALWAYS,
    "message.timestamp.after.max.ms": _ALWAYS,
}
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
NOT_COPIED: Final = frozenset(
    {"follower.replication.throttled.replicas", "leader.replication.throttled.replicas"}
)
"""They name partitions and brokers of a reassignment."""


@dataclass(frozen=True, slots=True)
class Target:
    """A topic to write to. ends: offsets behind its last records. max_message_bytes: of a batch."""

    name: str
    ends: Mapping[int, int]
    max_message_bytes: int


async def create_target(
    client: Client,
    name: str,
    partition_count: int,
    replication_factor: int,
    configs: Mapping[str, str],
) -> Target:
    """A new topic that can be filled. configs: of the source. replication_factor: -1 for the
    broker's default. Raises StartupError if it exists, KafkaError.
    """
    first = {key: value for key, value in configs.items() if key not in NOT_COPIED}
    first.pop(MIN_INSYNC_REPLICAS, None)
    request = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=partition_count,
                replication_factor=replication_factor,
                configs=[
                    CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                    for key, value in {**first, **FILLING}.items()
                ],
            )
        ],
        timeout_ms=30_000,
    )
    response = await client.to_controller(request, CreateTopicsResponse)
    (result,) = response.topics
    if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
        raise StartupError(
            f"topic {name} exists already: name another one, delete it first "
            f"(kbroker topics delete {name}), or write into it (--existing)"
        )
    if result.error_code:
        raise KafkaError(ErrorCode(result.error_code), result.error_message or f"topic {name}")
    return await _found(client, name)


async def existing_target(client: Client, name: str, partition_count: int) -> Target:
    """A topic that is there already. Raises StartupError if it cannot take the records as they are,
    KafkaError if there is none.
    """
    view = await client.topic(name)
    if len(view.partitions) < partition_count:
        raise StartupError(
            f"topic {name} has {counted(len(view.partitions), 'partition')}, "
            f"{partition_count} are needed: kbroker topics add-partitions"
        )
    configs = await _configs(client, name)
    if configs.get("message.timestamp.type") == "LogAppendTime":
        raise StartupError(
            f"topic {name} has message.timestamp.type=LogAppendTime, which replaces the "
            "timestamps of records: set CreateTime, or name a new topic"
        )
    retention = configs.get("retention.ms", "-1")
    if "delete" in configs.get("cleanup.policy", "") and retention != "-1":
        note(f"{name} has retention.ms={retention}: older records are deleted from it")
    return await _found(client, name)


async def _found(client: Client, name: str) -> Target:
    view = await client.retry(lambda: client.topic(name))
    places = dict.fromkeys((TopicPartition(name, each) for each in view.partitions), -1)
    wanted = dict.fromkeys(places, LATEST_TIMESTAMP)
    ends = await client.retry(lambda: client.list_offsets(wanted))
    configs = await _configs(client, name)
    return Target(
        name=name,
        ends={place.partition: answer.offset for place, answer in ends.items()},
        max_message_bytes=int(configs.get("max.message.bytes", 1 << 20)),
    )


async def _configs(client: Client, name: str) -> dict[str, str]:
    (described,) = await client.retry(lambda: described_configs(client, ResourceKind.TOPIC, [name]))
    return {entry.name: entry.value for entry in described.configs if entry.value is not None}


async def settle_target(
    client: Client, name: str, configs: Mapping[str, str], *, keep_records: bool
) -> None:
    """All records are in a created topic: give it the configurations of its source. keep_records:
    but retention.ms stays -1, as old records would be deleted at once. Raises KafkaError.
    """
    view = await client.metadata([name])
    replicas = min(len(each.replica_nodes) for each in view.topics[0].partitions)
    changes = [
        ConfigChange(key, ConfigOperation.SET, configs[key])
        if key in configs
        else ConfigChange(key, ConfigOperation.DELETE, None)
        for key in FILLING
        if not (keep_records and key == "retention.ms")
    ]
    minimum = configs.get(MIN_INSYNC_REPLICAS)
    if minimum is not None and int(minimum) <= replicas:
        changes.append(ConfigChange(MIN_INSYNC_REPLICAS, ConfigOperation.SET, minimum))
    elif minimum is not None:
        note(
            f"{name} has {counted(replicas, 'replica')}: {MIN_INSYNC_REPLICAS}={minimum} of the "
            "source was left out"
        )
    (outcome,) = await change_configs(client, ResourceKind.TOPIC, [name], changes)
    if outcome is not None:
        raise outcome
    if keep_records and configs.get("retention.ms") != "-1":
        was = configs.get("retention.ms")
        back = f"--set retention.ms={was}" if was is not None else "--unset retention.ms"
        note(
            f"{name} keeps its old records (retention.ms=-1); as the source had it: "
            f"kbroker topics alter {name} {back}"
        )
