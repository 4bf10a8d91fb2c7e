"""`kbroker topics describe`: the partitions of topics, or their settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.configs.resources import ResourceKind, config_rows, described_configs
from kbroker.cli.console.output import Cell, show
from kbroker.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, Json, connect, not_empty, run

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.protocol.messages.metadata import MetadataResponse

    Topic = MetadataResponse.MetadataResponseTopic

DESCRIBE_EPILOG = """
Without names all topics are shown, but Kafka's own.

\b
Examples:
  kbroker topics describe
  kbroker topics describe orders
  kbroker topics describe --under-replicated
  kbroker topics describe orders --configs
"""


def describe(
    names: Annotated[
        list[str] | None, typer.Argument(help="One topic or several.", callback=not_empty)
    ] = None,
    configs: Annotated[
        bool, typer.Option("--configs", help="The topic's settings instead of its partitions.")
    ] = False,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only with replicas out of sync.")
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable", help="Only partitions without a leader.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show the partitions of topics, or their settings."""
    if configs:
        columns: tuple[str, ...] = ("topic", "key", "value", "source")
        rows = run(_configs(bootstrap, names or []))
        show(rows, columns, as_json=as_json, wide=("value", "source"), sections=("topic",))
        return
    rows = run(_partitions(bootstrap, names or []))
    if under_replicated or unavailable:
        rows = [
            row
            for row in rows
            if (unavailable and row["leader"] is None)
            or (under_replicated and _count(row["in_sync"]) < _count(row["replicas"]))
        ]
    columns = ("topic", "partition", "leader", "replicas", "in_sync", "start_offset", "end_offset")
    show(rows, columns, as_json=as_json)


def _count(cell: Cell) -> int:
    return len(cell) if isinstance(cell, Sequence) else 0


async def _topics(client: Client, names: Sequence[str]) -> list[Topic]:
    from kbroker.client.cluster import check

    response = await client.metadata(names or None)
    for topic in response.topics:
        check(topic.error_code, f"topic {topic.name}")
    if names:
        return response.topics
    topics = (topic for topic in response.topics if not topic.is_internal)
    return sorted(topics, key=lambda topic: topic.name or "")


async def _partitions(bootstrap: str, names: Sequence[str]) -> list[dict[str, Cell]]:
    from kbroker.client.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
    from kbroker.model import TopicPartition

    rows: list[dict[str, Cell]] = []
    async with connect(bootstrap) as client:
        topics = await _topics(client, names)
        led = [
            TopicPartition(topic.name or "", part.partition_index)
            for topic in topics
            for part in topic.partitions
            if part.leader_id >= 0
        ]
        starts = await client.list_offsets(dict.fromkeys(led, EARLIEST_TIMESTAMP))
        ends = await client.list_offsets(dict.fromkeys(led, LATEST_TIMESTAMP))
    for topic in topics:
        for part in sorted(topic.partitions, key=lambda part: part.partition_index):
            place = TopicPartition(topic.name or "", part.partition_index)
            rows.append(
                {
                    "topic": topic.name,
                    "partition": part.partition_index,
                    "leader": part.leader_id if part.leader_id >= 0 else None,
                    "replicas": part.replica_nodes,
                    "in_sync": part.isr_nodes,
                    "start_offset": starts[place].offset if place in starts else None,
                    "end_offset": ends[place].offset if place in ends else None,
                }
            )
    return rows


async def _configs(bootstrap: str, names: Sequence[str]) -> list[dict[str, Cell]]:
    async with connect(bootstrap) as client:
        asked = list(names) or [topic.name or "" for topic in await _topics(client, names)]
        return config_rows(await described_configs(client, ResourceKind.TOPIC, asked), "topic")
