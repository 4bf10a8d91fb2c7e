"""Brokers, leaders and replicas that one listener's clients can reach."""

from __future__ import annotations

import pytest

from kbroker.metadata.cluster_view import ClusterView
from kbroker.metadata.image import BrokerRegistration, Endpoint, MetadataImage, PartitionImage
from kbroker.protocol.errors import ErrorCode

ONLINE, OFFLINE = bytes([7] * 16), bytes([8] * 16)


def broker(number: int, listener: str, *, fenced: bool = False) -> BrokerRegistration:
    endpoint = Endpoint(listener, f"host-{number}", 9092)
    return BrokerRegistration(
        number, 1, bytes(16), {listener: endpoint}, None, fenced, log_dirs=(ONLINE,)
    )


VIEW = ClusterView(
    MetadataImage(
        brokers={
            1: broker(1, "PLAINTEXT"),
            2: broker(2, "OTHER"),
            3: broker(3, "PLAINTEXT", fenced=True),
        }
    ),
    "PLAINTEXT",
)


def test_reachable_brokers_have_the_listener_and_are_not_fenced() -> None:
    assert list(VIEW.reachable) == [1]
    assert [VIEW.has_endpoint(number) for number in (1, 2, 3, 4)] == [True, False, True, False]


@pytest.mark.parametrize(
    ("leader", "listener_errors", "error"),
    [
        pytest.param(1, True, ErrorCode.NONE, id="reachable"),
        pytest.param(3, True, ErrorCode.NONE, id="fenced, but registered with the listener"),
        pytest.param(2, True, ErrorCode.LISTENER_NOT_FOUND, id="other listener"),
        pytest.param(2, False, ErrorCode.LEADER_NOT_AVAILABLE, id="other listener, old client"),
        pytest.param(-1, True, ErrorCode.LEADER_NOT_AVAILABLE, id="no leader"),
    ],
)
def test_leader_errors(leader: int, listener_errors: bool, error: ErrorCode) -> None:
    assert VIEW.leader_error(leader, listener_errors=listener_errors) is error


@pytest.mark.parametrize(
    ("replicas", "directories", "offline"),
    [
        pytest.param((1,), (ONLINE,), [], id="online"),
        pytest.param((1,), (OFFLINE,), [1], id="directory that failed"),
        pytest.param((1, 2, 3, 4), (ONLINE,) * 4, [2, 3, 4], id="brokers out of reach"),
    ],
)
def test_offline_replicas(
    replicas: tuple[int, ...], directories: tuple[bytes, ...], offline: list[int]
) -> None:
    partition = PartitionImage(replicas, directories, replicas, leader=1)
    assert VIEW.offline_replicas(partition) == offline
