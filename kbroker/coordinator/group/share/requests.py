"""Validation of a ShareGroupHeartbeat on its own, without its group. `membership` has the response
of the group.
"""

from __future__ import annotations

from kbroker.coordinator.group.membership.epochs import LEAVE_EPOCH
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.share_groups import ShareGroupHeartbeatRequest


def check_share_heartbeat(request: ShareGroupHeartbeatRequest) -> None:
    """Validate a request on its own, without its group. Raises KafkaError(INVALID_REQUEST)."""
    problem = None
    if not request.member_id:
        problem = "MemberId can't be empty."
    elif not request.group_id:
        problem = "GroupId can't be empty."
    elif request.rack_id == "":
        problem = "RackId can't be empty."
    elif request.member_epoch < LEAVE_EPOCH:
        problem = "MemberEpoch is invalid."
    elif request.member_epoch == 0 and not request.subscribed_topic_names:
        problem = "SubscribedTopicNames must be set in first request."
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
