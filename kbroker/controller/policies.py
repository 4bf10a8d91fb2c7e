"""Policies of the operator (KIP-108, KIP-133): classes of Python that may refuse a new topic or an
alteration of settings.

`create.topic.policy.class.name` and `alter.config.policy.class.name` name them, `module:Class`. The
class is made without arguments by the node (`node/policies`), which calls `configure` with the
properties of the broker, if there is such a method. `validate` runs on the event loop of the active
controller, after everything else was checked: it must be quick. What it refuses it raises
`PolicyViolation` for; the client reads the message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec


class PolicyViolation(Exception):
    """What was asked for violates the policy; `str()` tells the client how."""


class NewTopic(msgspec.Struct, frozen=True):
    """A topic that is to be created. partition_count, replication_factor: None where assignments
    are given: the replicas of each partition, the preferred leader first. configs: of the topic.
    """

    name: str
    partition_count: int | None
    replication_factor: int | None
    assignments: Mapping[int, Sequence[int]] | None
    configs: Mapping[str, str]


class AlteredConfigs(msgspec.Struct, frozen=True):
    """Settings that are to be altered. resource_type: a code of `ResourceType` (2 topic, 4 broker,
    16 client metrics, 32 group). configs: those that the request names; None for one that is
    deleted.
    """

    resource_type: int
    resource_name: str
    configs: Mapping[str, str | None]


class CreateTopicPolicy(Protocol):
    """Kafka's `org.apache.kafka.server.policy.CreateTopicPolicy`."""

    def validate(self, topic: NewTopic) -> None:
        """Raises PolicyViolation."""
        ...


class AlterConfigPolicy(Protocol):
    """Kafka's `org.apache.kafka.server.policy.AlterConfigPolicy`."""

    def validate(self, altered: AlteredConfigs) -> None:
        """Raises PolicyViolation."""
        ...


class Policies(msgspec.Struct, frozen=True):
    """Of one node; None where none is configured."""

    create_topic: CreateTopicPolicy | None = None
    alter_config: AlterConfigPolicy | None = None


NO_POLICIES: Final = Policies()
