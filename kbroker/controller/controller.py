"""The controller's decisions: a request gives (records, response) and changes nothing; `replay`
alone changes state.

State is one immutable image, the *proposed* one: every record handed out so far is in it, committed
or not. Each noun has its own module (`topics`, `brokers`, `configs`, `features`, `directories`,
`producer_ids`); appending and answering is in `service`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from kbroker.controller import controllers, producer_ids
from kbroker.controller.brokers import brokers
from kbroker.controller.brokers.broker_heartbeat import (
    HeartbeatReply,
    broker_heartbeat,
    fence_stale_broker,
)
from kbroker.controller.brokers.broker_registration import register_broker
from kbroker.controller.brokers.broker_sessions import BrokerSessions
from kbroker.controller.brokers.heartbeats import BrokerHeartbeats
from kbroker.controller.configs import configs as config_changes
from kbroker.controller.configs import features as feature_updates
from kbroker.controller.partitions import (
    directories,
    elections,
    reassignments,
    topics,
)
from kbroker.controller.partitions.alter_partition import alter_partition
from kbroker.controller.partitions.create_partitions import create_partitions
from kbroker.controller.partitions.decision_context import DecisionContext
from kbroker.controller.partitions.partition_change import DIRECTORY_ASSIGNMENT_LEVEL
from kbroker.controller.partitions.partition_index import PartitionIndex
from kbroker.controller.policies import NO_POLICIES, Policies
from kbroker.controller.result import (
    ChargePartitions,
    ControllerResult,
    DecisionSteps,
    check_record_count,
    free_of_charge,
)
from kbroker.metadata.configs import StaticConfig, TopicSettings
from kbroker.metadata.delta import MetadataDelta
from kbroker.metadata.image import (
    ELIGIBLE_LEADER_REPLICAS,
    MetadataImage,
    QuotaEntity,
)
from kbroker.metadata.internal_topics import IntConfig, internal_topic
from kbroker.model import Uuid
from kbroker.ports import at_once
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kbroker.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kbroker.protocol.messages.stored.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
)
from kbroker.settings.sections.quorum import QuorumVoter

if TYPE_CHECKING:
    from kbroker.controller.configs.client_quotas import QuotaAlteration, QuotaOutcome
    from kbroker.protocol.messages.authentication import (
        AlterUserScramCredentialsRequest,
        AlterUserScramCredentialsResponse,
    )

RECORDS_PER_STEP: Final = 128
"""Records that are replayed, or encoded, in one step: about half a millisecond of work."""

R = TypeVar("R")


def _bounded(result: ControllerResult[R]) -> ControllerResult[R]:
    """Kafka's bound of what one request of a client may write."""
    check_record_count(len(result.records))
    return result


class ControllerConfig(StaticConfig, IntConfig, Protocol):
    """The part of BrokerConfig that the controller reads."""

    @property
    def voters(self) -> Sequence[QuorumVoter]: ...
    def get_bool(self, name: str) -> bool: ...


class Controller:
    """See the module. next_offset: the offset the next record will get; the service sets it before
    a decision.
    """

    __slots__ = (
        "_config",
        "_heartbeats",
        "_image",
        "_is_replaying",
        "_partitions",
        "_policies",
        "_random",
        "_settings",
        "next_offset",
        "node_id",
    )

    def __init__(
        self,
        config: ControllerConfig,
        *,
        random: Random,
        node_id: int,
        policies: Policies = NO_POLICIES,
    ) -> None:
        self._config = config
        self._policies = policies
        self._random = random
        self._settings = TopicSettings(config, node_id)
        self.node_id = node_id
        self.next_offset = 0
        self.start_from(MetadataImage())

    @property
    def image(self) -> MetadataImage:
        """The newest image: every record handed out is in it."""
        return self._image

    def start_from(self, image: MetadataImage) -> None:
        """Decide on this image from now on, that of the committed records."""
        self._image = image
        self._is_replaying = False
        self._partitions = PartitionIndex(image)
        self._heartbeats = BrokerHeartbeats()
        self._heartbeats.follow({}, image.brokers, offset=image.offset)

    def adopt(self, image: MetadataImage) -> None:
        """Use this image, which equals the present one, in its place. No effect during a replay in
        steps, whose result rests on the present one.
        """
        if not self._is_replaying:
            self._image = image
            self._partitions.adopt(image)

    def replay(self, records: Sequence[Message], *, offset: int, epoch: int) -> MetadataImage:
        """Take records in, the last of which stands at `offset`. Returns the new image, which is
        also `image`.
        """
        deque(self.replay_in_steps(records, offset=offset, epoch=epoch), maxlen=0)
        return self.image

    def replay_in_steps(
        self, records: Sequence[Message], *, offset: int, epoch: int
    ) -> Iterator[None]:
        """As `replay`, some records in each step; the last step changes `image`. If the steps are
        not taken to their end, the state is that of `start_from` only.
        """
        self._is_replaying = True
        delta = MetadataDelta(self._image)
        for count, record in enumerate(records):
            if count and count % RECORDS_PER_STEP == 0:
                yield
            delta.replay(record)
        image = delta.apply(offset=offset, epoch=epoch)
        yield from self._partitions.follow(image)
        self._heartbeats.follow(self._image.brokers, image.brokers, offset=offset)
        self._image = image
        self._is_replaying = False

    def _context(self) -> DecisionContext:
        return DecisionContext(self._image, self._partitions, self._settings)

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
        extra = [feature_updates.cluster_min_insync_record(self._settings)] if elr else []
        begin = BeginTransactionRecord(name="Bootstrap records")
        return ControllerResult([begin, *records, *extra, EndTransactionRecord()], None)

    def abort_transaction(self) -> AbortTransactionRecord:
        """The record with which a new leader ends a transaction that its predecessor left open."""
        return AbortTransactionRecord(reason="Controller failover")

    def register_controller(self, request: ControllerRegistrationRequest) -> ControllerResult[None]:
        """ControllerRegistration. Raises KafkaError."""
        return controllers.register_controller(self._image, request)

    def idle_record(self) -> ControllerResult[bool]:
        """The NoOpRecord of an idle log, by which other nodes see how far behind they are. A node
        that is its whole cluster writes none.
        """
        nodes = {*self._image.brokers, *self._image.controllers} - {self.node_id}
        return ControllerResult([NoOpRecord()] if nodes else [], False)

    # Brokers.

    def register_broker(
        self, request: BrokerRegistrationRequest, *, kraft_version: int, has_valid_session: bool
    ) -> DecisionSteps[int]:
        """BrokerRegistration; the response is the broker epoch. The broker stays fenced until a
        heartbeat asks for more. has_valid_session: of the incarnation that is registered. Raises
        KafkaError.
        """
        return register_broker(
            self._context(),
            request,
            next_offset=lambda: self.next_offset,
            kraft_version=kraft_version,
            has_valid_session=has_valid_session,
        )

    def broker_heartbeat(self, request: BrokerHeartbeatRequest) -> DecisionSteps[HeartbeatReply]:
        """BrokerHeartbeat: unfence the broker, fence it, or shut it down in a controlled way.

        Raises KafkaError(STALE_BROKER_EPOCH).
        """
        return broker_heartbeat(
            self._context(), self._heartbeats, request, next_offset=lambda: self.next_offset
        )

    def fence_stale_broker(self, sessions: BrokerSessions, now_ms: int) -> DecisionSteps[bool]:
        """Fence one broker whose session has expired; whether there may be more. now_ms: on the
        clock of the sessions.
        """
        return fence_stale_broker(self._context(), sessions, now_ms)

    def unregister_broker(self, broker_id: int) -> DecisionSteps[None]:
        """UnregisterBroker. Raises KafkaError, also for too many records."""
        records = yield from brokers.unregister(self._context(), broker_id)
        return _bounded(ControllerResult(records, None, atomic=False))

    def assign_replicas_to_directories(
        self, request: AssignReplicasToDirsRequest
    ) -> DecisionSteps[AssignReplicasToDirsResponse]:
        """AssignReplicasToDirs. Raises KafkaError."""
        if self.image.metadata_version < DIRECTORY_ASSIGNMENT_LEVEL:
            message = "Directory assignment is not supported yet."
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)
        context = self._context()
        broker = context.registered(request.broker_id, request.broker_epoch)
        assignments = directories.requested_assignments(request)
        result = yield from directories.assign(context, broker, assignments, found_may_lead=True)
        response = yield from directories.assignment_response(request, result.response)
        return ControllerResult(result.records, response, atomic=False)

    def assign_directories(
        self, broker_id: int, broker_epoch: int, assignments: Sequence[directories.Assignment]
    ) -> DecisionSteps[list[ErrorCode]]:
        """The broker says in which of its directories replicas are; an error per assignment."""
        context = self._context()
        broker = context.registered(broker_id, broker_epoch)
        if self.image.metadata_version < DIRECTORY_ASSIGNMENT_LEVEL:
            return ControllerResult([], [ErrorCode.NONE] * len(assignments))
        return (yield from directories.assign(context, broker, assignments, found_may_lead=True))

    def directories_failed(
        self, broker_id: int, broker_epoch: int, failed: Sequence[Uuid]
    ) -> DecisionSteps[None]:
        """The broker says that these of its directories are offline."""
        context = self._context()
        broker = context.registered(broker_id, broker_epoch)
        records = yield from directories.directories_failed(context, broker, failed)
        return ControllerResult(records, None, atomic=False)

    # Topics.

    def create_topics(
        self, request: CreateTopicsRequest, *, describable: frozenset[str] | None = None
    ) -> ControllerResult[CreateTopicsResponse]:
        """`create_topics_in_steps`, all at once."""
        return at_once(self.create_topics_in_steps(request, describable=describable))

    def create_topics_in_steps(
        self,
        request: CreateTopicsRequest,
        *,
        describable: frozenset[str] | None = None,
        charge: ChargePartitions = free_of_charge,
    ) -> DecisionSteps[CreateTopicsResponse]:
        """CreateTopics. describable: the topics whose configs the caller may see; None for all.
        Raises KafkaError for too many records.
        """
        defaults = topics.TopicDefaults(
            partition_count=self._config.get_int("num.partitions"),
            replication_factor=self._config.get_int("default.replication.factor"),
        )
        creation = topics.TopicCreation(
            self.image,
            defaults=defaults,
            settings=self._settings,
            random=self._random,
            charge=charge,
            policy=self._policies.create_topic,
        )
        return _bounded((yield from creation.decide_in_steps(request, describable)))

    def delete_topics(
        self,
        request: DeleteTopicsRequest,
        *,
        api_version: int,
        charge: ChargePartitions = free_of_charge,
    ) -> ControllerResult[DeleteTopicsResponse]:
        """DeleteTopics. Raises KafkaError where delete.topic.enable is off, and for too many
        records.
        """
        enabled = self._config.get_bool("delete.topic.enable")
        return _bounded(
            topics.delete_topics(
                self.image, request, enabled=enabled, api_version=api_version, charge=charge
            )
        )

    def ensure_topic(self, name: str) -> ControllerResult[ErrorCode]:
        """The topic with the broker's defaults, unless it is there."""
        return self._ensure(
            CreateTopicsRequest.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
        )

    def ensure_internal_topic(self, name: str) -> ControllerResult[ErrorCode]:
        """An internal topic as the broker's configuration wants it, unless it is there. As in
        Kafka it waits until there are as many brokers as its replication factor.
        """
        wanted = internal_topic(name, self._config)
        if wanted is None:
            return ControllerResult([], ErrorCode.INVALID_TOPIC_EXCEPTION)
        return self._ensure(wanted.creation())

    def _ensure(self, topic: CreateTopicsRequest.CreatableTopic) -> ControllerResult[ErrorCode]:
        if topic.name in self.image.topics:
            return ControllerResult([], ErrorCode.NONE)
        result = self.create_topics(CreateTopicsRequest(topics=[topic]), describable=frozenset())
        return ControllerResult(result.records, ErrorCode(result.response.topics[0].error_code))

    def create_partitions(
        self, request: CreatePartitionsRequest, *, charge: ChargePartitions = free_of_charge
    ) -> DecisionSteps[CreatePartitionsResponse]:
        """CreatePartitions. Raises KafkaError for too many records, before any is made."""
        return create_partitions(self._image, request, random=self._random, charge=charge)

    # Leaders and replicas.

    def alter_partition(
        self, request: AlterPartitionRequest
    ) -> DecisionSteps[AlterPartitionResponse]:
        """AlterPartition. Raises KafkaError(STALE_BROKER_EPOCH)."""
        return alter_partition(self._context(), request)

    def elect_leaders(self, request: ElectLeadersRequest) -> DecisionSteps[ElectLeadersResponse]:
        """ElectLeaders. Raises KafkaError, also for too many records."""
        return elections.elect_leaders(self._context(), request)

    def balance_leaders(
        self, *, max_elections: int = elections.MAX_ELECTIONS
    ) -> DecisionSteps[bool]:
        """The periodic election of preferred leaders; whether another one is due at once."""
        return elections.balance_leaders(self._context(), max_elections=max_elections)

    def elect_unclean_leaders(
        self, *, max_elections: int = elections.MAX_ELECTIONS
    ) -> DecisionSteps[bool]:
        """The periodic unclean election; whether another one is due at once."""
        return elections.elect_unclean_leaders(self._context(), max_elections=max_elections)

    def alter_reassignments(
        self, request: AlterPartitionReassignmentsRequest
    ) -> DecisionSteps[AlterPartitionReassignmentsResponse]:
        """AlterPartitionReassignments. Raises KafkaError for too many records."""
        return reassignments.alter_reassignments(self._context(), request)

    def list_reassignments(
        self, request: ListPartitionReassignmentsRequest
    ) -> DecisionSteps[ListPartitionReassignmentsResponse]:
        """ListPartitionReassignments."""
        return reassignments.list_reassignments(self._context(), request)

    # Settings.

    def alter_configs(
        self, request: config_changes.Alterations
    ) -> DecisionSteps[list[config_changes.AlterationOutcome]]:
        """AlterConfigs and IncrementalAlterConfigs. Raises KafkaError for too many records."""
        context = config_changes.ConfigContext(
            self.image, self._config, self._policies.alter_config
        )
        return _bounded((yield from config_changes.alter_configs(context, request)))

    # Quotas and credentials.

    def alter_client_quotas(
        self, alterations: Sequence[QuotaAlteration], *, validate_only: bool
    ) -> DecisionSteps[dict[QuotaEntity, QuotaOutcome]]:
        """AlterClientQuotas. Raises KafkaError for too many records."""
        # Not above: few clusters have quotas.
        from kbroker.controller.configs.client_quotas import alter_client_quotas

        return _bounded(
            (yield from alter_client_quotas(self.image, alterations, validate_only=validate_only))
        )

    def alter_scram_credentials(
        self, request: AlterUserScramCredentialsRequest
    ) -> DecisionSteps[AlterUserScramCredentialsResponse]:
        """AlterUserScramCredentials. Raises KafkaError for too many records."""
        # Not above: the messages of authentication are 0.1 MB, which most brokers never need.
        from kbroker.controller.configs.scram_credentials import alter_scram_credentials

        return _bounded((yield from alter_scram_credentials(self.image, request)))

    # Features.

    def update_features(
        self,
        request: UpdateFeaturesRequest,
        *,
        api_version: int,
        quorum: feature_updates.KRaftVersions,
    ) -> ControllerResult[UpdateFeaturesResponse]:
        """UpdateFeatures; see `features`. Raises KafkaError."""
        voters = [voter.id for voter in self._config.voters]
        return feature_updates.update_features(
            feature_updates.FeatureSupport(self.image, self.node_id, voters, quorum),
            request,
            api_version=api_version,
            min_insync=feature_updates.cluster_min_insync_record(self._settings),
        )

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
