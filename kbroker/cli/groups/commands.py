"""`kbroker groups`: list, delete, delete-offsets, export; describe, members, lag and reset-offsets
are in `descriptions`, `members`, `lag` and `resets`; translate is in `translation`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kbroker.cli.console.output import Cell, counted, note, report, report_failures, show
from kbroker.cli.groups.descriptions import DESCRIBE_EPILOG, describe
from kbroker.cli.groups.lag import LAG_EPILOG, lag
from kbroker.cli.groups.listing import listed_groups
from kbroker.cli.groups.members import MEMBERS_EPILOG, members
from kbroker.cli.groups.offsets import group_offsets
from kbroker.cli.groups.resets import EPILOG as RESET_EPILOG
from kbroker.cli.groups.resets import reset_offsets, write_offsets
from kbroker.cli.groups.share import delete_share_offsets, is_share_group
from kbroker.cli.groups.translation import TRANSLATE_EPILOG, translate
from kbroker.cli.session import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    Yes,
    confirm,
    connect,
    not_empty,
    run,
)

GROUPS_EPILOG = """
\b
Examples:
  kbroker groups list
  kbroker groups describe payments
"""
app = typer.Typer(
    help="List, describe, reset and delete groups.",
    epilog=GROUPS_EPILOG,
    add_completion=False,
    rich_markup_mode=None,
)
app.command("describe", epilog=DESCRIBE_EPILOG)(describe)
app.command("members", epilog=MEMBERS_EPILOG)(members)
app.command("lag", epilog=LAG_EPILOG)(lag)
app.command("reset-offsets", epilog=RESET_EPILOG)(reset_offsets)
app.command("translate", epilog=TRANSLATE_EPILOG)(translate)


LIST_EPILOG = """
\b
Examples:
  kbroker groups list
  kbroker groups list --json
"""


@app.command("list", epilog=LIST_EPILOG)
def list_groups(
    states: Annotated[
        list[str] | None, typer.Option("--state", help="Only in this state; repeatable.")
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", help="Only classic, consumer, share or streams; repeatable."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """List groups with their state."""
    rows = [
        row
        for row in run(_list(bootstrap))
        if _is_wanted(row["state"], states) and _is_wanted(row["type"], types)
    ]
    show(rows, ("group", "state", "protocol", "type"), as_json=as_json)


def _is_wanted(cell: Cell, wanted: list[str] | None) -> bool:
    return not wanted or str(cell).lower() in [each.lower() for each in wanted]


async def _list(bootstrap: str) -> list[dict[str, Cell]]:
    async with connect(bootstrap) as client:
        return await listed_groups(client)


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
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Delete groups with all that they have committed."""
    confirm(f"delete {', '.join(names)} with all committed offsets", yes=yes)
    deleted, failures = run(_delete(bootstrap, names))
    report(deleted, lambda row: f"deleted {row['group']}", as_json=as_json)
    report_failures(failures)


async def _delete(
    bootstrap: str, names: list[str]
) -> tuple[list[dict[str, Cell]], list[Exception]]:
    from kbroker.client.cluster import check
    from kbroker.protocol.errors import KafkaError
    from kbroker.protocol.messages.coordinators.groups import (
        DeleteGroupsRequest,
        DeleteGroupsResponse,
    )

    deleted: list[dict[str, Cell]] = []
    failures: list[Exception] = []
    async with connect(bootstrap) as client:
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
                deleted.append({"group": name})
    return deleted, failures


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
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Delete the committed offsets of a group for topics."""
    confirm(f"delete the offsets of {name} for {', '.join(topics)}", yes=yes)
    run(_delete_offsets(bootstrap, name, topics))
    about = f"for {counted(len(topics), 'topic')}: {', '.join(topics)}"
    rows: list[dict[str, Cell]] = [{"group": name, "topics": topics}]
    report(rows, lambda row: f"deleted the offsets of {name} {about}", as_json=as_json)


async def _delete_offsets(bootstrap: str, name: str, topics: list[str]) -> None:
    from kbroker.client.cluster import check
    from kbroker.protocol.messages.coordinators.offsets import (
        OffsetDeleteRequest,
        OffsetDeleteResponse,
    )

    async with connect(bootstrap) as client:
        if await client.retry(lambda: is_share_group(client, name)):
            await client.retry(lambda: delete_share_offsets(client, name, topics))
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
    """Write committed offsets as lines that reset-offsets reads.

    A line has topic,partition,offset.
    """
    rows = run(_export(bootstrap, name))
    if as_json:
        show(rows, ("group", "topic", "partition", "committed"), as_json=True)
    else:
        write_offsets(rows, "committed")
    if not rows:
        note(f"{name} has no committed offsets")


async def _export(bootstrap: str, name: str) -> list[dict[str, Cell]]:
    async with connect(bootstrap) as client:
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
