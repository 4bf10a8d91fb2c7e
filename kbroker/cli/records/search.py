"""`kbroker search`: records whose key, value, headers and time are as wanted."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from kbroker.cli.output import counted, note, progress
from kbroker.cli.records.formats import FORMAT_EPILOG, Template, record_line
from kbroker.cli.records.offset_ranges import BEGINNING, Bound, OffsetRange, Point
from kbroker.cli.records.source import (
    Partitions,
    ReadCommitted,
    RecordSource,
    Regex,
    Topics,
    Wanted,
)
from kbroker.cli.session import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    connect,
    moment,
    properties,
    run,
)

if TYPE_CHECKING:
    from kbroker.cli.records.formats import RecordLine
    from kbroker.client.consumer import ConsumedRecord, ConsumerConfig

MAX_SCAN: Final = 1_000_000
EPILOG = f"""
--key, --value and --header are regular expressions that match anywhere; all that are given have to
match. Times are 2026-01-31T12:00:00 (UTC), ms since 1970, or -15m, -2h, -1d for a time before now.
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

KeyPattern = Annotated[
    str | None, typer.Option("--key", "-k", metavar="REGEX", help="What the key matches.")
]
ValuePattern = Annotated[
    str | None, typer.Option("--value", "-v", metavar="REGEX", help="What the value matches.")
]
HeaderPatterns = Annotated[
    list[str] | None,
    typer.Option(
        "--header", "-H", metavar="NAME[=REGEX]", help="A header, and its value; repeatable."
    ),
]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Not before this.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Before this.")]
MaxScan = Annotated[
    int, typer.Option("--max-scan", min=0, help="Read so many records at most; 0 for all.")
]
MaxMessages = Annotated[
    int | None, typer.Option("--max-messages", "-n", min=1, help="Stop after so many are found.")
]


class Query(NamedTuple):
    """What a record has to be like; None for anything. headers: name, and pattern of the value.
    since_ms is in it, until_ms is not.
    """

    key: re.Pattern[bytes] | None = None
    value: re.Pattern[bytes] | None = None
    headers: Sequence[tuple[bytes, re.Pattern[bytes] | None]] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    def matches(self, record: ConsumedRecord) -> bool:
        """Whether all of it holds. A null matches no pattern."""
        if self.since_ms is not None and record.timestamp < self.since_ms:
            return False
        if self.until_ms is not None and record.timestamp >= self.until_ms:
            return False
        return (
            _matches(self.key, record.key)
            and _matches(self.value, record.value)
            and all(
                any(name == wanted and _matches(pattern, value) for name, value in record.headers)
                for wanted, pattern in self.headers
            )
        )

    @property
    def offsets(self) -> OffsetRange:
        """What of a partition is to be read."""
        start, stop = self.since_ms, self.until_ms
        return OffsetRange(
            BEGINNING if start is None else Bound(Point.TIME, start),
            None if stop is None else Bound(Point.TIME, stop),
        )


def _matches(pattern: re.Pattern[bytes] | None, data: bytes | None) -> bool:
    return pattern is None or (data is not None and pattern.search(data) is not None)


@app.command("search", epilog=EPILOG)
def search(
    topics: Topics,
    key: KeyPattern = None,
    value: ValuePattern = None,
    header: HeaderPatterns = None,
    since: Since = None,
    until: Until = None,
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", "-i", help="In keys, values and headers.")
    ] = False,
    regex: Regex = False,
    partition: Partitions = None,
    max_scan: MaxScan = MAX_SCAN,
    max_messages: MaxMessages = None,
    read_committed: ReadCommitted = False,
    template: Template = "%v",
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Find records by key, value, header or time."""
    query = Query(
        key=_pattern(key, "--key", ignore_case),
        value=_pattern(value, "--value", ignore_case),
        headers=[_header(text, ignore_case) for text in header or ()],
        since_ms=None if since is None else moment(since, "--since"),
        until_ms=None if until is None else moment(until, "--until"),
    )
    wanted = Wanted.of(topics, partition, regex=regex)
    show = record_line(template, as_json=as_json)
    found, scanned, is_whole = run(
        _search(bootstrap, wanted, query, max_scan, max_messages, read_committed, show),
        spinner=False,
    )
    of_them = f"{found:,} of {counted(scanned, 'record')}"
    if not is_whole:
        note(f"kbroker: stopped at --max-scan, not at the end: found {of_them}")
        raise typer.Exit(1)
    note(f"found {of_them}")


def _pattern(text: str | None, option: str, ignore_case: bool) -> re.Pattern[bytes] | None:
    if text is None:
        return None
    try:
        return re.compile(text.encode(), re.DOTALL | (re.IGNORECASE if ignore_case else 0))
    except re.error as error:
        raise typer.BadParameter(f"{text}: {error}", param_hint=option) from None


def _header(text: str, ignore_case: bool) -> tuple[bytes, re.Pattern[bytes] | None]:
    name, equals, value = text.partition("=")
    if not name:
        raise typer.BadParameter(f"{text}: write it as name=regex", param_hint="--header")
    return name.encode(), _pattern(value if equals else None, "--header", ignore_case)


async def _search(
    bootstrap: str,
    wanted: Wanted,
    query: Query,
    max_scan: int,
    max_messages: int | None,
    read_committed: bool,
    show: RecordLine,
) -> tuple[int, int, bool]:
    """How many were found and read, and whether all were read or enough were found."""
    write = sys.stdout.buffer.write
    found = scanned = 0
    async with connect(bootstrap) as client:
        source = RecordSource(client, _config(read_committed), wanted, query.offsets)
        try:
            await source.open(exit_at_end=True)
            with progress("records searched", visible=not sys.stdout.isatty()) as done:
                while not source.is_done:
                    records = await source.poll()
                    for record in records:
                        if max_scan and scanned == max_scan:
                            return found, scanned, False
                        scanned += 1
                        if query.matches(record):
                            write(show(record))
                            found += 1
                            if found == max_messages:
                                return found, scanned, True
                    sys.stdout.buffer.flush()
                    done.advance(len(records))
        finally:
            sys.stdout.buffer.flush()
            source.close()
    return found, scanned, True


def _config(read_committed: bool) -> ConsumerConfig:
    from dataclasses import replace

    from kbroker.client.cluster import READ_COMMITTED
    from kbroker.client.consumer import ConsumerConfig

    config = properties().consumer(ConsumerConfig(auto_offset_reset="earliest"))
    return replace(config, isolation_level=READ_COMMITTED) if read_committed else config
