"""`kbroker groups lag`: one line per group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

import typer

from kbroker.cli.console.output import Cell, note, report_failures, show
from kbroker.cli.groups.descriptions import partition_rows
from kbroker.cli.groups.listing import listed_groups
from kbroker.cli.groups.views import group_view
from kbroker.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, Json, connect, not_empty, run

LAG_EPILOG = """
Without names all groups are shown. Topics and partitions are those with a committed offset or a
member; lag is their sum, max lag that of the partition furthest behind.

\b
Examples:
  kbroker groups lag
  kbroker groups lag payments billing --json
"""


def lag(
    names: Annotated[
        list[str] | None, typer.Argument(help="One group or several.", callback=not_empty)
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show the members and the lag of groups, a line each."""
    rows, failures = run(_lag(bootstrap, names or []))
    columns = ("group", "state", "members", "topics", "partitions", "lag", "max_lag")
    show(rows, columns, as_json=as_json)
    report_failures(failures)
    if not rows and not failures:
        note("there are no groups")


async def _lag(
    bootstrap: str, names: Sequence[str]
) -> tuple[list[dict[str, Cell]], list[Exception]]:
    from kbroker.protocol.errors import KafkaError

    rows: list[dict[str, Cell]] = []
    failures: list[Exception] = []
    async with connect(bootstrap) as client:
        asked = names or [str(row["group"]) for row in await listed_groups(client)]
        for name in asked:
            try:
                view = await client.retry(partial(group_view, client, name))
                partitions = await partition_rows(client, name, view)
            except KafkaError as error:
                failures.append(error)
                continue
            summary: dict[str, Cell] = {
                "group": name,
                "state": view.state,
                "members": len(view.members),
            }
            rows.append(summary | lag_of(partitions))
    return rows, failures


def lag_of(partitions: Sequence[Mapping[str, Cell]]) -> dict[str, Cell]:
    """The sums over the rows of a group's partitions. A lag that is not known counts as none."""
    lags = [each["lag"] for each in partitions]
    known = [each for each in lags if isinstance(each, int)]
    return {
        "topics": len({each["topic"] for each in partitions}),
        "partitions": len(partitions),
        "lag": sum(known) if known or not lags else None,
        "max_lag": max(known, default=None),
    }
