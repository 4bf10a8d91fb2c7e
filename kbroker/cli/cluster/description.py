"""`kbroker cluster info` and `brokers`: what Metadata and DescribeCluster tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cli.console.output import Cell, show
from kbroker.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, Json, connect, run

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.protocol.messages.metadata import DescribeClusterResponse

INFO_EPILOG = """
The controller is the broker that Metadata names as such; `cluster quorum` shows the leader.

\b
Examples:
  kbroker cluster info
  kbroker cluster info --bootstrap-server localhost:9092 --json
"""


def info(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Show the cluster's id and its size."""
    columns = ("cluster_id", "controller", "brokers", "topics", "partitions")
    show([run(_info(bootstrap))], columns, as_json=as_json)


async def _info(bootstrap: str) -> dict[str, Cell]:
    async with connect(bootstrap) as client:
        response = await client.metadata()
        described = await describe_cluster(client)
    topics = [topic for topic in response.topics if not topic.is_internal]
    return {
        "cluster_id": described.cluster_id,
        "controller": described.controller_id if described.controller_id >= 0 else None,
        "brokers": len(described.brokers),
        "topics": len(topics),
        "partitions": sum(len(topic.partitions) for topic in topics),
    }


async def describe_cluster(client: Client) -> DescribeClusterResponse:
    """The cluster as one of its brokers describes it, fenced brokers included where it can."""
    from kbroker.client.cluster import check
    from kbroker.protocol.errors import ErrorCode, KafkaError
    from kbroker.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse

    try:
        response = await client.any(
            DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse
        )
    except KafkaError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        response = await client.any(DescribeClusterRequest(), DescribeClusterResponse)
    check(response.error_code, response.error_message)
    return response


BROKERS_EPILOG = """
Leaders and replicas are counted over all topics, Kafka's own included.

\b
Examples:
  kbroker cluster brokers
  kbroker cluster brokers --json
"""


def brokers(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Show the brokers, and how many partitions each has."""
    columns = ("broker", "host", "port", "rack", "fenced", "leaders", "replicas")
    show(run(_brokers(bootstrap)), columns, as_json=as_json)


async def _brokers(bootstrap: str) -> list[dict[str, Cell]]:
    async with connect(bootstrap) as client:
        topics = (await client.metadata()).topics
        described = await describe_cluster(client)
    partitions = [part for topic in topics for part in topic.partitions]
    return [
        {
            "broker": broker.broker_id,
            "host": broker.host,
            "port": broker.port,
            "rack": broker.rack,
            "fenced": broker.is_fenced,
            "leaders": sum(part.leader_id == broker.broker_id for part in partitions),
            "replicas": sum(broker.broker_id in part.replica_nodes for part in partitions),
        }
        for broker in sorted(described.brokers, key=lambda broker: broker.broker_id)
    ]
