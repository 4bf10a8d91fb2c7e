"""What is wrong with a ShareGroupHeartbeat by itself: one change each to a valid request."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator.group.share.requests import check_share_heartbeat
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.share_groups import (
    ShareGroupHeartbeatRequest as Request,
)

JOIN: dict[str, Any] = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 0,
    "subscribed_topic_names": ["t"],
}
STAY: dict[str, Any] = {"group_id": "g", "member_id": "m", "member_epoch": 3}


@pytest.mark.parametrize(
    "request_",
    [
        Request(**JOIN),
        Request(**JOIN, rack_id="r"),
        Request(**STAY),
        Request(**{**STAY, "member_epoch": -1}),
    ],
    ids=["joins", "with a rack", "stays", "leaves"],
)
def test_valid(request_: Request) -> None:
    check_share_heartbeat(request_)


@pytest.mark.parametrize(
    ("valid", "change", "words"),
    [
        (JOIN, {"member_id": ""}, "MemberId can't be empty."),
        (JOIN, {"group_id": ""}, "GroupId can't be empty."),
        (STAY, {"rack_id": ""}, "RackId can't be empty."),
        (STAY, {"member_epoch": -2}, "MemberEpoch is invalid."),
        (JOIN, {"subscribed_topic_names": []}, "SubscribedTopicNames must be set in first request"),
        (JOIN, {"subscribed_topic_names": None}, "SubscribedTopicNames must be set in first"),
    ],
)
def test_refused(valid: dict[str, Any], change: dict[str, Any], words: str) -> None:
    with pytest.raises(KafkaError, match=words) as refused:
        check_share_heartbeat(Request(**{**valid, **change}))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
