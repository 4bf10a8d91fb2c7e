"""The response to LeaveGroup, which can have several members (KIP-345)."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import LeaveGroupRequest, LeaveGroupResponse


def leave_response(
    leaving: Sequence[LeaveGroupRequest.MemberIdentity], errors: Sequence[ErrorCode]
) -> LeaveGroupResponse:
    """One result per identity, in the order of the request."""
    return LeaveGroupResponse(
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=error,
            )
            for identity, error in zip(leaving, errors, strict=True)
        ]
    )
