"""The inputs of decisions about partitions: the image, the indexes over it, and the settings of
topics. `change` begins a change of a partition with Kafka's rules for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kbroker.controller.partitions.partition_change import (
    ChangeRules,
    Election,
    PartitionChangeBuilder,
)
from kbroker.controller.partitions.partition_index import PartitionIndex
from kbroker.controller.partitions.placement import default_directory
from kbroker.controller.result import CHANGES_PER_STEP, RecordSteps
from kbroker.metadata.configs import (
    MIN_INSYNC_REPLICAS,
    UNCLEAN_LEADER_ELECTION,
    TopicSettings,
    effective_value,
)
from kbroker.metadata.image import (
    BrokerRegistration,
    MetadataImage,
    PartitionImage,
    TopicImage,
    has_online_directory,
)
from kbroker.model import InvariantError, TopicIdPartition, Uuid
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError

NO_BROKER: Final = -1


class DecisionContext:
    """For one decision. What topics without a setting of their own have is looked up once."""

    __slots__ = ("_defaults", "_settings", "image", "partitions")

    def __init__(
        self, image: MetadataImage, partitions: PartitionIndex, settings: TopicSettings
    ) -> None:
        self.image = image
        self.partitions = partitions
        self._settings = settings
        self._defaults: dict[str, str | None] = {}

    def registered(self, broker_id: int, broker_epoch: int) -> BrokerRegistration:
        """The broker of a request. Raises KafkaError(STALE_BROKER_EPOCH), also if it is not
        registered.
        """
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            message = f"No broker registration found for broker id {broker_id}"
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, message)
        if broker.epoch != broker_epoch:
            message = f"Expected broker epoch {broker.epoch}, but got broker epoch {broker_epoch}"
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, message)
        return broker

    def min_insync_replicas(self, topic: TopicImage) -> int:
        """min.insync.replicas of the topic, at most its replication factor."""
        configured = int(self._setting(topic.name, MIN_INSYNC_REPLICAS) or 1)
        first = next(iter(topic.partitions.values()))
        return min(configured, len(first.replicas))

    def is_unclean_election_enabled(self, topic: str) -> bool:
        """unclean.leader.election.enable of the topic."""
        return (self._setting(topic, UNCLEAN_LEADER_ELECTION) or "").lower() == "true"

    def change(
        self,
        topic: TopicImage,
        index: int,
        *,
        placed: PartitionImage | None = None,
        is_active: Callable[[int], bool] | None = None,
        configured_election: bool = False,
    ) -> PartitionChangeBuilder:
        """A change of that partition.

        placed: the partition with the directories that count for who may lead, if not its own.
        is_active: whether a broker may lead anything, where the decision says more about it than
        the image. configured_election: elect uncleanly if the topic allows it.
        """
        image, partition = self.image, topic.partitions[index]
        located = placed or partition
        may_lead = image.is_active if is_active is None else is_active

        def is_acceptable_leader(broker_id: int) -> bool:
            return may_lead(broker_id) and self._has_online_replica(located, broker_id)

        rules = ChangeRules(
            is_acceptable_leader=is_acceptable_leader,
            default_directory=self._default_directory,
            metadata_version=image.metadata_version,
            min_insync_replicas=self.min_insync_replicas(topic),
            elr_enabled=image.elr_enabled,
        )
        builder = PartitionChangeBuilder(topic.topic_id, index, partition, rules)
        if configured_election and self.is_unclean_election_enabled(topic.name):
            builder.election = Election.UNCLEAN
        return builder

    def leader_and_isr_updates(
        self,
        partitions: Iterable[TopicIdPartition],
        *,
        leaving: int = NO_BROKER,
        joining: int = NO_BROKER,
        unclean_shutdown: int = NO_BROKER,
    ) -> RecordSteps:
        """The changes of these partitions when a broker's state changes, in steps; Kafka's
        generateLeaderAndIsrUpdates.

        leaving: leaves the ISRs and leads no more. joining: may lead, though the image still has it
        fenced. unclean_shutdown: may have lost records, so it leaves the ISRs and ELRs.
        """
        image, gone = self.image, (leaving, unclean_shutdown)

        def is_active(broker_id: int) -> bool:
            return broker_id not in gone and (broker_id == joining or image.is_active(broker_id))

        records: list[Message] = []
        for count, (topic_id, index) in enumerate(partitions, 1):
            topic = image.topics_by_id.get(topic_id)
            if topic is None or index not in topic.partitions:
                raise InvariantError(f"partition {index} of {topic_id.hex()} is only in an index")
            builder = self.change(topic, index, is_active=is_active, configured_election=True)
            if unclean_shutdown != NO_BROKER:
                builder.unclean_shutdown_replicas = (unclean_shutdown,)
            isr = topic.partitions[index].isr
            builder.target_isr = tuple(replica for replica in isr if replica not in gone)
            record = builder.build()
            if record is not None:
                records.append(record)
            if count % CHANGES_PER_STEP == 0:
                yield
        return records

    def _has_online_replica(self, partition: PartitionImage, broker_id: int) -> bool:
        broker = self.image.brokers.get(broker_id)
        if broker is None or broker_id not in partition.replicas:
            return False
        return has_online_directory(broker, partition.directory(broker_id))

    def _default_directory(self, broker_id: int) -> Uuid:
        return default_directory(self.image.brokers.get(broker_id))

    def _setting(self, topic: str, name: str) -> str | None:
        own = self.image.topic_configs(topic).get(name)
        if own is not None:
            return own
        if name not in self._defaults:
            value = effective_value(self._settings, self.image, {}, name).value
            self._defaults[name] = value
        return self._defaults[name]
