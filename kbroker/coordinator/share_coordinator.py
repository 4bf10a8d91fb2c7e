"""The share coordinator (KIP-932): requests about the states of share partitions, answered by
shards of `__share_group_state`.

A share partition finds its shard by the hash of group id, topic id and partition; each is decided
on its own there (`share_state`), and answered when its records are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

from kbroker.coordinator.assignors import Place
from kbroker.coordinator.offsets import Topic
from kbroker.coordinator.records import CoordinatorRecord
from kbroker.coordinator.runtime import partition_of
from kbroker.coordinator.shards import (
    CoordinatorLog,
    CoordinatorRuntime,
    Host,
    HostStatus,
    client_error,
)
from kbroker.coordinator.share_persister import (
    SharePlace,
    StateFound,
    StateSummary,
    StateWrite,
)
from kbroker.coordinator.share_state import ShareStateShard, ShareTopics, StateSettings
from kbroker.model import Deferred, Timers, Uuid, uuid_from_string, uuid_to_string
from kbroker.protocol.compression import Compression
from kbroker.protocol.errors import ErrorCode, KafkaError

SHARE_TOPIC: Final = "__share_group_state"

T = TypeVar("T")


class CoordinatorSettings(StateSettings, Protocol):
    """What of the broker's configuration the share coordinator reads."""

    @property
    def share_coordinator_state_topic_num_partitions(self) -> int: ...
    @property
    def share_coordinator_state_topic_compression_codec(self) -> int: ...


class StateTopics(ShareTopics, Protocol):
    """What it needs to know of the cluster; metadata's MetadataImage is one."""

    @property
    def topics(self) -> Mapping[str, Topic]: ...


def coordinator_key(key: SharePlace) -> str:
    """What FindCoordinator is asked with, and what is hashed."""
    topic_id, partition = key.place
    return f"{key.group_id}:{uuid_to_string(topic_id)}:{partition}"


def is_coordinator_key(text: str) -> bool:
    """Whether text is a key of FindCoordinator: a group, a topic's id and a partition."""
    parts = text.rsplit(":", 2)
    if len(parts) != 3 or not parts[0]:
        return False
    try:
        uuid_from_string(parts[1])
        int(parts[2])
    except ValueError:
        return False
    return True


class ShareCoordinator:
    """States of share partitions. Each method gives its result, perhaps later; an error is part of
    it.
    """

    def __init__(
        self,
        config: CoordinatorSettings,
        *,
        log: CoordinatorLog,
        timers: Timers,
        topics: Callable[[], StateTopics],
    ) -> None:
        self._config = config
        self._topics = topics
        self.runtime: CoordinatorRuntime[ShareStateShard] = CoordinatorRuntime(
            SHARE_TOPIC,
            log=log,
            timers=timers,
            make_shard=lambda: ShareStateShard(config, timers.now_ms, topics),
            compression=Compression(config.share_coordinator_state_topic_compression_codec),
        )

    def partition_for(self, key: str) -> int:
        """The partition of `__share_group_state` whose leader coordinates this key."""
        topic = self._topics().topics.get(SHARE_TOPIC)
        count = (
            len(topic.partitions)
            if topic
            else self._config.share_coordinator_state_topic_num_partitions
        )
        return partition_of(key, count)

    def on_leadership(self, partition: int, epoch: int | None) -> None:
        """This broker leads that partition of `__share_group_state` from epoch on, or (None) no
        longer.
        """
        self.runtime.on_leadership(partition, epoch)

    def on_topics_deleted(self) -> None:
        """Topics are gone: the states of their partitions end."""
        for host in list(self.runtime.hosts()):
            if host.status is HostStatus.ACTIVE:
                self.runtime.carry_out(host, host.shard.on_topics_deleted())

    def close(self) -> None:
        """The broker stops."""
        self.runtime.close()

    # -- requests ----------------------------------------------------------------------------

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        """ReadShareGroupState, one partition."""
        return self._decide(key, StateFound, lambda shard: shard.read(key, leader_epoch))

    def write(self, key: SharePlace, write: StateWrite) -> Deferred[ErrorCode]:
        """WriteShareGroupState, one partition."""
        return self._decide(key, _error, lambda shard: (shard.write(key, write), ErrorCode.NONE))

    def initialize(
        self, key: SharePlace, state_epoch: int, start_offset: int
    ) -> Deferred[ErrorCode]:
        """InitializeShareGroupState, one partition."""
        return self._decide(
            key,
            _error,
            lambda shard: (shard.initialize(key, state_epoch, start_offset), ErrorCode.NONE),
        )

    def delete(self, key: SharePlace) -> Deferred[ErrorCode]:
        """DeleteShareGroupState, one partition."""
        return self._decide(key, _error, lambda shard: (shard.delete(key), ErrorCode.NONE))

    def summarize(self, key: SharePlace) -> Deferred[StateSummary]:
        """ReadShareGroupStateSummary, one partition."""
        return self._decide(key, StateSummary, lambda shard: ([], shard.summarize(key)))

    def _decide(
        self,
        key: SharePlace,
        failed: Callable[[ErrorCode], T],
        decide: Callable[[ShareStateShard], tuple[list[CoordinatorRecord], T]],
    ) -> Deferred[T]:
        try:
            if not key.group_id:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The group has no id.")
            host = self._host(key)
            records, result = decide(host.shard)
        except KafkaError as error:
            return Deferred.of(failed(error.code))
        outcome = self.runtime.submit(host, records)
        if isinstance(outcome, ErrorCode):
            return Deferred.of(result if not outcome else failed(client_error(outcome)))
        later: Deferred[T] = Deferred()
        outcome.on_done(
            lambda error: later.resolve(result if not error else failed(client_error(error)))
        )
        return later

    def _host(self, key: SharePlace) -> Host[ShareStateShard]:
        return self.runtime.host(self.partition_for(coordinator_key(key)))


def _error(error: ErrorCode) -> ErrorCode:
    return error


def place_of(topic_id: Uuid, partition: int) -> Place:
    """A copy of what a request holds."""
    return bytes(topic_id), partition
