"""`kbroker groups` and `topics offsets` while a partition has no leader."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from tests.cli.conftest import Cli
from tests.node.cluster import Cluster, consume, produce, running, until

ROLES = {1: "controller", 4: "broker", 5: "broker"}
SETTINGS = {
    "offsets.topic.replication.factor": "2",
    "share.coordinator.state.topic.replication.factor": "2",
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.state.topic.min.isr": "1",
}
ON_EACH_BROKER = CreateTopicsRequest.CreatableTopic(
    name="t",
    num_partitions=-1,
    replication_factor=-1,
    assignments=[
        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=[broker])
        for index, broker in enumerate((4, 5))
    ],
)


def test_what_is_known_is_shown(cli: Cli, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, ROLES, settings=SETTINGS)

    async def rows(*arguments: str) -> tuple[list[dict[str, Any]], str]:
        address = f"127.0.0.1:{cluster.client_ports[4]}"
        result = await asyncio.to_thread(cli, *arguments, "--bootstrap-server", address, "--json")
        assert result.code == 0, result.err
        return [json.loads(line) for line in result.lines], result.err

    async def script() -> None:
        async with running(cluster), cluster.client(4) as client:
            await client.to_controller(
                CreateTopicsRequest(topics=[ON_EACH_BROKER]), CreateTopicsResponse
            )
            await produce(client, "t", 10)
            assert len(await consume(client, "t", 10)) == 10
            for group, share in (("g", ()), ("s", ("--share",))):
                await rows(
                    *("groups", "reset-offsets", group, "--topic", "t", "--to-earliest"),
                    *("--execute", *share),
                )
            cluster.kill(5)
            image = cluster.nodes[4].metadata
            await until(lambda: image.image.topics["t"].partitions[1].leader < 0)

            for group in ("g", "s"):
                found, notes = await rows("groups", "describe", group)
                assert [(row["end"], row["lag"]) for row in found] == [(5, 5), (None, None)]
                assert found[0]["committed"] == 0
                assert "t-1 has no leader" in notes
                (total,), _ = await rows("groups", "lag", group)
                assert (total["partitions"], total["lag"]) == (2, 5)
            bounds, notes = await rows("topics", "offsets", "t")
            assert [(row["start"], row["end"], row["records"]) for row in bounds] == [
                (0, 5, 5),
                (None, None, None),
            ]
            assert notes.count("t-1 has no leader") == 1
            latest, _ = await rows("topics", "offsets", "t", "--latest-record")
            assert [row["offset"] is None for row in latest] == [False, True]

    asyncio.run(script())
