"""Kinds of groups that the configuration or a feature switches off."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from kbroker.protocol.messages.coordinators.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
)
from kbroker.testing import EmbeddedBroker
from tests.e2e.wire import call

OFF = ErrorCode.UNSUPPORTED_VERSION
KINDS = {
    "consumer": (
        ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1),
        ConsumerGroupDescribeRequest(group_ids=["g"]),
        "group.version",
    ),
    "streams": (
        StreamsGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1),
        StreamsGroupDescribeRequest(group_ids=["g"]),
        "streams.version",
    ),
}


def errors(broker: EmbeddedBroker, heartbeat: Message, describe: Message) -> set[int]:
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        answered: Any = call(connection, heartbeat, 0)
        described: Any = call(connection, describe, 0)
    return {answered.error_code, described.groups[0].error_code}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_that_is_not_configured(kind: str) -> None:
    with EmbeddedBroker({"group.coordinator.rebalance.protocols": "classic"}) as broker:
        assert errors(broker, *KINDS[kind][:2]) == {OFF}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_whose_feature_is_off(kind: str) -> None:
    heartbeat, describe, feature = KINDS[kind]
    update = UpdateFeaturesRequest(
        feature_updates=[
            UpdateFeaturesRequest.FeatureUpdateKey(
                feature=feature, max_version_level=0, upgrade_type=2
            )
        ]
    )
    with EmbeddedBroker() as broker:
        assert OFF not in errors(broker, heartbeat, describe)
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            updated: Any = call(connection, update, 1)
        assert updated.error_code == ErrorCode.NONE, updated
        assert errors(broker, heartbeat, describe) == {OFF}
