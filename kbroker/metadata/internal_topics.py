"""The topics Kafka keeps its own state in: their shape follows from the broker's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
SHARE_GROUP_STATE: Final = "__share_group_state"

INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE})


class IntConfig(Protocol):
    """The part of BrokerConfig that is needed here."""

    def get_int(self, name: str) -> int: ...

    def is_explicit(self, name: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """How to create one. bends: the replication factor was not chosen by anybody, so fewer brokers
    will do.
    """

    name: str
    partition_count: int
    replication_factor: int
    bends: bool
    configs: Mapping[str, str]


def internal_topic(name: str, config: IntConfig) -> InternalTopic | None:
    """How the broker's configuration wants that topic; None for one that is not internal."""
    if name == CONSUMER_OFFSETS:
        configs = {
            "compression.type": "producer",
            "cleanup.policy": "compact",
            "segment.bytes": str(config.get_int("offsets.topic.segment.bytes")),
        }
        return _build(name, "offsets.topic", config, configs)
    if name == TRANSACTION_STATE:
        configs = {
            "compression.type": "uncompressed",
            "cleanup.policy": "compact",
            "min.insync.replicas": str(config.get_int("transaction.state.log.min.isr")),
            "segment.bytes": str(config.get_int("transaction.state.log.segment.bytes")),
            "unclean.leader.election.enable": "false",
        }
        return _build(name, "transaction.state.log", config, configs)
    if name == SHARE_GROUP_STATE:
        prefix = "share.coordinator.state.topic"
        configs = {
            "compression.type": "producer",
            "cleanup.policy": "delete",
            "min.insync.replicas": str(config.get_int(f"{prefix}.min.isr")),
            "segment.bytes": str(config.get_int(f"{prefix}.segment.bytes")),
            "retention.ms": "-1",
        }
        return _build(name, prefix, config, configs)
    return None


def _build(name: str, prefix: str, config: IntConfig, configs: Mapping[str, str]) -> InternalTopic:
    return InternalTopic(
        name,
        partition_count=config.get_int(f"{prefix}.num.partitions"),
        replication_factor=config.get_int(f"{prefix}.replication.factor"),
        bends=not config.is_explicit(f"{prefix}.replication.factor"),
        configs=configs,
    )
