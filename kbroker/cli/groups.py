"""`kbroker groups`: list, describe with lag, delete, reset (in `group_resets`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.group_resets import EPILOG as RESET_EPILOG
from kbroker.cli.group_resets import reset_offsets, write_offsets
from kbroker.cli.output import Cell, counted, note, report_failures, show
from kbroker.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, Json, not_empty, run
from kbroker.cli.share_groups import (
    SharePartition,
    delete_share_offsets,
    describe_share_group,
    is_share_group,
    share_partitions,
)
from kbroker.cli.streams_groups import Owner, describe_streams_group

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.model import TopicPartition
    from kbroker.protocol.messages.groups import DescribeGroupsResponse

GROUPS_EPILOG = """
\b
Examples:
  kbroker groups list
  kbroker groups describe payments
"""
app = typer.Typer(
    help="List, describe, reset and delete groups.", epilog=GROUPS_EPILOG, rich_markup_mode=None
)
app.command("reset-offsets", epilog=RESET_EPILOG)(reset_offsets)


LIST_EPILOG = """
\b
Examples:
  kbroker groups list
  kbroker groups list --json
"""


@app.command("list", epilog=LIST_EPILOG)
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


DELETE_EPILOG = """
\b
Example:
  kbroker groups delete payments billing
"""


@app.command("delete", epilog=DELETE_EPILOG)
def delete(
    names: Annotated[
        list[str], typer.Argument(help="One group or several, without members.", callback=not_empty)
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete groups with all that they have committed."""
    run(_delete(bootstrap, names))


async def _delete(bootstrap: str, names: list[str]) -> None:
    from kbroker.client.cluster import Client, check
    from kbroker.protocol.errors import KafkaError
    from kbroker.protocol.messages.groups import DeleteGroupsRequest, DeleteGroupsResponse

    failures: list[Exception] = []
    async with Client(bootstrap) as client:
        for name in names:

            async def ask(name: str = name) -> None:
                request = DeleteGroupsRequest(groups_names=[name])
                response = await client.to_coordinator(name, request, DeleteGroupsResponse)
                check(response.results[0].error_code, f"group {name}")

            try:
                await client.retry(ask)
            except KafkaError as error:
                failures.append(error)
            else:
                note(f"deleted {name}")
    report_failures(failures)


DELETE_OFFSETS_EPILOG = """
\b
Example:
  kbroker groups delete-offsets payments orders prices
"""


@app.command("delete-offsets", epilog=DELETE_OFFSETS_EPILOG)
def delete_offsets(
    name: Annotated[str, typer.Argument(help="The group.", callback=not_empty)],
    topics: Annotated[
        list[str], typer.Argument(help="Topics that it no longer reads.", callback=not_empty)
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete the committed offsets of a group for topics."""
    run(_delete_offsets(bootstrap, name, topics))


async def _delete_offsets(bootstrap: str, name: str, topics: list[str]) -> None:
    from kbroker.client.cluster import Client, check
    from kbroker.protocol.messages.offsets import OffsetDeleteRequest, OffsetDeleteResponse

    async with Client(bootstrap) as client:
        if await client.retry(lambda: is_share_group(client, name)):
            await client.retry(lambda: delete_share_offsets(client, name, topics))
            _note_forgotten(name, topics)
            return
        request = OffsetDeleteRequest(group_id=name)
        for topic in topics:
            view = await client.topic(topic)
            partitions = [
                OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=index)
                for index in sorted(view.partitions)
            ]
            request.topics.append(
                OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=partitions)
            )

        async def ask() -> None:
            response = await client.to_coordinator(name, request, OffsetDeleteResponse)
            check(response.error_code, f"group {name}")
            for topic in response.topics:
                for partition in topic.partitions:
                    check(partition.error_code, f"{topic.name}-{partition.partition_index}")

        await client.retry(ask)
    _note_forgotten(name, topics)


def _note_forgotten(name: str, topics: list[str]) -> None:
    note(f"deleted the offsets of {name} for {counted(len(topics), 'topic')}: {', '.join(topics)}")


EXPORT_EPILOG = """
\b
Example:
  kbroker groups export payments > payments.csv
"""


@app.command("export", epilog=EXPORT_EPILOG)
def export(
    name: Annotated[str, typer.Argument(help="The group.", callback=not_empty)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Write what a group has committed as lines of topic,partition,offset, for reset-offsets."""
    rows = run(_export(bootstrap, name))
    if as_json:
        show(rows, ("group", "topic", "partition", "committed"), as_json=True)
    else:
        write_offsets(rows, "committed")
    if not rows:
        note(f"{name} has no committed offsets")


async def _export(bootstrap: str, name: str) -> list[dict[str, Cell]]:
    from kbroker.client.cluster import Client

    async with Client(bootstrap) as client:
        committed = await client.retry(lambda: group_offsets(client, name))
    return [
        {
            "group": name,
            "topic": place.topic,
            "partition": place.partition,
            "committed": committed[place],
        }
        for place in sorted(committed)
    ]


EPILOG = """
Lag is the number of records between the committed offset and the end of the partition.

\b
Example:
  kbroker groups describe payments
"""


@app.command("describe", epilog=EPILOG)
def describe(
    names: Annotated[list[str], typer.Argument(help="One group or several.", callback=not_empty)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show the committed offset, the lag and the member of each partition of groups."""
    rows = run(_describe(bootstrap, names))
    columns = (
        *("group", "state", "topic", "partition", "committed", "end", "lag"),
        *("members", "hosts"),
    )
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
    share = await client.retry(lambda: describe_share_group(client, name))
    if share is None:
        return await _describe_owned(client, name)
    state, partitions = share
    ends = await _ends(client, sorted(partitions))
    return [
        _share_row(name, state, place, partitions[place], ends[place]) for place in sorted(ends)
    ]


async def _ends(client: Client, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    from kbroker.client.cluster import LATEST_TIMESTAMP

    if not places:
        return {}
    asked = dict.fromkeys(places, LATEST_TIMESTAMP)
    found = await client.retry(lambda: client.list_offsets(asked))
    return {place: answer.offset for place, answer in found.items()}


def _share_row(
    name: str, state: str, place: TopicPartition, one: SharePartition, end: int
) -> dict[str, Cell]:
    return {
        "group": name,
        "state": state,
        "topic": place.topic,
        "partition": place.partition,
        "committed": one.start,
        "end": end,
        "lag": one.lag,
        "members": [member for member, _ in one.readers],
        "hosts": sorted({host for _, host in one.readers}),
    }


async def _describe_owned(client: Client, name: str) -> list[dict[str, Cell]]:
    """Rows of a group in which each partition has at most one member."""
    from kbroker.client.cluster import check
    from kbroker.protocol.errors import ErrorCode
    from kbroker.protocol.messages.groups import DescribeGroupsRequest, DescribeGroupsResponse

    async def ask() -> tuple[str, dict[TopicPartition, Owner]]:
        request = DescribeGroupsRequest(groups=[name])
        response = await client.to_coordinator(name, request, DescribeGroupsResponse)
        (group,) = response.groups
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            found = await _describe_consumer_group(client, name)
            found = found or await describe_streams_group(client, name)
            if found is not None:
                return found
        check(group.error_code, group.error_message or f"group {name}")
        return group.group_state, _owners(group)

    state, owners = await client.retry(ask)
    committed = await client.retry(lambda: committed_offsets(client, name))
    places = sorted({*committed, *owners})
    ends = await _ends(client, places)
    rows: list[dict[str, Cell]] = []
    for place in places:
        offset, end = committed.get(place), ends[place]
        owner = owners.get(place)
        rows.append(
            {
                "group": name,
                "state": state,
                "topic": place.topic,
                "partition": place.partition,
                "committed": offset,
                "end": end,
                "lag": None if offset is None else end - offset,
                "members": [owner[0]] if owner else [],
                "hosts": [owner[1]] if owner else [],
            }
        )
    return rows


async def _describe_consumer_group(
    client: Client, name: str
) -> tuple[str, dict[TopicPartition, Owner]] | None:
    """State and owners of a consumer group (KIP-848); None for any other group."""
    from kbroker.client.cluster import check
    from kbroker.model import TopicPartition
    from kbroker.protocol.errors import ErrorCode
    from kbroker.protocol.messages.consumer_groups import (
        ConsumerGroupDescribeRequest,
        ConsumerGroupDescribeResponse,
    )

    request = ConsumerGroupDescribeRequest(group_ids=[name])
    response = await client.to_coordinator(name, request, ConsumerGroupDescribeResponse)
    (group,) = response.groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    check(group.error_code, group.error_message or f"group {name}")
    owners = {
        TopicPartition(topic.topic_name, partition): (member.member_id, member.client_host)
        for member in group.members
        for topic in member.assignment.topic_partitions
        for partition in topic.partitions
    }
    return group.group_state, owners


def _owners(group: DescribeGroupsResponse.DescribedGroup) -> dict[TopicPartition, Owner]:
    from kbroker.client.group import decode_versioned
    from kbroker.model import TopicPartition
    from kbroker.protocol.messages.consumer_protocol import ConsumerProtocolAssignment

    owners: dict[TopicPartition, Owner] = {}
    if group.protocol_type != "consumer":
        return owners
    for member in group.members:
        if member.member_assignment:
            assignment = decode_versioned(ConsumerProtocolAssignment, member.member_assignment)
            for topic in assignment.assigned_partitions:
                for partition in topic.partitions:
                    owners[TopicPartition(topic.topic, partition)] = (
                        member.member_id,
                        member.client_host,
                    )
    return owners


async def committed_offsets(client: Client, name: str) -> dict[TopicPartition, int]:
    """All committed offsets of a group."""
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


async def group_offsets(client: Client, name: str) -> dict[TopicPartition, int]:
    """All committed offsets of a group; of a share group its start offsets."""
    if not await is_share_group(client, name):
        return await committed_offsets(client, name)
    found = await share_partitions(client, name)
    return {place: one.start for place, one in found.items() if one.start is not None}
