"""`kbroker groups members`: the members of groups of every type, and what is assigned to them."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from kbroker.cli.console.output import Cell, note, show
from kbroker.cli.groups.views import GroupView, group_view
from kbroker.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, Json, connect, not_empty, run

MEMBERS_EPILOG = """
Partitions are shown as topic-partition; of a member of a streams group, those of its active tasks.

\b
Examples:
  kbroker groups members payments
  kbroker groups members payments billing --json
"""


def members(
    names: Annotated[list[str], typer.Argument(help="One group or several.", callback=not_empty)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show the members of groups and their partitions."""
    views = run(_views(bootstrap, names))
    rows: list[dict[str, Cell]] = [
        {
            "group": name,
            "member": member.member_id,
            "instance": member.instance_id,
            "client_id": member.client_id,
            "host": member.host,
            "partitions": [str(place) for place in sorted(member.partitions)],
        }
        for name, view in views
        for member in view.members
    ]
    columns = ("group", "member", "instance", "client_id", "host", "partitions")
    show(rows, columns, as_json=as_json, wide=("member", "client_id", "host"), sections=("group",))
    for name, view in views:
        if not view.members:
            note(f"{name} has no members")


async def _views(bootstrap: str, names: list[str]) -> list[tuple[str, GroupView]]:
    async with connect(bootstrap) as client:
        return [(name, await client.retry(partial(group_view, client, name))) for name in names]
