"""Kafka's internal topics, with the properties that follow from the broker's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from kbroker.protocol.messages.admin.topics import CreateTopicsRequest

CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
SHARE_GROUP_STATE: Final = "__share_group_state"

INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE})


class IntConfig(Protocol):
    """The part of BrokerConfig that is needed here."""

    def get_int(self, name: str) -> int: ...


class InternalTopic(msgspec.Struct, frozen=True):
    """The properties for creating an internal topic."""

    name: str
    partition_count: int
    replication_factor: int
    configs: Mapping[str, str]

    def creation(self) -> CreateTopicsRequest.CreatableTopic:
        """The topic in the form of a CreateTopics request."""
        return CreateTopicsRequest.CreatableTopic(
            name=self.name,
            num_partitions=self.partition_count,
            replication_factor=self.replication_factor,
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                for key, value in self.configs.items()
            ],
        )


def internal_topic(name: str, config: IntConfig) -> InternalTopic | None:
    """The internal topic of that name according to the broker's configuration; None if there is
    none.
    """
    if name == CONSUMER_OFFSETS:
        configs = {
            "compression.type": "producer",
            "cleanup.policy": "compact",
            "segment.bytes": str(config.get_int("offsets.topic.segment.bytes")),
        }
        return _build(
            name,
            config,
            configs,
            partition_count="offsets.topic.num.partitions",
            replication_factor="offsets.topic.replication.factor",
        )
    if name == TRANSACTION_STATE:
        configs = {
            "compression.type": "uncompressed",
            "cleanup.policy": "compact",
            "min.insync.replicas": str(config.get_int("transaction.state.log.min.isr")),
            "segment.bytes": str(config.get_int("transaction.state.log.segment.bytes")),
            "unclean.leader.election.enable": "false",
        }
        return _build(
            name,
            config,
            configs,
            partition_count="transaction.state.log.num.partitions",
            replication_factor="transaction.state.log.replication.factor",
        )
    if name == SHARE_GROUP_STATE:
        configs = {
            "compression.type": "producer",
            "cleanup.policy": "delete",
            "min.insync.replicas": str(config.get_int("share.coordinator.state.topic.min.isr")),
            "segment.bytes": str(config.get_int("share.coordinator.state.topic.segment.bytes")),
            "retention.ms": "-1",
        }
        return _build(
            name,
            config,
            configs,
            partition_count="share.coordinator.state.topic.num.partitions",
            replication_factor="share.coordinator.state.topic.replication.factor",
        )
    return None


def _build(
    name: str,
    config: IntConfig,
    configs: Mapping[str, str],
    *,
    partition_count: str,
    replication_factor: str,
) -> InternalTopic:
    """partition_count, replication_factor: the names of the broker's settings."""
    return InternalTopic(
        name,
        partition_count=config.get_int(partition_count),
        replication_factor=config.get_int(replication_factor),
        configs=configs,
    )
