"""How long a stopping broker waits, on real nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kbroker.node.broker.controlled_shutdown import CLUSTER_SHUTDOWN_SECONDS
from kbroker.protocol.errors import ErrorCode
from tests.node.cluster import Cluster, create_topic, produce, running, until

COUNT = 200


def test_a_broker_that_lost_its_controllers_stops_after_a_session_timeout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def script() -> None:
        async with running(Cluster(tmp_path, {1: "controller", 4: "broker"})) as cluster:
            async with cluster.client(4) as client:
                assert await create_topic(client, "t") == ErrorCode.NONE
                await produce(client, "t", COUNT)
            cluster.kill(1)
            async with asyncio.timeout(CLUSTER_SHUTDOWN_SECONDS / 2):
                await cluster.stop(4)
            assert (tmp_path / "4" / ".kafka_cleanshutdown").exists()

    asyncio.run(script())
    lines = [each.getMessage() for each in caplog.records]
    (line,) = [each for each in lines if "without a controlled shutdown" in each]
    assert "no heartbeat to the active controller has succeeded for" in line


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_controlled_shutdown_is_a_setting(tmp_path: Path, is_enabled: bool) -> None:
    settings = {4: {"controlled.shutdown.enable": str(is_enabled).lower()}}

    async def script() -> None:
        roles = {1: "controller", 4: "broker"}
        async with running(Cluster(tmp_path, roles, own_settings=settings)) as cluster:
            async with cluster.client(4) as client:
                assert await create_topic(client, "t") == ErrorCode.NONE
            await cluster.stop(4)
            controller = cluster.nodes[1]
            await until(lambda: controller.metadata.image.brokers[4].fenced)
            assert controller.metadata.image.brokers[4].in_controlled_shutdown == is_enabled

    asyncio.run(script())
