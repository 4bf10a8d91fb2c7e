"""`kbroker groups` with a streams group."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

from kbroker.protocol.messages.admin.configs import IncrementalAlterConfigsRequest
from kbroker.protocol.messages.coordinators.streams_groups import StreamsGroupHeartbeatRequest
from kbroker.testing import EmbeddedBroker
from tests.e2e.wire import call
from tests.reference.conversation import settle

GROUP_RESOURCE = 32


def test_the_member_of_a_task_is_that_of_its_partitions(
    kbroker: Callable[..., Any], kafka_broker: EmbeddedBroker
) -> None:
    kafka_broker.create_topic("streams-in", partitions=2)
    group = "streams-cli"
    port = int(kafka_broker.bootstrap_servers.rpartition(":")[2])
    at_once = IncrementalAlterConfigsRequest.AlterableConfig(
        name="streams.initial.rebalance.delay.ms", value="0"
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group, configs=[at_once]
    )
    topology = StreamsGroupHeartbeatRequest.Topology(
        subtopologies=[
            StreamsGroupHeartbeatRequest.Subtopology(
                subtopology_id="0", source_topics=["streams-in"]
            )
        ]
    )
    joining = StreamsGroupHeartbeatRequest(
        group_id=group,
        member_id="worker",
        rebalance_timeout_ms=5_000,
        process_id="p",
        topology=topology,
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )
    settle("127.0.0.1", port)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        call(connection, IncrementalAlterConfigsRequest(resources=[resource]), 1)
        answer: Any = call(connection, joining, 0)
    assert [one.partitions for one in answer.active_tasks] == [[0, 1]]
    rows = [json.loads(line) for line in kbroker("groups", "describe", group, "--json").lines]
    assert [(row["topic"], row["partition"], row["members"]) for row in rows] == [
        ("streams-in", 0, ["worker"]),
        ("streams-in", 1, ["worker"]),
    ]
    assert {row["state"] for row in rows} == {"Stable"}
    (member,) = map(json.loads, kbroker("groups", "members", group, "--json").lines)
    assert (member["member"], member["partitions"]) == ("worker", ["streams-in-0", "streams-in-1"])
    assert f"{group}\tStable\tstreams\tstreams" in kbroker("groups", "list").lines
