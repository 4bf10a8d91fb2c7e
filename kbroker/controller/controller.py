"""The controller's decisions: a request gives (records, response) and changes nothing; `replay`
alone changes state.

State is one immutable image, the *proposed* one: every record handed out so far is in it, committed
or not. Each noun has its own module (`topics`, `brokers`, `configs`, `features`, `directories`,
`producer_ids`); appending and answering is in `service`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Final, Protocol, TypeVar

from kbroker.controller import brokers, directories, producer_ids, topics
from kbroker.controller import configs as config_changes
from kbroker.controller import features as feature_updates
from kbroker.controller.result import ControllerResult, DecisionSteps, at_once
from kbroker.metadata.configs import (
    StaticConfig,
    TopicSettings,
    cluster_min_insync_record,
    min_insync_replicas,
)
from kbroker.metadata.delta import MetadataDelta
from kbroker.metadata.image import (
    ELIGIBLE_LEADER_REPLICAS,
    BrokerRegistration,
    Endpoint,
    MetadataImage,
)
from kbroker.metadata.internal_topics import IntConfig, internal_topic
from kbroker.model import Uuid
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse
from kbroker.protocol.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
)
from kbroker.protocol.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kbroker.protocol.schema import Message

RECORDS_PER_STEP: Final = 128
"""Records that are replayed, or encoded, in one step: about half a millisecond of work."""

MAX_RECORDS_PER_OPERATION: Final = 10_000
TOO_MANY_RECORDS: Final = "Unable to perform excessively large batch operation."

R = TypeVar("R")


def _bounded(result: ControllerResult[R]) -> ControllerResult[R]:
    """Kafka's bound of what one request of a client may write."""
    if len(result.records) > MAX_RECORDS_PER_OPERATION:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, TOO_MANY_RECORDS)
    return result


class ControllerConfig(StaticConfig, IntConfig, Protocol):
    """The part of BrokerConfig that the controller reads."""

    def get_bool(self, name: str) -> bool: ...


class Controller:
    """See the module. next_offset: the offset the next record will get; the service sets it before
    a decision.
    """

    __slots__ = ("_config", "_random", "_settings", "image", "next_offset", "node_id")

    def __init__(self, config: ControllerConfig, *, random: Random, node_id: int) -> None:
        self._config = config
        self._random = random
        self._settings = TopicSettings(config, node_id)
        self.node_id = node_id
        self.image = MetadataImage()
        self.next_offset = 0

    def replay(self, records: Sequence[Message], *, offset: int, epoch: int) -> MetadataImage:
        """Take records in, the last of which stands at `offset`. Returns the new image, which is
        also `image`.
        """
        deque(self.replay_in_steps(records, offset=offset, epoch=epoch), maxlen=0)
        return self.image

    def replay_in_steps(
        self, records: Sequence[Message], *, offset: int, epoch: int
    ) -> Iterator[None]:
        """As `replay`, some records in each step; the last step changes `image`."""
        delta = MetadataDelta(self.image)
        for count, record in enumerate(records):
            if count and count % RECORDS_PER_STEP == 0:
                yield
            delta.replay(record)
        self.image = delta.apply(offset=offset, epoch=epoch)

    # The cluster's beginning, and the controller itself.

    def bootstrap(self, records: Sequence[Message]) -> ControllerResult[None]:
        """The first records of a cluster, out of bootstrap.checkpoint, as one metadata
        transaction.
        """
        elr = any(
            isinstance(r, FeatureLevelRecord)
            and r.name == ELIGIBLE_LEADER_REPLICAS
            and r.feature_level > 0
            for r in records
        )
        extra = [cluster_min_insync_record(self._settings)] if elr else []
        begin = BeginTransactionRecord(name="Bootstrap records")
        return ControllerResult([begin, *records, *extra, EndTransactionRecord()], None)

    def abort_transaction(self) -> AbortTransactionRecord:
        """What a new leader writes behind a transaction that its predecessor did not end."""
        return AbortTransactionRecord(reason="Controller failover")

    def register_controller(
        self, incarnation_id: Uuid, endpoints: Mapping[str, Endpoint]
    ) -> ControllerResult[None]:
        """This node as a controller."""
        record = brokers.controller_record(
            self.node_id, incarnation_id=incarnation_id, endpoints=endpoints
        )
        return ControllerResult([record], None)

    # Brokers.

    def register_broker(
        self,
        broker_id: int,
        *,
        incarnation_id: Uuid,
        endpoints: Mapping[str, Endpoint],
        log_dirs: tuple[Uuid, ...],
        previous_broker_epoch: int = -1,
        rack: str | None = None,
    ) -> ControllerResult[int]:
        """A broker starts; the response is its epoch. It stays fenced until `unfence_broker`."""
        record = brokers.registration_record(
            broker_id,
            broker_epoch=self.next_offset,
            incarnation_id=incarnation_id,
            endpoints=endpoints,
            log_dirs=log_dirs,
            rack=rack,
        )
        records = brokers.register_broker(
            self.image,
            record,
            previous_broker_epoch=previous_broker_epoch,
            min_insync_replicas=self._min_insync_replicas,
        )
        return ControllerResult(records, record.broker_epoch, atomic=False)

    def heartbeat(
        self, broker_id: int, broker_epoch: int, *, want_fence: bool, want_shut_down: bool
    ) -> ControllerResult[brokers.HeartbeatReply]:
        """BrokerHeartbeat: unfence the broker, fence it, or shut it down in a controlled way.

        The first heartbeat that wants to shut down takes its leaderships from the broker, the next
        one fences it; the broker may stop then. Raises KafkaError for a broker epoch that is not
        the registered one.
        """
        broker = self._broker(broker_id, broker_epoch)
        is_fenced, should_shut_down = broker.fenced, False
        step: ControllerResult[None] = ControllerResult([], None)
        if want_shut_down and broker.in_controlled_shutdown:
            step = self.fence_broker(broker_id, broker_epoch)
            is_fenced = should_shut_down = True
        elif want_shut_down:
            step = self.begin_controlled_shutdown(broker_id, broker_epoch)
        elif want_fence != broker.fenced:
            change = self.fence_broker if want_fence else self.unfence_broker
            step, is_fenced = change(broker_id, broker_epoch), want_fence
        reply = brokers.HeartbeatReply(is_fenced, should_shut_down)
        return ControllerResult(step.records, reply, atomic=step.atomic)

    def unfence_broker(self, broker_id: int, broker_epoch: int) -> ControllerResult[None]:
        """The broker has caught up and may lead."""
        broker = self._broker(broker_id, broker_epoch)
        return ControllerResult(
            brokers.unfence(self.image, broker, self._min_insync_replicas), None, atomic=False
        )

    def begin_controlled_shutdown(
        self, broker_id: int, broker_epoch: int
    ) -> ControllerResult[None]:
        """The broker wants to stop: other members of the ISR become leaders of its partitions."""
        broker = self._broker(broker_id, broker_epoch)
        if broker.in_controlled_shutdown:
            return ControllerResult([], None)
        change = BrokerRegistrationChangeRecord(
            broker_id=broker_id, broker_epoch=broker_epoch, in_controlled_shutdown=brokers.SET
        )
        records = brokers.leave(self.image, broker, change, self._min_insync_replicas)
        return ControllerResult(records, None, atomic=False)

    def fence_broker(self, broker_id: int, broker_epoch: int) -> ControllerResult[None]:
        """The broker takes part no more: it has stopped, or its heartbeats are missing."""
        broker = self._broker(broker_id, broker_epoch)
        if broker.fenced:
            return ControllerResult([], None)
        change = BrokerRegistrationChangeRecord(
            broker_id=broker_id, broker_epoch=broker_epoch, fenced=brokers.SET
        )
        records = brokers.leave(self.image, broker, change, self._min_insync_replicas)
        return ControllerResult(records, None, atomic=False)

    def assign_directories(
        self, broker_id: int, broker_epoch: int, assignments: Sequence[directories.Assignment]
    ) -> ControllerResult[None]:
        """The broker says in which of its directories replicas are."""
        broker = self._broker(broker_id, broker_epoch)
        records = directories.assign(self.image, broker, assignments, self._min_insync_replicas)
        return ControllerResult(records, None, atomic=False)

    def directories_failed(
        self, broker_id: int, broker_epoch: int, failed: Sequence[Uuid]
    ) -> ControllerResult[None]:
        """The broker says that these of its directories are offline."""
        broker = self._broker(broker_id, broker_epoch)
        records = directories.directories_failed(
            self.image, broker, failed, self._min_insync_replicas
        )
        return ControllerResult(records, None, atomic=False)

    def _broker(self, broker_id: int, broker_epoch: int) -> BrokerRegistration:
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            raise KafkaError(
                ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {broker_id} is not registered."
            )
        if broker.epoch != broker_epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Expected epoch {broker.epoch} of broker {broker_id}, but got {broker_epoch}.",
            )
        return broker

    def _min_insync_replicas(self, topic: str) -> int:
        return min_insync_replicas(self._settings, self.image, topic)

    # Topics.

    def create_topics(
        self, request: CreateTopicsRequest, *, describable: frozenset[str] | None = None
    ) -> ControllerResult[CreateTopicsResponse]:
        """`create_topics_in_steps`, all at once."""
        return at_once(self.create_topics_in_steps(request, describable=describable))

    def create_topics_in_steps(
        self, request: CreateTopicsRequest, *, describable: frozenset[str] | None = None
    ) -> DecisionSteps[CreateTopicsResponse]:
        """CreateTopics. describable: the topics whose configs the caller may see; None for all.
        Raises KafkaError for too many records.
        """
        defaults = topics.TopicDefaults(
            partition_count=self._config.get_int("num.partitions"),
            replication_factor=self._config.get_int("default.replication.factor"),
        )
        creation = topics.TopicCreation(
            self.image, defaults=defaults, settings=self._settings, random=self._random
        )
        return _bounded((yield from creation.decide_in_steps(request, describable)))

    def delete_topics(
        self, request: DeleteTopicsRequest, *, api_version: int
    ) -> ControllerResult[DeleteTopicsResponse]:
        """DeleteTopics. Raises KafkaError where delete.topic.enable is off, and for too many
        records.
        """
        enabled = self._config.get_bool("delete.topic.enable")
        return _bounded(
            topics.delete_topics(self.image, request, enabled=enabled, api_version=api_version)
        )

    def ensure_topic(self, name: str) -> ControllerResult[ErrorCode]:
        """The topic with the broker's defaults, unless it is there."""
        return self._ensure(
            CreateTopicsRequest.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
        )

    def ensure_internal_topic(self, name: str) -> ControllerResult[ErrorCode]:
        """An internal topic as the broker's configuration wants it, unless it is there.

        If its replication factor is not configured, a cluster smaller than Kafka's default of 3
        gets as many replicas as it has brokers.
        """
        wanted = internal_topic(name, self._config)
        if wanted is None:
            return ControllerResult([], ErrorCode.INVALID_TOPIC_EXCEPTION)
        factor = wanted.replication_factor
        if wanted.bends:
            factor = max(1, min(factor, len(self.image.usable_brokers())))
        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=wanted.partition_count,
            replication_factor=factor,
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                for key, value in wanted.configs.items()
            ],
        )
        return self._ensure(topic)

    def _ensure(self, topic: CreateTopicsRequest.CreatableTopic) -> ControllerResult[ErrorCode]:
        if topic.name in self.image.topics:
            return ControllerResult([], ErrorCode.NONE)
        result = self.create_topics(CreateTopicsRequest(topics=[topic]), describable=frozenset())
        return ControllerResult(result.records, ErrorCode(result.response.topics[0].error_code))

    # Settings.

    def alter_configs(
        self,
        resources: Sequence[config_changes.AlteredResource],
        *,
        incremental: bool,
        validate_only: bool,
    ) -> ControllerResult[list[config_changes.Outcome]]:
        """AlterConfigs and IncrementalAlterConfigs of topics and groups. Raises KafkaError for too
        many records.
        """
        return _bounded(
            config_changes.alter_configs(
                self.image,
                self._config,
                resources,
                incremental=incremental,
                validate_only=validate_only,
            )
        )

    # Features.

    def update_features(
        self, request: UpdateFeaturesRequest, *, api_version: int, kraft_version: int
    ) -> ControllerResult[UpdateFeaturesResponse]:
        """UpdateFeatures; see `features`. Raises KafkaError."""
        records = feature_updates.update_features(
            self.image,
            request,
            node_id=self.node_id,
            kraft_version=kraft_version,
            min_insync=cluster_min_insync_record(self._settings),
        )
        response = feature_updates.updated(request, api_version)
        return ControllerResult(records, response)

    # Producer ids.

    def allocate_producer_ids(
        self, broker_id: int, broker_epoch: int
    ) -> ControllerResult[producer_ids.ProducerIdBlock]:
        """The next block of producer ids for a broker."""
        record, block = producer_ids.allocate(
            self.image, broker_id=broker_id, broker_epoch=broker_epoch
        )
        return ControllerResult([record], block)


__all__ = ["Controller", "ControllerConfig", "ControllerResult"]
