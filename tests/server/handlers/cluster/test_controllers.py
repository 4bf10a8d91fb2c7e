"""DescribeCluster and ControllerRegistration as the controllers answer them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.metadata.image import ControllerRegistration, Endpoint, MetadataImage
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from kbroker.protocol.messages.metadata import DescribeClusterRequest
from kbroker.server.handlers.cluster.controllers import (
    describe_controllers,
    register_controller,
    register_controller_error,
)
from kbroker.server.requests import RequestContext
from kbroker.server.services import ControllerServices
from kbroker.server.session import Session


def controller(number: int, *listeners: str) -> ControllerRegistration:
    endpoints = {name: Endpoint(name, f"{name}-{number}", 9093) for name in listeners}
    return ControllerRegistration(number, bytes(16), endpoints)


def services(*controllers: ControllerRegistration, leader: int = -1, level: int = 30) -> Any:
    image = MetadataImage(
        cluster_id="cluster",
        features={"metadata.version": level},
        controllers={each.id: each for each in controllers},
    )
    return cast(
        ControllerServices,
        SimpleNamespace(image=image, cluster_id="cluster", leader_id=lambda: leader),
    )


def context(version: int = 2) -> RequestContext:
    return RequestContext(ApiKey.DESCRIBE_CLUSTER, version, session=Session(listener_name="INSIDE"))


@pytest.mark.parametrize(("leader", "told"), [(3, 3), (2, -1), (9, -1), (-1, -1)])
def test_the_controllers_of_the_listener(leader: int, told: int) -> None:
    """The leader is named only if the client learns where it is."""
    of = services(
        controller(3, "INSIDE", "OTHER"),
        controller(2, "OTHER"),
        controller(1, "INSIDE"),
        leader=leader,
    )
    request = DescribeClusterRequest(endpoint_type=2, include_cluster_authorized_operations=True)
    response = describe_controllers(of, context(), request)
    assert (response.cluster_id, response.controller_id, response.endpoint_type) == (
        "cluster",
        told,
        2,
    )
    assert [(each.broker_id, each.host, each.port) for each in response.brokers] == [
        (1, "INSIDE-1", 9093),
        (3, "INSIDE-3", 9093),
    ]
    assert response.cluster_authorized_operations > 0


@pytest.mark.parametrize(
    ("endpoint_type", "version", "level", "code"),
    [
        (1, 1, 30, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (1, 0, 30, ErrorCode.INVALID_REQUEST),
        (9, 2, 30, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        (2, 2, 14, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_refused(endpoint_type: int, version: int, level: int, code: ErrorCode) -> None:
    request = DescribeClusterRequest(endpoint_type=endpoint_type)
    with pytest.raises(KafkaError) as caught:
        describe_controllers(services(level=level), context(version), request)
    assert caught.value.code is code


def test_a_registration_is_answered_once_it_is_committed() -> None:
    committed: Deferred[None] = Deferred()
    of = cast(
        ControllerServices,
        SimpleNamespace(
            node_requests=SimpleNamespace(register_controller=lambda request: committed)
        ),
    )
    answer = register_controller(of, context(0), ControllerRegistrationRequest())
    assert isinstance(answer, Deferred) and not answer.done
    committed.resolve(None)
    assert answer.value == ControllerRegistrationResponse()


def test_the_error_of_a_registration() -> None:
    response = register_controller_error(
        ControllerRegistrationRequest(), ErrorCode.NOT_CONTROLLER, "why"
    )
    assert (response.error_code, response.error_message) == (ErrorCode.NOT_CONTROLLER, "why")
