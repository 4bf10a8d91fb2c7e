"""`kbroker groups describe`: the partitions of groups, with committed offset, lag and members."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.console.output import Cell, note, show
from kbroker.cli.console.partitions import led_offsets
from kbroker.cli.groups.offsets import committed_offsets
from kbroker.cli.groups.share import SharePartitionRow, share_partitions
from kbroker.cli.groups.views import GroupView, group_view
from kbroker.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, Json, connect, not_empty, run

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.model import TopicPartition

DESCRIBE_EPILOG = """
Lag is the number of records between the committed offset and the end of the partition.

\b
Example:
  kbroker groups describe payments
"""


def describe(
    names: Annotated[list[str], typer.Argument(help="One group or several.", callback=not_empty)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show the offset, lag and member of each partition."""
    rows = run(_describe(bootstrap, names))
    columns = (
        *("group", "state", "topic", "partition", "committed", "end", "lag"),
        *("members", "hosts"),
    )
    show(rows, columns, as_json=as_json, wide=("members", "hosts"), sections=("group", "state"))
    for name in names:
        if not any(row["group"] == name for row in rows):
            note(f"{name} has no members and no committed offsets")


async def _describe(bootstrap: str, names: Sequence[str]) -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = []
    async with connect(bootstrap) as client:
        for name in names:
            view = await client.retry(partial(group_view, client, name))
            rows += await partition_rows(client, name, view)
    return rows


async def partition_rows(client: Client, name: str, view: GroupView) -> list[dict[str, Cell]]:
    """A row per partition that has a committed offset or a member. Raises KafkaError."""
    from kbroker.client.cluster import LATEST_TIMESTAMP

    if view.is_share:
        shared = await client.retry(lambda: share_partitions(client, name, leaderless=True))
    else:
        offsets = await client.retry(lambda: committed_offsets(client, name))
        shared = {place: SharePartitionRow(offset, None) for place, offset in offsets.items()}
    readers: dict[TopicPartition, list[tuple[str, str]]] = {}
    for member in view.members:
        for place in member.partitions:
            readers.setdefault(place, []).append((member.member_id, member.host))
    places = sorted({*shared, *readers})
    ends = await led_offsets(client, places, LATEST_TIMESTAMP)
    rows: list[dict[str, Cell]] = []
    for place in places:
        committed, lag = shared.get(place, SharePartitionRow(None, None))
        end = ends[place].offset if place in ends else None
        if not view.is_share and committed is not None and end is not None:
            lag = end - committed
        of_place = readers.get(place, [])
        rows.append(
            {
                "group": name,
                "state": view.state,
                "topic": place.topic,
                "partition": place.partition,
                "committed": committed,
                "end": end,
                "lag": lag,
                "members": [member for member, _ in of_place],
                "hosts": sorted({host for _, host in of_place}),
            }
        )
    return rows
