"""What other nodes ask of a controller: each request reaches its decision, and is answered when it
is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.broker.controller_channel import BrokerRegistrationData
from kbroker.broker.node_requests import LocalNodeRequests
from kbroker.controller.registration import registration_request
from kbroker.metadata.image import Endpoint
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import (
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
)
from tests.controller.held_log import REGISTRATION, Node


def controller_registration(number: int) -> ControllerRegistrationRequest:
    endpoints = [Endpoint("CONTROLLER", "localhost", 9093)]
    return registration_request(number, incarnation_id=bytes(16), endpoints=endpoints)


def broker_registration(number: int) -> BrokerRegistrationRequest:
    data = BrokerRegistrationData(
        incarnation_id=bytes(16),
        endpoints=REGISTRATION.endpoints,
        log_dirs=(bytes([number]) * 16,),
    )
    return data.request(broker_id=number, cluster_id="cluster")


def test_a_broker_registers_works_and_leaves() -> None:
    node = Node()
    requests = LocalNodeRequests(node.service)
    registered = requests.register_broker(broker_registration(3))
    assert not registered.done
    node.commit()
    epoch = registered.value
    assert node.loader.image.brokers[3].epoch == epoch
    offset = node.loader.image.offset
    beat = requests.heartbeat(
        BrokerHeartbeatRequest(
            broker_id=3, broker_epoch=epoch, current_metadata_offset=offset, want_fence=False
        )
    )
    block = requests.allocate_producer_ids(3, epoch)
    assert not block.done
    node.commit()
    assert not beat.value.is_fenced
    assert (block.value.first_id, block.value.count) == (0, 1000)
    altered = requests.alter_partition(AlterPartitionRequest(broker_id=3, broker_epoch=epoch))
    assigned = requests.assign_replicas_to_directories(
        AssignReplicasToDirsRequest(broker_id=3, broker_epoch=epoch)
    )
    assert altered.value.topics == [] and assigned.value.directories == []
    left = requests.unregister_broker(3)
    assert not left.done
    node.commit()
    assert 3 not in node.loader.image.brokers
    assert left.done


def test_a_controller_registers() -> None:
    node = Node()
    registered = LocalNodeRequests(node.service).register_controller(controller_registration(2))
    assert not registered.done
    node.commit()
    assert 2 in node.loader.image.controllers
    assert registered.done


EACH: list[Callable[[LocalNodeRequests], Deferred[Any]]] = [
    lambda requests: requests.register_broker(broker_registration(3)),
    lambda requests: requests.heartbeat(BrokerHeartbeatRequest(broker_id=3)),
    lambda requests: requests.unregister_broker(3),
    lambda requests: requests.alter_partition(AlterPartitionRequest(broker_id=3)),
    lambda requests: requests.assign_replicas_to_directories(AssignReplicasToDirsRequest()),
    lambda requests: requests.allocate_producer_ids(3, 1),
    lambda requests: requests.register_controller(controller_registration(2)),
]


@pytest.mark.parametrize("ask", EACH)
def test_a_standby_controller_refuses(ask: Callable[[LocalNodeRequests], Deferred[Any]]) -> None:
    with pytest.raises(KafkaError) as refused:
        ask(LocalNodeRequests(Node(is_active=False).service))
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
