"""Clients of a cluster of five processes, three controllers and two brokers: the active controller
is killed, and a broker restarted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients.adapters import ADAPTERS, Adapter, PolledMember, Sent, wait_until
from tests.clients.process_cluster import ProcessCluster

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(300),
    # What the clients themselves warn of is not ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

PARTITIONS = 4
RECORDS = [Sent(None, b"%d" % number, partition=number % PARTITIONS) for number in range(200)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    with ExitStack() as stack:
        yield ProcessCluster(tmp_path, stack, controllers=(7, 8, 9), brokers=(1, 2))


@pytest.fixture(params=list(ADAPTERS))
def client(request: pytest.FixtureRequest, cluster: ProcessCluster) -> Iterator[Adapter]:
    adapter = ADAPTERS[request.param](cluster.bootstrap)
    yield adapter
    close = getattr(adapter, "close", None)
    if close is not None:
        close()


def fill(client: Adapter, topic: str) -> None:
    """Create a topic over both brokers and produce into it."""
    client.create_topic(topic, PARTITIONS)
    client.produce(topic, RECORDS, codec="none", idempotent=True)


def assert_filled(client: Adapter, topic: str) -> None:
    for partition in range(PARTITIONS):
        expected = [record.value for record in RECORDS if record.partition == partition]
        found = client.read(topic, partition, len(expected))
        assert [record.value for record in found] == expected


def test_a_client_survives_the_active_controller_and_a_broker(
    cluster: ProcessCluster, client: Adapter
) -> None:
    fill(client, "first")
    assert_filled(client, "first")
    killed = cluster.kill_active_controller()
    fill(client, "second")
    cluster.controllers[killed].start()
    assert cluster.brokers[2].stop() == 0
    cluster.brokers[2].start()
    for topic in ("first", "second"):
        assert_filled(client, topic)
    cluster.brokers[1].kill()
    cluster.brokers[1].start()
    assert_filled(client, "first")
    member = PolledMember(client.join("group", "second"))
    wait_until(lambda: len(member.seen) >= len(RECORDS), 60, "a member reads what is there")
    member.stop()
    assert {record.value for record in member.seen} == {record.value for record in RECORDS}
