"""`kbroker search`: records whose key, value, headers and time are as wanted."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from kbroker.cli.console.option_groups import with_groups
from kbroker.cli.console.output import counted, note, progress
from kbroker.cli.records.formats import FORMAT_EPILOG, Printing
from kbroker.cli.records.query import QUERY_EPILOG, MatchingRecords, Query, QueryOptions
from kbroker.cli.records.source import (
    ReadCommitted,
    RecordSource,
    Selection,
    Topics,
    Wanted,
    consumer_config,
)
from kbroker.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, connect, run

if TYPE_CHECKING:
    from kbroker.cli.records.formats import RecordLine
    from kbroker.client.consumer import ConsumerConfig

MAX_SCAN: Final = 1_000_000
EPILOG = f"""{QUERY_EPILOG}
Reading begins at the first record at or after --since, and ends at the first at or after --until,
at the end as it is now, or after --max-scan records, which is said, with exit code 1.
{FORMAT_EPILOG}
\b
Examples:
  kbroker search births --key ada
  kbroker search orders --value 'total: [0-9]{{4}}' --since -1h --max-scan 50000
  kbroker search 'orders-.*' --regex --header source=import --max-messages 10 --json
  kbroker search births --value '^18' --format '%t %p %o %k'
"""
app = typer.Typer(add_completion=False, rich_markup_mode=None)

MaxScan = Annotated[
    int, typer.Option("--max-scan", min=0, help="Read so many records at most; 0 for all.")
]


class _Limits(NamedTuple):
    """When to stop, as for `MatchingRecords`."""

    max_scan: int
    max_messages: int | None


@app.command("search", epilog=EPILOG)
@with_groups
def search(
    topics: Topics,
    query: QueryOptions,
    selection: Selection,
    printing: Printing,
    max_scan: MaxScan = MAX_SCAN,
    read_committed: ReadCommitted = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Find records by key, value, header or time."""
    wanted = selection.wanted(topics)
    show = printing.record_line()
    config = consumer_config("earliest", read_committed=read_committed)
    limits = _Limits(max_scan, selection.max_messages)
    matching = run(_search(bootstrap, wanted, query.query(), config, limits, show), spinner=False)
    of_them = f"{matching.found:,} of {counted(matching.scanned, 'record')}"
    if not matching.is_whole:
        note(f"kbroker: stopped at --max-scan, not at the end: found {of_them}")
        raise typer.Exit(1)
    note(f"found {of_them}")


async def _search(
    bootstrap: str,
    wanted: Wanted,
    query: Query,
    config: ConsumerConfig,
    limits: _Limits,
    show: RecordLine,
) -> MatchingRecords:
    """How many were found and read, and whether all were read or enough were found."""
    write = sys.stdout.buffer.write
    async with connect(bootstrap) as client:
        source = RecordSource(client, config, wanted, query.offsets)
        matching = MatchingRecords(
            source, query, max_scan=limits.max_scan, max_messages=limits.max_messages
        )
        try:
            await source.open(exit_at_end=True)
            with progress("records searched", visible=not sys.stdout.isatty()) as done:
                shown = 0
                async for records in matching:
                    for record in records:
                        write(show(record))
                    sys.stdout.buffer.flush()
                    done.advance(matching.scanned - shown)
                    shown = matching.scanned
        finally:
            source.close()
    return matching
