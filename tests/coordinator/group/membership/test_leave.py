"""The answer to LeaveGroup names each identity of the request with its own error."""

from __future__ import annotations

import pytest

from kbroker.coordinator.group.membership.leave import leave_response
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import LeaveGroupRequest

Identity = LeaveGroupRequest.MemberIdentity


def test_results_are_in_the_order_of_the_request() -> None:
    leaving = [
        Identity(member_id="b", group_instance_id=None),
        Identity(member_id="", group_instance_id="i"),
        Identity(member_id="a", group_instance_id=None),
    ]
    errors = [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID]
    response = leave_response(leaving, errors)
    found = [(one.member_id, one.group_instance_id, one.error_code) for one in response.members]
    assert found == [("b", None, 0), ("", "i", 25), ("a", None, 82)]
    assert response.error_code == 0


def test_no_identity_without_its_error() -> None:
    with pytest.raises(ValueError):
        leave_response([Identity(member_id="a")], [])
