"""`kbroker groups`: list, describe with lag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.output import Cell, note, show
from kbroker.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, Json, run

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.model import TopicPartition
    from kbroker.protocol.messages.groups import DescribeGroupsResponse

app = typer.Typer(help="List and describe consumer groups.", rich_markup_mode=None)


@app.command("list")
def list_groups(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """List groups with their state."""
    show(run(_list(bootstrap)), ("group", "state", "protocol", "type"), as_json=as_json)


async def _list(bootstrap: str) -> list[dict[str, Cell]]:
    from kbroker.client.cluster import Client, check
    from kbroker.protocol.messages.groups import ListGroupsRequest, ListGroupsResponse

    rows: list[dict[str, Cell]] = []
    async with Client(bootstrap) as client:
        await client.metadata([])
        for node_id in sorted(client.brokers):
            response = await client.to_node(node_id, ListGroupsRequest(), ListGroupsResponse)
            check(response.error_code, f"groups of broker {node_id}")
            rows += [
                {
                    "group": group.group_id,
                    "state": group.group_state or None,
                    "protocol": group.protocol_type or None,
                    "type": group.group_type or None,
                }
                for group in response.groups
            ]
    return sorted(rows, key=lambda row: str(row["group"]))


EPILOG = """
Lag is how many records a partition has beyond what the group has committed.

\b
Example:
  kbroker groups describe payments
"""


@app.command("describe", epilog=EPILOG)
def describe(
    names: Annotated[list[str], typer.Argument(help="One group or several.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show the committed offset, the lag and the member of each partition of groups."""
    rows = run(_describe(bootstrap, names))
    columns = ("group", "state", "topic", "partition", "committed", "end", "lag", "member", "host")
    show(rows, columns, as_json=as_json)
    for name in names:
        if not any(row["group"] == name for row in rows):
            note(f"{name} has no members and no committed offsets")


async def _describe(bootstrap: str, names: list[str]) -> list[dict[str, Cell]]:
    from kbroker.client.cluster import Client

    rows: list[dict[str, Cell]] = []
    async with Client(bootstrap) as client:
        for name in names:
            rows += await _describe_one(client, name)
    return rows


async def _describe_one(client: Client, name: str) -> list[dict[str, Cell]]:
    from kbroker.client.cluster import LATEST_TIMESTAMP, check
    from kbroker.protocol.messages.groups import DescribeGroupsRequest, DescribeGroupsResponse

    async def ask() -> DescribeGroupsResponse.DescribedGroup:
        request = DescribeGroupsRequest(groups=[name])
        response = await client.to_coordinator(name, request, DescribeGroupsResponse)
        (group,) = response.groups
        check(group.error_code, group.error_message or f"group {name}")
        return group

    group = await client.retry(ask)
    owners = _owners(group)
    committed = await client.retry(lambda: _committed(client, name))
    places = sorted({*committed, *owners})
    ends = {}
    if places:
        ends = await client.retry(
            lambda: client.list_offsets(dict.fromkeys(places, LATEST_TIMESTAMP))
        )
    rows: list[dict[str, Cell]] = []
    for place in places:
        offset, end = committed.get(place), ends[place].offset
        owner = owners.get(place)
        rows.append(
            {
                "group": name,
                "state": group.group_state,
                "topic": place.topic,
                "partition": place.partition,
                "committed": offset,
                "end": end,
                "lag": None if offset is None else end - offset,
                "member": owner.member_id if owner else None,
                "host": owner.client_host if owner else None,
            }
        )
    return rows


def _owners(
    group: DescribeGroupsResponse.DescribedGroup,
) -> dict[TopicPartition, DescribeGroupsResponse.DescribedGroupMember]:
    from kbroker.client.group import decode_versioned
    from kbroker.model import TopicPartition
    from kbroker.protocol.messages.consumer_protocol import ConsumerProtocolAssignment

    owners: dict[TopicPartition, DescribeGroupsResponse.DescribedGroupMember] = {}
    if group.protocol_type != "consumer":
        return owners
    for member in group.members:
        if member.member_assignment:
            assignment = decode_versioned(ConsumerProtocolAssignment, member.member_assignment)
            for topic in assignment.assigned_partitions:
                for partition in topic.partitions:
                    owners[TopicPartition(topic.topic, partition)] = member
    return owners


async def _committed(client: Client, name: str) -> dict[TopicPartition, int]:
    from kbroker.client.cluster import check
    from kbroker.model import TopicPartition
    from kbroker.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse

    request = OffsetFetchRequest(
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None)]
    )
    response = await client.to_coordinator(name, request, OffsetFetchResponse, max_version=9)
    found: dict[TopicPartition, int] = {}
    for group in response.groups:
        check(group.error_code, f"group {name}")
        for topic in group.topics:
            for answer in topic.partitions:
                if answer.committed_offset >= 0:
                    place = TopicPartition(topic.name, answer.partition_index)
                    found[place] = answer.committed_offset
    return found
