"""What brokers and controllers ask of the active controller over the wire, and administrators of
its brokers: the port `NodeRequests`, and its implementation by the controller of this node.
`remote_controller_channel` sends most of these requests.

Every method returns a Deferred that resolves once the records are committed, and waits for no
broker. It fails with NOT_CONTROLLER if the controller loses leadership; a refusal, so also that of
a controller that is not the active one, may be raised at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kbroker.controller.service import ControllerService
from kbroker.ports import Deferred

if TYPE_CHECKING:
    from kbroker.controller.brokers.broker_heartbeat import HeartbeatReply
    from kbroker.controller.producer_ids import ProducerIdBlock
    from kbroker.protocol.messages.cluster import (
        AlterPartitionRequest,
        AlterPartitionResponse,
        AssignReplicasToDirsRequest,
        AssignReplicasToDirsResponse,
        BrokerHeartbeatRequest,
        BrokerRegistrationRequest,
        ControllerRegistrationRequest,
    )


class NodeRequests(Protocol):
    """See the module."""

    def register_broker(self, request: BrokerRegistrationRequest) -> Deferred[int]:
        """BrokerRegistration; resolves with the broker epoch."""
        ...

    def heartbeat(self, request: BrokerHeartbeatRequest) -> Deferred[HeartbeatReply]:
        """BrokerHeartbeat, which renews the broker's session on arrival."""
        ...

    def unregister_broker(self, broker_id: int) -> Deferred[None]:
        """UnregisterBroker: the broker leaves its ISRs and the cluster."""
        ...

    def alter_partition(self, request: AlterPartitionRequest) -> Deferred[AlterPartitionResponse]:
        """AlterPartition: the ISRs that a leader wants."""
        ...

    def assign_replicas_to_directories(
        self, request: AssignReplicasToDirsRequest
    ) -> Deferred[AssignReplicasToDirsResponse]:
        """AssignReplicasToDirs: in which of a broker's log directories its replicas are."""
        ...

    def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> Deferred[ProducerIdBlock]:
        """AllocateProducerIds: the next block of producer ids for a broker."""
        ...

    def register_controller(self, request: ControllerRegistrationRequest) -> Deferred[None]:
        """ControllerRegistration."""
        ...


class LocalNodeRequests:
    """See `NodeRequests`. service: the controller of this node, active or not."""

    __slots__ = ("_service",)

    def __init__(self, service: ControllerService) -> None:
        self._service = service

    def register_broker(self, request: BrokerRegistrationRequest) -> Deferred[int]:
        """See `NodeRequests`."""
        return self._service.register_broker(request)

    def heartbeat(self, request: BrokerHeartbeatRequest) -> Deferred[HeartbeatReply]:
        """See `NodeRequests`."""
        return self._service.heartbeat(request)

    def unregister_broker(self, broker_id: int) -> Deferred[None]:
        """See `NodeRequests`."""
        return self._service.submit(
            lambda controller, now_ms: controller.unregister_broker(broker_id)
        )

    def alter_partition(self, request: AlterPartitionRequest) -> Deferred[AlterPartitionResponse]:
        """See `NodeRequests`."""
        return self._service.submit(lambda controller, now_ms: controller.alter_partition(request))

    def assign_replicas_to_directories(
        self, request: AssignReplicasToDirsRequest
    ) -> Deferred[AssignReplicasToDirsResponse]:
        """See `NodeRequests`."""
        return self._service.submit(
            lambda controller, now_ms: controller.assign_replicas_to_directories(request)
        )

    def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> Deferred[ProducerIdBlock]:
        """See `NodeRequests`."""
        return self._service.submit(
            lambda controller, now_ms: controller.allocate_producer_ids(broker_id, broker_epoch)
        )

    def register_controller(self, request: ControllerRegistrationRequest) -> Deferred[None]:
        """See `NodeRequests`."""
        return self._service.submit(
            lambda controller, now_ms: controller.register_controller(request)
        )
