"""A broker's requests for the active controller: the port `BrokerChannel`; what clients ask of the
controller: the port `ControllerChannel`; and the implementation of both for a node that is its
whole cluster. On any other node `remote_controller_channel` has the broker's requests, and those of
clients are forwarded (`server/forwarding`). `node_requests`: what other nodes ask of a controller.

Every method returns a Deferred that fails with NOT_CONTROLLER when the controller loses leadership;
a refusal may also be raised at once. The controller answers when the records are committed, and
does not wait for any broker. A response whose client expects to meet the change on this broker
(topics, configs, features) additionally waits here until this broker has carried out the image that
contains it, and fails with BROKER_NOT_AVAILABLE if this broker stops first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from kbroker.broker.node_requests import LocalNodeRequests
from kbroker.controller.brokers.broker_heartbeat import HeartbeatReply
from kbroker.controller.configs.configs import AlterationOutcome, Alterations
from kbroker.controller.partitions.directories import Assignment
from kbroker.controller.producer_ids import ProducerIdBlock
from kbroker.controller.result import ChargePartitions, free_of_charge
from kbroker.controller.service import ControllerService
from kbroker.metadata.features import SUPPORTED_FEATURES
from kbroker.metadata.image import Endpoint, QuotaEntity
from kbroker.model import ClientIdentity, Uuid
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
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
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from kbroker.controller.configs.client_quotas import QuotaAlteration, QuotaOutcome
    from kbroker.protocol.messages.authentication import (
        AlterUserScramCredentialsRequest,
        AlterUserScramCredentialsResponse,
    )

R = TypeVar("R")

ALTERATIONS_PER_PART: Final = 64
"""Settings that a controller of this node decides on in one step, with a weight of one for their
resource.
"""


class BrokerRegistrationData(msgspec.Struct, frozen=True):
    """The registration of a broker (BrokerRegistrationRequest).

    endpoints: the advertised listeners with their real ports, by name. log_dirs: the ids of all
    directories that are online. previous_broker_epoch: from `.kafka_cleanshutdown`, -1 without; it
    distinguishes a clean restart from an unclean one.
    """

    incarnation_id: Uuid
    endpoints: Mapping[str, Endpoint]
    log_dirs: tuple[Uuid, ...]
    previous_broker_epoch: int = -1
    rack: str | None = None

    def request(self, *, broker_id: int, cluster_id: str) -> BrokerRegistrationRequest:
        """The registration of a broker of this release."""
        return BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id=cluster_id,
            incarnation_id=self.incarnation_id,
            listeners=[
                BrokerRegistrationRequest.Listener(
                    name=each.name,
                    host=each.host,
                    port=each.port,
                    security_protocol=each.security_protocol,
                )
                for each in self.endpoints.values()
            ],
            features=[
                BrokerRegistrationRequest.Feature(
                    name=name, min_supported_version=low, max_supported_version=high
                )
                for name, (low, high) in SUPPORTED_FEATURES.items()
            ],
            rack=self.rack,
            log_dirs=list(self.log_dirs),
            previous_broker_epoch=self.previous_broker_epoch,
        )


class AlterationLimits(msgspec.Struct, frozen=True):
    """The parts of a request that alters many settings (`alteration_parts`).

    settings: at most in one part, with a weight of one for each resource. size_bytes: at most in
    one part, on the wire; None if it goes over no wire. one_at_a_time: whether a part waits for the
    response to the previous one.
    """

    settings: int
    size_bytes: int | None = None
    one_at_a_time: bool = False


LOCAL_LIMITS: Final = AlterationLimits(ALTERATIONS_PER_PART)


class BrokerChannel(Protocol):
    """Requests of one broker for the active controller; see the module."""

    # The broker itself. Resolved when committed.

    def register_broker(self, registration: BrokerRegistrationData) -> Deferred[int]:
        """Register this broker, fenced; resolves with its broker epoch."""
        ...

    def heartbeat(
        self,
        broker_epoch: int,
        *,
        want_fence: bool,
        want_shut_down: bool,
        cordoned: Sequence[Uuid] | None = None,
    ) -> Deferred[HeartbeatReply]:
        """BrokerHeartbeat: unfences this broker unless want_fence; want_shut_down begins and
        completes a controlled shutdown. cordoned: the log directories that get no new partitions;
        None if there is nothing to say of them.
        """
        ...

    def assign_directories(
        self, broker_epoch: int, assignments: Sequence[Assignment]
    ) -> Deferred[list[ErrorCode]]:
        """AssignReplicasToDirs: in which of this broker's log directories replicas are; an error
        per assignment, in their order. Nothing is refused by a cluster that keeps no directories.
        """
        ...

    def directories_failed(self, broker_epoch: int, failed: Sequence[Uuid]) -> Deferred[None]:
        """The disks of these log directories of this broker failed."""
        ...

    def allocate_producer_ids(self, broker_epoch: int) -> Deferred[ProducerIdBlock]:
        """AllocateProducerIds: the next block of 1000 producer ids for this broker."""
        ...

    def alter_partition(self, request: AlterPartitionRequest) -> Deferred[AlterPartitionResponse]:
        """AlterPartition: the ISRs that this broker wants for partitions that it leads."""
        ...

    # Settings that it has checked.

    @property
    def alteration_limits(self) -> AlterationLimits:
        """The parts that `alter_configs` takes."""
        ...

    def alter_configs(
        self, request: Alterations, client: ClientIdentity
    ) -> Deferred[list[AlterationOutcome]]:
        """AlterConfigs and IncrementalAlterConfigs, in the name of a client; an outcome per
        resource, in their order. See `kbroker.controller.configs.configs`.
        """
        ...

    # Topics that it creates.

    def create_topics(
        self, request: CreateTopicsRequest, *, client: ClientIdentity | None = None
    ) -> Deferred[CreateTopicsResponse]:
        """CreateTopics. client: in whose name a broker creates them that is not the controller;
        None for its own.
        """
        ...

    def ensure_topic(self, name: str, client: ClientIdentity | None = None) -> Deferred[ErrorCode]:
        """Create a topic with the default settings unless it exists (the caller checks
        auto.create.topics.enable). Resolves with NONE also if the topic exists. client: see
        `create_topics`.
        """
        ...

    def ensure_internal_topic(self, name: str) -> Deferred[ErrorCode]:
        """Create `__consumer_offsets`, `__transaction_state` or `__share_group_state` as
        configured, unless it exists. Resolves with NONE once it is in the image, otherwise with the
        error of CreateTopics.
        """
        ...

    def request_internal_topic(self, name: str) -> Deferred[ErrorCode]:
        """Create an internal topic for a client that repeats its request until the topic exists.
        Resolves when the client is to be answered: as `ensure_internal_topic` if this node is its
        whole cluster, otherwise with NONE at once.
        """
        ...


class ControllerChannel(BrokerChannel, Protocol):
    """Also requests of clients. Resolved when committed and carried out by this broker."""

    def create_topics(
        self,
        request: CreateTopicsRequest,
        *,
        describable: frozenset[str] | None = None,
        client: ClientIdentity | None = None,
        charge: ChargePartitions = free_of_charge,
    ) -> Deferred[CreateTopicsResponse]:
        """CreateTopics; see `controller/partitions/topics`. charge: of the client's quota."""
        ...

    def delete_topics(
        self,
        request: DeleteTopicsRequest,
        *,
        api_version: int,
        charge: ChargePartitions = free_of_charge,
    ) -> Deferred[DeleteTopicsResponse]:
        """DeleteTopics by name or id."""
        ...

    def create_partitions(
        self, request: CreatePartitionsRequest, *, charge: ChargePartitions = free_of_charge
    ) -> Deferred[CreatePartitionsResponse]:
        """CreatePartitions. charge: see `create_topics`."""
        ...

    def elect_leaders(self, request: ElectLeadersRequest) -> Deferred[ElectLeadersResponse]:
        """ElectLeaders, preferred or unclean."""
        ...

    def alter_reassignments(
        self, request: AlterPartitionReassignmentsRequest
    ) -> Deferred[AlterPartitionReassignmentsResponse]:
        """AlterPartitionReassignments."""
        ...

    def list_reassignments(
        self, request: ListPartitionReassignmentsRequest
    ) -> Deferred[ListPartitionReassignmentsResponse]:
        """ListPartitionReassignments; changes nothing, so that this broker need not catch up."""
        ...

    def update_features(
        self, request: UpdateFeaturesRequest, *, api_version: int
    ) -> Deferred[UpdateFeaturesResponse]:
        """UpdateFeatures; see `kbroker.controller.configs.features`."""
        ...

    def alter_client_quotas(
        self, alterations: Sequence[QuotaAlteration], *, validate_only: bool
    ) -> Deferred[dict[QuotaEntity, QuotaOutcome]]:
        """AlterClientQuotas; see `kbroker.controller.configs.client_quotas`."""
        ...

    def alter_scram_credentials(
        self, request: AlterUserScramCredentialsRequest
    ) -> Deferred[AlterUserScramCredentialsResponse]:
        """AlterUserScramCredentials; see `kbroker.controller.configs.scram_credentials`."""
        ...


class LocalControllerChannel:
    """The channel of a broker whose node is the active controller.

    when_applied: resolves once this broker has carried out all images published so far; fails if
    the broker stops first.
    """

    __slots__ = ("_node_requests", "_service", "_when_applied")

    def __init__(
        self, service: ControllerService, *, when_applied: Callable[[], Deferred[None]]
    ) -> None:
        self._service = service
        self._node_requests = LocalNodeRequests(service)
        self._when_applied = when_applied

    def register_broker(self, registration: BrokerRegistrationData) -> Deferred[int]:
        """See ControllerChannel."""
        service = self._service
        request = registration.request(
            broker_id=service.node_id, cluster_id=service.committed_image.cluster_id
        )
        return service.register_broker(request, is_in_this_process=True)

    def heartbeat(
        self,
        broker_epoch: int,
        *,
        want_fence: bool,
        want_shut_down: bool,
        cordoned: Sequence[Uuid] | None = None,
    ) -> Deferred[HeartbeatReply]:
        """See ControllerChannel."""
        return self._service.heartbeat(
            BrokerHeartbeatRequest(
                broker_id=self._service.node_id,
                broker_epoch=broker_epoch,
                current_metadata_offset=self._service.committed_image.offset,
                want_fence=want_fence,
                want_shut_down=want_shut_down,
                cordoned_log_dirs=None if cordoned is None else list(cordoned),
            )
        )

    def assign_directories(
        self, broker_epoch: int, assignments: Sequence[Assignment]
    ) -> Deferred[list[ErrorCode]]:
        """See ControllerChannel."""
        return self._service.submit(
            lambda controller, now_ms: controller.assign_directories(
                self._service.node_id, broker_epoch, assignments
            )
        )

    def directories_failed(self, broker_epoch: int, failed: Sequence[Uuid]) -> Deferred[None]:
        """See ControllerChannel."""
        return self._service.submit(
            lambda controller, now_ms: controller.directories_failed(
                self._service.node_id, broker_epoch, failed
            )
        )

    def allocate_producer_ids(self, broker_epoch: int) -> Deferred[ProducerIdBlock]:
        """See ControllerChannel."""
        return self._node_requests.allocate_producer_ids(self._service.node_id, broker_epoch)

    def alter_partition(self, request: AlterPartitionRequest) -> Deferred[AlterPartitionResponse]:
        """See BrokerChannel."""
        return self._node_requests.alter_partition(request)

    def create_topics(
        self,
        request: CreateTopicsRequest,
        *,
        describable: frozenset[str] | None = None,
        client: ClientIdentity | None = None,
        charge: ChargePartitions = free_of_charge,
    ) -> Deferred[CreateTopicsResponse]:
        """See ControllerChannel."""
        del client  # this broker has authorised it
        return self._applied(
            self._service.submit(
                lambda controller, now_ms: controller.create_topics_in_steps(
                    request, describable=describable, charge=charge
                ),
                timeout_ms=request.timeout_ms,
            )
        )

    def delete_topics(
        self,
        request: DeleteTopicsRequest,
        *,
        api_version: int,
        charge: ChargePartitions = free_of_charge,
    ) -> Deferred[DeleteTopicsResponse]:
        """See ControllerChannel."""
        return self._applied(
            self._service.submit(
                lambda controller, now_ms: controller.delete_topics(
                    request, api_version=api_version, charge=charge
                ),
                timeout_ms=request.timeout_ms,
            )
        )

    def create_partitions(
        self, request: CreatePartitionsRequest, *, charge: ChargePartitions = free_of_charge
    ) -> Deferred[CreatePartitionsResponse]:
        """See ControllerChannel."""
        return self._applied(
            self._service.submit(
                lambda controller, now_ms: controller.create_partitions(request, charge=charge),
                timeout_ms=request.timeout_ms,
            )
        )

    def elect_leaders(self, request: ElectLeadersRequest) -> Deferred[ElectLeadersResponse]:
        """See ControllerChannel."""
        return self._applied(
            self._service.submit(
                lambda controller, now_ms: controller.elect_leaders(request),
                timeout_ms=request.timeout_ms,
            )
        )

    def alter_reassignments(
        self, request: AlterPartitionReassignmentsRequest
    ) -> Deferred[AlterPartitionReassignmentsResponse]:
        """See ControllerChannel."""
        return self._applied(
            self._service.submit(
                lambda controller, now_ms: controller.alter_reassignments(request),
                timeout_ms=request.timeout_ms,
            )
        )

    def list_reassignments(
        self, request: ListPartitionReassignmentsRequest
    ) -> Deferred[ListPartitionReassignmentsResponse]:
        """See ControllerChannel."""
        return self._service.submit(
            lambda controller, now_ms: controller.list_reassignments(request)
        )

    def ensure_topic(self, name: str, client: ClientIdentity | None = None) -> Deferred[ErrorCode]:
        """See ControllerChannel."""
        del client
        return self._applied(
            self._service.submit(lambda controller, now_ms: controller.ensure_topic(name))
        )

    def ensure_internal_topic(self, name: str) -> Deferred[ErrorCode]:
        """See ControllerChannel."""
        return self._applied(
            self._service.submit(lambda controller, now_ms: controller.ensure_internal_topic(name))
        )

    def request_internal_topic(self, name: str) -> Deferred[ErrorCode]:
        """See BrokerChannel."""
        return self.ensure_internal_topic(name)

    @property
    def alteration_limits(self) -> AlterationLimits:
        """See BrokerChannel. Parts are not waited for, so that one write is for all of them."""
        return LOCAL_LIMITS

    def alter_configs(
        self, request: Alterations, client: ClientIdentity
    ) -> Deferred[list[AlterationOutcome]]:
        """See BrokerChannel."""
        del client  # this node has authorised it
        return self._applied(
            self._service.submit(lambda controller, now_ms: controller.alter_configs(request))
        )

    def update_features(
        self, request: UpdateFeaturesRequest, *, api_version: int
    ) -> Deferred[UpdateFeaturesResponse]:
        """See ControllerChannel."""
        return self._applied(self._service.update_features(request, api_version=api_version))

    def alter_client_quotas(
        self, alterations: Sequence[QuotaAlteration], *, validate_only: bool
    ) -> Deferred[dict[QuotaEntity, QuotaOutcome]]:
        """See ControllerChannel."""
        return self._applied(
            self._service.submit(
                lambda controller, now_ms: controller.alter_client_quotas(
                    alterations, validate_only=validate_only
                )
            )
        )

    def alter_scram_credentials(
        self, request: AlterUserScramCredentialsRequest
    ) -> Deferred[AlterUserScramCredentialsResponse]:
        """See ControllerChannel."""
        return self._applied(
            self._service.submit(
                lambda controller, now_ms: controller.alter_scram_credentials(request)
            )
        )

    def _applied(self, answer: Deferred[R]) -> Deferred[R]:
        """The controller's response, once this broker has carried out what it changes here."""
        return answer.then(self._after_hosting)

    def _after_hosting(self, response: R) -> Deferred[R]:
        return self._when_applied().then(lambda _: response)
