"""The leaders that a Produce or Fetch response names."""

from __future__ import annotations

import pytest

from kbroker.metadata.image import (
    BrokerRegistration,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.server.handlers.records.leader_hints import LeaderHints

DIRECTORY = bytes([7] * 16)


def broker(number: int, listener: str) -> BrokerRegistration:
    endpoint = Endpoint(listener, f"host-{number}", 9092)
    return BrokerRegistration(number, 1, bytes(16), {listener: endpoint}, f"rack-{number}")


IMAGE = MetadataImage(brokers={1: broker(1, "PLAINTEXT"), 2: broker(2, "OTHER")})


def led_by(*leaders: int) -> TopicImage:
    return TopicImage(
        "events",
        bytes(16),
        {
            index: PartitionImage((1, 2), (DIRECTORY,) * 2, (1, 2), leader=leader, leader_epoch=3)
            for index, leader in enumerate(leaders)
        },
    )


@pytest.mark.parametrize(
    ("leaders", "hosts"),
    [
        pytest.param((1,), ["host-1"], id="reachable"),
        pytest.param((1, 1), ["host-1"], id="named once"),
        pytest.param((2,), [], id="on another listener"),
        pytest.param((9,), [], id="not registered"),
        pytest.param((-1,), [], id="no leader"),
        pytest.param((2, 1, 9, 1), ["host-1"], id="several"),
    ],
)
def test_each_leader_is_named_and_each_reachable_broker_once(
    leaders: tuple[int, ...], hosts: list[str]
) -> None:
    endpoints: list[FetchResponse.NodeEndpoint] = []
    hints = LeaderHints(
        IMAGE, "PLAINTEXT", endpoints, FetchResponse.LeaderIdAndEpoch, FetchResponse.NodeEndpoint
    )
    for index, leader in enumerate(leaders):
        found = hints.leader_of(led_by(*leaders), index)
        assert found == FetchResponse.LeaderIdAndEpoch(leader_id=leader, leader_epoch=3)
    assert [endpoint.host for endpoint in endpoints] == hosts


def test_a_partition_that_does_not_exist_has_no_leader() -> None:
    endpoints: list[FetchResponse.NodeEndpoint] = []
    hints = LeaderHints(
        IMAGE, "PLAINTEXT", endpoints, FetchResponse.LeaderIdAndEpoch, FetchResponse.NodeEndpoint
    )
    assert hints.leader_of(None, 0) is None
    assert hints.leader_of(led_by(1), 1) is None
    assert not endpoints
