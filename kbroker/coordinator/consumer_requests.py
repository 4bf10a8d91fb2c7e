"""What can be wrong with a ConsumerGroupHeartbeat by itself, whatever its group is. What the group
answers is in `consumer_membership`.
"""

from __future__ import annotations

from typing import Final

from kbroker.coordinator.reconciliation import STATIC_LEAVE_EPOCH
from kbroker.coordinator.topic_patterns import check_pattern
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest

CLIENT_MEMBER_ID_VERSION: Final = 1
"""From this ConsumerGroupHeartbeat on a member makes its id itself (KIP-1082)."""


def check_heartbeat(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]
) -> None:
    """What is wrong with a request by itself. Raises KafkaError."""
    epoch = request.member_epoch
    problem = None
    if not request.group_id:
        problem = "the group has no id"
    elif request.instance_id == "":
        problem = "the instance id is empty"
    elif request.rack_id == "":
        problem = "the rack is empty"
    elif epoch < STATIC_LEAVE_EPOCH:
        problem = f"there is no member epoch {epoch}"
    elif not request.member_id and (epoch != 0 or version >= CLIENT_MEMBER_ID_VERSION):
        problem = "the member has no id"
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        problem = "only a static member leaves for a while"
    elif epoch == 0:
        problem = _problem_of_join(request)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{problem[0].upper()}{problem[1:]}.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        known = ", ".join(assignors)
        message = f"There is no assignor {request.server_assignor}, only {known}."
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, message)
    if request.subscribed_topic_regex:
        check_pattern(request.subscribed_topic_regex)


def _problem_of_join(request: ConsumerGroupHeartbeatRequest) -> str | None:
    if request.rebalance_timeout_ms == -1:
        return "a member that joins names its rebalance timeout"
    if request.topic_partitions is None or request.topic_partitions:
        return "a member that joins says that it has no partitions"
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return "a member that joins subscribes to topics by name or by a regular expression"
    return None
