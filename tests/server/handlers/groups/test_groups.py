"""The group APIs through their handlers: every version, encoded and decoded, errors in shape."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.ports import Deferred
from kbroker.protocol.acl_operations import AclResource, authorized_operations
from kbroker.protocol.apis import ApiKey, request_class, response_class
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from kbroker.replication.time_slices import FairSlices
from kbroker.server.handlers.groups.groups import HANDLERS
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.requests import RequestContext
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.simulation import World

HANDLER_OF = {handler.api_key: handler for handler in HANDLERS}
VERSIONS = [
    (handler.api_key, version)
    for handler in HANDLERS
    for version in range(handler.min_version, handler.max_version + 1)
]


def services_of(world: World) -> Any:
    """All that the handlers of groups need."""
    return SimpleNamespace(
        groups=world.coordinator,
        config=BrokerConfig.from_properties({}, source="test"),
        memory=MemoryPool(),
        slices=FairSlices(world.timers),
    )


def call(world: World, api_key: ApiKey, version: int, request: Any) -> Any:
    """Send request over the wire in that version, as far as it has its fields; what comes back."""
    asked, _ = decode(request_class(api_key), encode(request, version), version)
    services = services_of(world)
    context = RequestContext(api_key, version, client_id="c")
    outcome = HANDLER_OF[api_key].handle(services, context, asked)
    if isinstance(outcome, Deferred):
        world.timers.advance(0)
        outcome = outcome.value
    assert outcome is not None
    response, _ = decode(response_class(api_key), encode(outcome, version), version)
    return response


@pytest.fixture
def world() -> World:
    return World(config=GroupCoordinatorConfig(group_initial_rebalance_delay_ms=0))


def join_request(member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"me")],
    )


def join(world: World, version: int = 9) -> Any:
    response = call(world, ApiKey.JOIN_GROUP, version, join_request())
    if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        response = call(world, ApiKey.JOIN_GROUP, version, join_request(response.member_id))
    return response


def sync(world: World, joined: Any, version: int = 5) -> Any:
    request = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=joined.member_id, assignment=b"yours"
            )
        ],
    )
    return call(world, ApiKey.SYNC_GROUP, version, request)


def test_served_versions_are_kafkas() -> None:
    served = {h.api_key.name: (h.min_version, h.max_version) for h in HANDLERS}
    assert served == {
        "JOIN_GROUP": (0, 9),
        "SYNC_GROUP": (0, 5),
        "HEARTBEAT": (0, 4),
        "LEAVE_GROUP": (0, 5),
        "LIST_GROUPS": (0, 5),
        "DESCRIBE_GROUPS": (0, 6),
    }


@pytest.mark.parametrize("version", range(10))
def test_join(world: World, version: int) -> None:
    response = join(world, version)
    assert (response.error_code, response.generation_id) == (ErrorCode.NONE, 1)
    assert response.leader == response.member_id
    assert response.member_id.startswith("c-")
    assert response.protocol_name == "range"
    assert response.protocol_type == ("consumer" if version >= 7 else None)
    assert [bytes(member.metadata) for member in response.members] == [b"me"]


@pytest.mark.parametrize("version", range(6))
def test_sync(world: World, version: int) -> None:
    response = sync(world, join(world), version)
    assert response.error_code == ErrorCode.NONE
    assert bytes(response.assignment) == b"yours"
    assert response.protocol_name == ("range" if version >= 5 else None)


@pytest.mark.parametrize("version", range(5))
def test_heartbeat(world: World, version: int) -> None:
    joined = join(world)
    sync(world, joined)
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    assert call(world, ApiKey.HEARTBEAT, version, request).error_code == ErrorCode.NONE
    request.member_id = "x"
    response = call(world, ApiKey.HEARTBEAT, version, request)
    assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("known", [True, False])
def test_leave(world: World, version: int, known: bool) -> None:
    member_id = join(world).member_id if known else "x"
    request = LeaveGroupRequest(group_id="g", member_id=member_id)
    if version >= 3:
        identity = LeaveGroupRequest.MemberIdentity(member_id=member_id)
        request = LeaveGroupRequest(group_id="g", members=[identity])
    response = call(world, ApiKey.LEAVE_GROUP, version, request)
    error = ErrorCode.NONE if known else ErrorCode.UNKNOWN_MEMBER_ID
    if version >= 3:
        assert response.error_code == ErrorCode.NONE
        assert [(m.member_id, m.error_code) for m in response.members] == [(member_id, error)]
    else:
        assert response.error_code == error


@pytest.mark.parametrize("version", range(6))
def test_list(world: World, version: int) -> None:
    sync(world, join(world))
    request = ListGroupsRequest(states_filter=["Stable"] if version >= 4 else [])
    (group,) = call(world, ApiKey.LIST_GROUPS, version, request).groups
    assert (group.group_id, group.protocol_type) == ("g", "consumer")
    assert group.group_state == ("Stable" if version >= 4 else "")
    assert group.group_type == ("classic" if version >= 5 else "")


@pytest.mark.parametrize("version", range(7))
def test_describe(world: World, version: int) -> None:
    sync(world, join(world))
    request = DescribeGroupsRequest(
        groups=["nothing", "g"], include_authorized_operations=version >= 3
    )
    missing, found = call(world, ApiKey.DESCRIBE_GROUPS, version, request).groups
    assert missing.group_state == "Dead"
    not_found = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
    assert missing.error_code == not_found
    assert (found.group_state, found.protocol_data) == ("Stable", "range")
    assert bytes(found.members[0].member_assignment) == b"yours"
    assert found.authorized_operations == (
        authorized_operations(AclResource.GROUP) if version >= 3 else -(2**31)
    )


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_error_response_can_be_written(api_key: ApiKey, version: int) -> None:
    request = request_class(api_key)()
    if isinstance(request, DescribeGroupsRequest):
        request.groups = ["g"]
    error = HANDLER_OF[api_key].error_response(request, ErrorCode.NOT_COORDINATOR, "why")
    response: Any
    response, _ = decode(response_class(api_key), encode(error, version), version)
    where = response.groups[0] if api_key is ApiKey.DESCRIBE_GROUPS else response
    assert where.error_code == ErrorCode.NOT_COORDINATOR
