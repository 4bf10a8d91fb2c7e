"""Invalid ConsumerGroupHeartbeats: one change each to a valid request."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator.group.consumer.requests import check_heartbeat
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupHeartbeatRequest as Request,
)

JOIN: dict[str, Any] = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 0,
    "rebalance_timeout_ms": 1000,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}
STAY: dict[str, Any] = {"group_id": "g", "member_id": "m", "member_epoch": 3}


def check(values: dict[str, Any], version: int = 1) -> KafkaError | None:
    try:
        check_heartbeat(Request(**values), version, ("uniform", "range"))
    except KafkaError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("values", "version"),
    [
        (JOIN, 1),
        ({**JOIN, "member_id": ""}, 0),
        ({**JOIN, "subscribed_topic_names": None, "subscribed_topic_regex": "a.*"}, 1),
        ({**JOIN, "subscribed_topic_names": []}, 1),
        ({**JOIN, "server_assignor": "range"}, 1),
        (STAY, 1),
        ({**STAY, "topic_partitions": [Request.TopicPartitions(topic_id=b"t" * 16)]}, 1),
        ({**STAY, "member_epoch": -1}, 1),
        ({**STAY, "member_epoch": -2, "instance_id": "i"}, 1),
    ],
)
def test_what_is_right(values: dict[str, Any], version: int) -> None:
    assert check(values, version) is None


@pytest.mark.parametrize(
    ("values", "version", "message"),
    [
        ({**JOIN, "member_id": ""}, 1, "MemberId can't be empty."),
        ({**STAY, "member_id": ""}, 0, "MemberId can't be empty."),
        ({**STAY, "member_id": "", "member_epoch": -1}, 0, "MemberId can't be empty."),
        ({**JOIN, "group_id": ""}, 1, "GroupId can't be empty."),
        ({**JOIN, "instance_id": ""}, 1, "InstanceId can't be empty."),
        ({**JOIN, "rack_id": ""}, 1, "RackId can't be empty."),
        (
            {**JOIN, "rebalance_timeout_ms": -1},
            1,
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (
            {**JOIN, "topic_partitions": None},
            1,
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            {**JOIN, "topic_partitions": [Request.TopicPartitions(topic_id=b"t" * 16)]},
            1,
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            {**JOIN, "subscribed_topic_names": None},
            1,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining.",
        ),
        ({**STAY, "member_epoch": -2}, 1, "InstanceId can't be null."),
        ({**STAY, "member_epoch": -3}, 1, "MemberEpoch is invalid."),
    ],
)
def test_what_is_wrong(values: dict[str, Any], version: int, message: str) -> None:
    error = check(values, version)
    assert error is not None
    assert (error.code, error.message) == (ErrorCode.INVALID_REQUEST, message)


def test_an_assignor_that_is_not_configured() -> None:
    error = check({**STAY, "server_assignor": "sticky"})
    assert error is not None and error.code is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert error.message == (
        "ServerAssignor sticky is not supported. Supported assignors: uniform, range."
    )


def test_an_expression_that_re2_refuses() -> None:
    error = check({**STAY, "subscribed_topic_regex": "("})
    assert error is not None and error.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert check({**STAY, "subscribed_topic_regex": ""}) is None
