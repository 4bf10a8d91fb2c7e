"""`kbroker resend`: records of a range again, to another topic or cluster; the copying itself is in
`resending`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from kbroker.cli.console.client_properties import ISOLATION_LEVEL
from kbroker.cli.console.option_groups import with_groups
from kbroker.cli.console.output import Cell, counted, note, report, show
from kbroker.cli.records.offset_ranges import RANGE_EPILOG
from kbroker.cli.records.produce import CompressionOption
from kbroker.cli.records.query import QUERY_EPILOG, QueryOptions
from kbroker.cli.records.resending import (
    CopiedByPartition,
    OtherCluster,
    Partitioning,
    PlannedRecord,
    ResendDestination,
    Resending,
    parse_partitioning,
)
from kbroker.cli.records.source import OffsetText, Selection, consumer_config, offset_range
from kbroker.cli.session import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    Yes,
    confirm,
    not_empty,
    properties,
    run,
)

EPILOG: Final = f"""
Keys, values, headers, timestamps and partitions stay as they are; without --offset and --since all
records up to the end as it is now are sent, but those of aborted and open transactions
(-X isolation.level=read_uncommitted sends them). The records of a partition stay in order, and none
is written twice by a retry. With --transactional-id all of them are one transaction: consumers that
read committed records see all of them or none. -X is for the cluster of SOURCE, and for that of
TARGET unless a --to- option names another one.
{RANGE_EPILOG}{QUERY_EPILOG}
\b
Examples:
  kbroker resend orders orders-copy
  kbroker resend orders:0 orders-copy --offset 100..200 --yes
  kbroker resend orders orders-new --to-partition key --since -1h --key '^eu-'
  kbroker resend orders orders --to-bootstrap other:9092 --transactional-id copy-orders
  kbroker resend 'orders-.*' archive --regex --to-partition 0 --dry-run
"""
app = typer.Typer(add_completion=False, rich_markup_mode=None)

Source = Annotated[
    str,
    typer.Argument(metavar="SOURCE[:P,P]", help="A topic or partitions of it.", callback=not_empty),
]
TargetOption = Annotated[
    str, typer.Argument(metavar="TARGET", help="A topic that exists.", callback=not_empty)
]
ToBootstrap = Annotated[
    str | None,
    typer.Option("--to-bootstrap", metavar="HOST:PORT,...", help="The cluster of TARGET."),
]
ToCommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--to-command-config", metavar="FILE", help="Kafka's client properties for that cluster."
    ),
]
ToProfile = Annotated[
    str | None, typer.Option("--to-profile", metavar="NAME", help="The profile of that cluster.")
]
ToPartition = Annotated[
    str,
    typer.Option(
        "--to-partition", metavar="keep|key|N", help="As in SOURCE, by key, or this partition."
    ),
]
TransactionalId = Annotated[
    str | None,
    typer.Option(
        "--transactional-id", metavar="ID", callback=not_empty, help="Write one transaction."
    ),
]


@app.command("resend", epilog=EPILOG)
@with_groups
def resend(
    source: Source,
    target: TargetOption,
    selection: Selection,
    query: QueryOptions,
    offset: OffsetText = None,
    to_bootstrap: ToBootstrap = None,
    to_command_config: ToCommandConfig = None,
    to_profile: ToProfile = None,
    to_partition: ToPartition = Partitioning.KEEP.value,
    transactional_id: TransactionalId = None,
    compression: CompressionOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be read.")
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Copy records to another topic or cluster."""
    wanted_records = query.query()
    other = OtherCluster.of(to_bootstrap, to_command_config, to_profile)
    destination = ResendDestination(
        topic=target,
        bootstrap=bootstrap if other is None else other.bootstrap,
        properties=None if other is None else other.properties,
        partitioning=parse_partitioning(to_partition),
        transactional_id=transactional_id,
        compression=compression,
    )
    resending = Resending(
        bootstrap=bootstrap,
        wanted=selection.wanted([source]),
        config=consumer_config(
            "earliest", read_committed=properties().get(ISOLATION_LEVEL) is None
        ),
        offsets=offset_range(offset, from_beginning=False, otherwise=wanted_records.offsets),
        query=wanted_records,
        max_messages=selection.max_messages,
        destination=destination,
    )
    plan = run(resending.plan())
    if dry_run:
        show([row._asdict() for row in plan], PlannedRecord._fields, as_json=as_json)
        return
    _resend(resending, plan, yes=yes, as_json=as_json)


def _resend(
    resending: Resending, plan: Sequence[PlannedRecord], *, yes: bool, as_json: bool
) -> None:
    destination = resending.destination
    count = sum(row.records for row in plan)
    if not count:
        note("there is nothing to resend")
        return
    where = f"{destination.topic} at {destination.bootstrap}"
    topics = ", ".join(dict.fromkeys(row.topic for row in plan))
    confirm(f"write {_at_most(resending, count)} of {topics} to {where}", yes=yes)
    began = time.monotonic()
    copied: CopiedByPartition = {}
    try:
        run(resending.copy(plan, copied), spinner=False)
    finally:
        rows = [asdict(copied[place]) for place in sorted(copied)]
        report(rows, _text, as_json=as_json)  # also of what stands there when an error ends it
    seconds = max(time.monotonic() - began, 0.001)
    written = sum(each.records for each in copied.values())
    note(f"{counted(written, 'record')} to {where} in {seconds:.1f} s")


def _at_most(resending: Resending, count: int) -> str:
    if resending.max_messages is not None:
        count = min(count, resending.max_messages)
    return f"up to {counted(count, 'record')}"


def _text(row: Mapping[str, Cell]) -> str:
    """A note about the records of one partition."""
    records = row["records"]
    many = counted(records if isinstance(records, int) else 0, "record")
    place = f"{row['topic']}-{row['partition']}"
    offsets = f"{row['first_offset']} to {row['last_offset']}"
    return f"{place}: {many} to {row['target']}, of offsets {offsets}"
