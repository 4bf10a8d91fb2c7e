"""Validation of a ConsumerGroupHeartbeat on its own, without its group. `membership` has the
response of the group.
"""

from __future__ import annotations

from typing import Final

from kbroker.coordinator.group.membership.epochs import STATIC_LEAVE_EPOCH
from kbroker.metadata.patterns import check_pattern
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.consumer_groups import ConsumerGroupHeartbeatRequest

CLIENT_MEMBER_ID_VERSION: Final = 1
"""From this ConsumerGroupHeartbeat version on a member generates its own id (KIP-1082)."""


def check_heartbeat(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]
) -> None:
    """Validate a request on its own, without its group. Raises KafkaError."""
    epoch = request.member_epoch
    problem = None
    if not request.member_id and (epoch > 0 or epoch == -1 or version >= CLIENT_MEMBER_ID_VERSION):
        problem = "MemberId can't be empty."
    elif not request.group_id:
        problem = "GroupId can't be empty."
    elif request.instance_id == "":
        problem = "InstanceId can't be empty."
    elif request.rack_id == "":
        problem = "RackId can't be empty."
    elif epoch == 0:
        problem = _problem_of_join(request)
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        problem = "InstanceId can't be null."
    elif epoch < STATIC_LEAVE_EPOCH:
        problem = "MemberEpoch is invalid."
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        known = ", ".join(assignors)
        message = f"ServerAssignor {request.server_assignor} is not supported."
        message += f" Supported assignors: {known}."
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, message)
    if request.subscribed_topic_regex:
        check_pattern(request.subscribed_topic_regex)


def _problem_of_join(request: ConsumerGroupHeartbeatRequest) -> str | None:
    if request.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if request.topic_partitions is None or request.topic_partitions:
        return "TopicPartitions must be empty when (re-)joining."
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        names = "SubscribedTopicNames or SubscribedTopicRegex"
        return f"Either {names} must be non-null when (re-)joining."
    return None
