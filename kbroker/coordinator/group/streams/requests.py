"""Validation of a StreamsGroupHeartbeat on its own, without its group. `membership` has the
response of the group.
"""

from __future__ import annotations

from kbroker.coordinator.group.membership.epochs import LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.streams_groups import (
    StreamsGroupHeartbeatRequest,
)


def check_streams_heartbeat(request: StreamsGroupHeartbeatRequest) -> None:
    """Validate a request on its own, without its group. Raises KafkaError(INVALID_REQUEST)."""
    epoch = request.member_epoch
    said = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    problem = None
    if request.instance_id is not None:
        problem = "Static membership is not yet supported."
    elif request.task_offsets is not None:
        problem = "TaskOffsets are not supported yet."
    elif request.task_end_offsets is not None:
        problem = "TaskEndOffsets are not supported yet."
    elif request.warmup_tasks:
        problem = "WarmupTasks are not supported yet."
    elif request.topology is not None and any(
        one.source_topic_regex for one in request.topology.subtopologies
    ):
        problem = "Regular expressions for source topics are not supported yet."
    elif not request.member_id:
        problem = "MemberId can't be empty."
    elif not request.group_id:
        problem = "GroupId can't be empty."
    elif request.rack_id == "":
        problem = "RackId can't be empty."
    elif epoch == 0:
        problem = _problem_of_join(request)
    elif epoch == STATIC_LEAVE_EPOCH:
        problem = "InstanceId can't be null."
    elif epoch < LEAVE_EPOCH:
        problem = f"MemberEpoch is {epoch}, but must be greater than or equal to -2."
    if problem is None and any(tasks is None for tasks in said) and said != (None, None, None):
        problem = "If one task-type is non-null, all must be non-null."
    if problem is None and epoch != 0 and request.topology is not None:
        problem = "Topology can only be provided when (re-)joining."
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _problem_of_join(request: StreamsGroupHeartbeatRequest) -> str | None:
    if request.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    for name, tasks in (
        ("ActiveTasks", request.active_tasks),
        ("StandbyTasks", request.standby_tasks),
        ("WarmupTasks", request.warmup_tasks),
    ):
        if tasks is None or tasks:
            return f"{name} must be empty when (re-)joining."
    if request.topology is None:
        return "Topology must be non-null when (re-)joining."
    return None
