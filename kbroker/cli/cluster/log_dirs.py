"""`kbroker cluster log-dirs`: log directories of brokers, and the replicas in them (KIP-113)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.console.output import Cell, show
from kbroker.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, Json, connect, not_empty, run

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.protocol.messages.admin.log_dirs import DescribeLogDirsResponse

    Directory = DescribeLogDirsResponse.DescribeLogDirsResult

LOG_DIRS_EPILOG = """
Sizes are in bytes. With --topic, or --replicas, every replica has a line; a future replica is one
that moves to this directory.

\b
Examples:
  kbroker cluster log-dirs
  kbroker cluster log-dirs --broker 1 --replicas
  kbroker cluster log-dirs --topic orders --json
"""


def log_dirs(
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", callback=not_empty, help="Its replicas; repeatable."),
    ] = None,
    replicas: Annotated[bool, typer.Option("--replicas", help="A line per replica.")] = False,
    broker: Annotated[
        int | None, typer.Option("--broker", metavar="ID", help="This broker alone.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show the log directories of brokers, or their replicas."""
    if topics or replicas:
        rows = run(_replicas(bootstrap, broker, topics))
        columns: tuple[str, ...] = (
            *("broker", "topic", "partition", "size", "offset_lag", "future", "directory"),
        )
        show(rows, columns, as_json=as_json, wide=("directory",))
        return
    columns = ("broker", "directory", "state", "replicas", "size", "total", "usable")
    show(run(_directories(bootstrap, broker)), columns, as_json=as_json, wide=("directory",))


async def _of_brokers(
    bootstrap: str, broker: int | None, topics: Sequence[str] | None
) -> list[tuple[int, Directory]]:
    async with connect(bootstrap) as client:
        await client.metadata(topics or [])
        for topic in topics or ():
            await client.topic(topic)
        node_ids = sorted(client.brokers) if broker is None else [broker]
        return [
            (node_id, found)
            for node_id in node_ids
            for found in await described_log_dirs(client, node_id, topics)
        ]


async def described_log_dirs(
    client: Client, node_id: int, topics: Sequence[str] | None
) -> list[Directory]:
    """The directories of a broker. topics: None for all. Raises KafkaError."""
    from kbroker.client.cluster import check
    from kbroker.protocol.messages.admin.log_dirs import (
        DescribeLogDirsRequest,
        DescribeLogDirsResponse,
    )

    wanted = None
    if topics:
        wanted = [
            DescribeLogDirsRequest.DescribableLogDirTopic(
                topic=topic, partitions=sorted(client.topics[topic].partitions)
            )
            for topic in topics
        ]
    request = DescribeLogDirsRequest(topics=wanted)
    response = await client.to_node(node_id, request, DescribeLogDirsResponse)
    check(response.error_code, f"log directories of broker {node_id}")
    return response.results


async def _directories(bootstrap: str, broker: int | None) -> list[dict[str, Cell]]:
    from kbroker.protocol.errors import ErrorCode

    found = await _of_brokers(bootstrap, broker, None)
    return [
        {
            "broker": node_id,
            "directory": each.log_dir,
            "state": _state(each, ErrorCode(each.error_code).name),
            "replicas": sum(len(topic.partitions) for topic in each.topics),
            "size": sum(part.partition_size for topic in each.topics for part in topic.partitions),
            "total": each.total_bytes if each.total_bytes >= 0 else None,
            "usable": each.usable_bytes if each.usable_bytes >= 0 else None,
        }
        for node_id, each in found
    ]


def _state(directory: Directory, error: str) -> str:
    if directory.error_code:
        return error
    return "cordoned" if directory.is_cordoned else "online"


async def _replicas(
    bootstrap: str, broker: int | None, topics: Sequence[str] | None
) -> list[dict[str, Cell]]:
    found = await _of_brokers(bootstrap, broker, topics)
    return [
        {
            "broker": node_id,
            "topic": topic.name,
            "partition": part.partition_index,
            "size": part.partition_size,
            "offset_lag": part.offset_lag,
            "future": part.is_future_key,
            "directory": each.log_dir,
        }
        for node_id, each in found
        for topic in sorted(each.topics, key=lambda topic: topic.name)
        for part in sorted(topic.partitions, key=lambda part: part.partition_index)
    ]
