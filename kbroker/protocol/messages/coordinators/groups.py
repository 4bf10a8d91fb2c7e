"""Classic consumer groups and finding any coordinator."""

from __future__ import annotations

from kbroker.protocol.codecs.schema import (
    Binary,
    Request,
    Response,
    Struct,
    array,
    binary,
    boolean,
    int8,
    int16,
    int32,
    string,
)


class FindCoordinatorRequest(
    Request, api_key=10, versions="0-6", flexible="3+", listeners="broker"
):
    key: str = string("0-3")
    key_type: int = int8("1+", default=0)
    coordinator_keys: list[str] = array("string", "4+")


class FindCoordinatorResponse(Response, api_key=10, versions="0-6", flexible="3+"):
    class Coordinator(Struct):
        key: str = string("4+")
        node_id: int = int32("4+")
        host: str = string("4+")
        port: int = int32("4+")
        error_code: int = int16("4+")
        error_message: str | None = string("4+", nullable="4+", ignorable=True)

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="1-3", ignorable=True)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[FindCoordinatorResponse.Coordinator] = array("Coordinator", "4+")


class JoinGroupRequest(Request, api_key=11, versions="0-9", flexible="6+", listeners="broker"):
    class JoinGroupRequestProtocol(Struct):
        name: str = string("0+")
        metadata: Binary = binary("0+")

    group_id: str = string("0+")
    session_timeout_ms: int = int32("0+")
    rebalance_timeout_ms: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string("0+")
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    protocol_type: str = string("0+")
    protocols: list[JoinGroupRequest.JoinGroupRequestProtocol] = array(
        "JoinGroupRequestProtocol", "0+"
    )
    reason: str | None = string("8+", nullable="8+", default=None, ignorable=True)


class JoinGroupResponse(Response, api_key=11, versions="0-9", flexible="6+"):
    class JoinGroupResponseMember(Struct):
        member_id: str = string("0+")
        group_instance_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)
        metadata: Binary = binary("0+")

    throttle_time_ms: int = int32("2+", ignorable=True)
    error_code: int = int16("0+")
    generation_id: int = int32("0+", default=-1)
    protocol_type: str | None = string("7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = string("0+", nullable="7+")
    leader: str = string("0+")
    skip_assignment: bool = boolean("9+", default=False)
    member_id: str = string("0+")
    members: list[JoinGroupResponse.JoinGroupResponseMember] = array(
        "JoinGroupResponseMember", "0+"
    )


class SyncGroupRequest(Request, api_key=14, versions="0-5", flexible="4+", listeners="broker"):
    class SyncGroupRequestAssignment(Struct):
        member_id: str = string("0+")
        assignment: Binary = binary("0+")

    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequest.SyncGroupRequestAssignment] = array(
        "SyncGroupRequestAssignment", "0+"
    )


class SyncGroupResponse(Response, api_key=14, versions="0-5", flexible="4+"):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignment: Binary = binary("0+")


class HeartbeatRequest(Request, api_key=12, versions="0-4", flexible="4+", listeners="broker"):
    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)


class HeartbeatResponse(Response, api_key=12, versions="0-4", flexible="4+"):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")


class LeaveGroupRequest(Request, api_key=13, versions="0-5", flexible="4+", listeners="broker"):
    class MemberIdentity(Struct):
        member_id: str = string("3+")
        group_instance_id: str | None = string("3+", nullable="3+", default=None)
        reason: str | None = string("5+", nullable="5+", default=None, ignorable=True)

    group_id: str = string("0+")
    member_id: str = string("0-2")
    members: list[LeaveGroupRequest.MemberIdentity] = array("MemberIdentity", "3+")


class LeaveGroupResponse(Response, api_key=13, versions="0-5", flexible="4+"):
    class MemberResponse(Struct):
        member_id: str = string("3+")
        group_instance_id: str | None = string("3+", nullable="3+")
        error_code: int = int16("3+")

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    members: list[LeaveGroupResponse.MemberResponse] = array("MemberResponse", "3+")


class ListGroupsRequest(Request, api_key=16, versions="0-5", flexible="3+", listeners="broker"):
    states_filter: list[str] = array("string", "4+")
    types_filter: list[str] = array("string", "5+")


class ListGroupsResponse(Response, api_key=16, versions="0-5", flexible="3+"):
    class ListedGroup(Struct):
        group_id: str = string("0+")
        protocol_type: str = string("0+")
        group_state: str = string("4+", ignorable=True)
        group_type: str = string("5+", ignorable=True)

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    groups: list[ListGroupsResponse.ListedGroup] = array("ListedGroup", "0+")


class DescribeGroupsRequest(Request, api_key=15, versions="0-6", flexible="5+", listeners="broker"):
    groups: list[str] = array("string", "0+")
    include_authorized_operations: bool = boolean("3+")


class DescribeGroupsResponse(Response, api_key=15, versions="0-6", flexible="5+"):
    class DescribedGroupMember(Struct):
        member_id: str = string("0+")
        group_instance_id: str | None = string("4+", nullable="4+", default=None, ignorable=True)
        client_id: str = string("0+")
        client_host: str = string("0+")
        member_metadata: Binary = binary("0+")
        member_assignment: Binary = binary("0+")

    class DescribedGroup(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("6+", nullable="6+", default=None)
        group_id: str = string("0+")
        group_state: str = string("0+")
        protocol_type: str = string("0+")
        protocol_data: str = string("0+")
        members: list[DescribeGroupsResponse.DescribedGroupMember] = array(
            "DescribedGroupMember", "0+"
        )
        authorized_operations: int = int32("3+", default=-0x8000_0000)

    throttle_time_ms: int = int32("1+", ignorable=True)
    groups: list[DescribeGroupsResponse.DescribedGroup] = array("DescribedGroup", "0+")


class DeleteGroupsRequest(Request, api_key=42, versions="0-2", flexible="2+", listeners="broker"):
    groups_names: list[str] = array("string", "0+")


class DeleteGroupsResponse(Response, api_key=42, versions="0-2", flexible="2+"):
    class DeletableGroupResult(Struct):
        group_id: str = string("0+")
        error_code: int = int16("0+")

    throttle_time_ms: int = int32("0+")
    results: list[DeleteGroupsResponse.DeletableGroupResult] = array("DeletableGroupResult", "0+")
