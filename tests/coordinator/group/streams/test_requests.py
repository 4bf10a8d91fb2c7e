"""What is wrong with a StreamsGroupHeartbeat by itself: one change each to a valid request."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator.group.streams.requests import check_streams_heartbeat
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.streams_groups import (
    StreamsGroupHeartbeatRequest as Request,
)

TOPOLOGY = Request.Topology(epoch=0, subtopologies=[])
REGEX = Request.Topology(
    subtopologies=[Request.Subtopology(subtopology_id="0", source_topic_regex=["a.*"])]
)
JOIN: dict[str, Any] = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 0,
    "rebalance_timeout_ms": 1000,
    "active_tasks": [],
    "standby_tasks": [],
    "warmup_tasks": [],
    "topology": TOPOLOGY,
}
STAY: dict[str, Any] = {"group_id": "g", "member_id": "m", "member_epoch": 3}
SOME = [Request.TaskIds(subtopology_id="0", partitions=[1])]


@pytest.mark.parametrize(
    "values",
    [
        JOIN,
        STAY,
        {**STAY, "member_epoch": -1},
        {**STAY, "active_tasks": SOME, "standby_tasks": SOME, "warmup_tasks": []},
    ],
)
def test_what_is_right(values: dict[str, Any]) -> None:
    check_streams_heartbeat(Request(**values))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({**STAY, "instance_id": "i"}, "Static membership"),
        ({**STAY, "task_offsets": []}, "TaskOffsets"),
        ({**STAY, "task_end_offsets": []}, "TaskEndOffsets"),
        ({**STAY, "warmup_tasks": SOME}, "WarmupTasks are not supported"),
        ({**JOIN, "topology": REGEX}, "Regular expressions"),
        ({**STAY, "member_id": ""}, "MemberId can't be empty"),
        ({**STAY, "group_id": ""}, "GroupId can't be empty"),
        ({**STAY, "rack_id": ""}, "RackId can't be empty"),
        ({**JOIN, "rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided"),
        ({**JOIN, "active_tasks": SOME}, "ActiveTasks must be empty"),
        ({**JOIN, "standby_tasks": None}, "StandbyTasks must be empty"),
        ({**JOIN, "warmup_tasks": None}, "WarmupTasks must be empty"),
        ({**JOIN, "topology": None}, "Topology must be non-null"),
        ({**STAY, "member_epoch": -2}, "InstanceId can't be null"),
        ({**STAY, "member_epoch": -3}, "MemberEpoch is -3"),
        ({**STAY, "active_tasks": []}, "all must be non-null"),
        ({**STAY, "topology": TOPOLOGY}, "only be provided when (re-)joining"),
    ],
)
def test_what_is_wrong(values: dict[str, Any], words: str) -> None:
    with pytest.raises(KafkaError) as caught:
        check_streams_heartbeat(Request(**values))
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert words in caught.value.message
