"""`kbroker topics offsets` and `delete-records`: where partitions begin and end, or where they are
at a time, and a new beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from kbroker.cli.console.output import Cell, note, report, report_failures, show
from kbroker.cli.console.partitions import (
    ChosenPartitions,
    chosen_partitions,
    existing_partitions,
    led_offsets,
    offsets_at,
    read_offsets,
)
from kbroker.cli.session import (
    DEFAULT_BOOTSTRAP,
    INT64_MAX,
    Bootstrap,
    Json,
    Yes,
    confirm,
    connect,
    moment,
    not_empty,
    run,
)
from kbroker.model import TopicPartition

if TYPE_CHECKING:
    from kbroker.client.cluster import Client

OFFSETS_EPILOG = """
--at is a time: 2026-01-31T12:00:00 (UTC), ms since 1970, or -15m, -2h, -1d for a time before now;
the offset is that of the first record at or after it. --latest-record shows the record with the
largest timestamp.

\b
Examples:
  kbroker topics offsets orders
  kbroker topics offsets orders:0,2 prices
  kbroker topics offsets orders --at -2h
"""
DELETE_RECORDS_EPILOG = """
Records before an offset are deleted from a partition, and its start offset moves there. Name it by
--before-offset, --before-time, --all, or in --from-file: lines of topic,partition,offset.

\b
Examples:
  kbroker topics delete-records orders --before-time -7d
  kbroker topics delete-records orders:0 --before-offset 1200 --yes
  kbroker topics delete-records --from-file offsets.csv --dry-run
"""
NamedPartitions = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC[:P,P]...", help="Topics or partitions.", callback=not_empty),
]
BeforeOffset = Annotated[
    int | None,
    typer.Option(
        "--before-offset", min=0, max=INT64_MAX, metavar="OFFSET", help="Those below this offset."
    ),
]
BeforeTime = Annotated[
    str | None,
    typer.Option("--before-time", metavar="TIME", help="Those before the first at this time."),
]
TO_THE_END: Final = -1
"""The offset of DeleteRecords that stands for the high watermark."""


def offsets(
    names: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC[:P,P]...", help="Topics or partitions.", callback=not_empty),
    ],
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Where they are at this time.")
    ] = None,
    latest_record: Annotated[
        bool, typer.Option("--latest-record", help="The record with the largest timestamp.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show where partitions begin and end, or offsets at a time."""
    from kbroker.client.cluster import MAX_TIMESTAMP

    if at is not None and latest_record:
        raise typer.BadParameter("give --at or --latest-record, and not both")
    chosen = [chosen_partitions(name, "TOPIC") for name in names]
    if at is None and not latest_record:
        rows = run(_bounds(bootstrap, chosen))
        show(rows, ("topic", "partition", "start", "end", "records"), as_json=as_json)
        return
    timestamp_ms = MAX_TIMESTAMP if at is None else moment(at, "--at")
    rows = run(_at(bootstrap, chosen, timestamp_ms))
    show(rows, ("topic", "partition", "offset", "timestamp"), as_json=as_json)


async def _bounds(bootstrap: str, chosen: Sequence[ChosenPartitions]) -> list[dict[str, Cell]]:
    from kbroker.client.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

    async with connect(bootstrap) as client:
        places = await existing_partitions(client, chosen)
        starts = await led_offsets(client, places, EARLIEST_TIMESTAMP)
        ends = await led_offsets(client, list(starts), LATEST_TIMESTAMP)
    return [
        {
            "topic": place.topic,
            "partition": place.partition,
            "start": starts[place].offset if place in ends else None,
            "end": ends[place].offset if place in ends else None,
            "records": ends[place].offset - starts[place].offset if place in ends else None,
        }
        for place in places
    ]


async def _ends(
    client: Client, places: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Start and end offsets."""
    from kbroker.client.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

    starts = await offsets_at(client, places, EARLIEST_TIMESTAMP)
    return starts, await offsets_at(client, places, LATEST_TIMESTAMP)


async def _at(
    bootstrap: str, chosen: Sequence[ChosenPartitions], timestamp_ms: int
) -> list[dict[str, Cell]]:
    from kbroker.client.cluster_view import OffsetAndTimestamp

    async with connect(bootstrap) as client:
        places = await existing_partitions(client, chosen)
        found = await led_offsets(client, places, timestamp_ms)
    rows: list[dict[str, Cell]] = []
    for place in places:
        at = found.get(place, OffsetAndTimestamp(-1, -1, -1))
        rows.append(
            {
                "topic": place.topic,
                "partition": place.partition,
                "offset": at.offset if at.offset >= 0 else None,
                "timestamp": at.timestamp if at.timestamp >= 0 else None,
            }
        )
    return rows


def delete_records(
    names: NamedPartitions = None,
    before_offset: BeforeOffset = None,
    before_time: BeforeTime = None,
    every: Annotated[bool, typer.Option("--all", help="Every record.")] = False,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", help="Lines of topic,partition,offset.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be deleted.")
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Delete the oldest records of partitions."""
    targets = (before_offset is not None, before_time is not None, every, from_file is not None)
    if sum(targets) != 1:
        raise typer.BadParameter(
            "give one of --before-offset, --before-time, --all and --from-file"
        )
    if bool(names) == (from_file is not None):
        raise typer.BadParameter("name topics, or give --from-file, which names them")
    chosen = [chosen_partitions(name, "TOPIC") for name in names or ()]
    timestamp_ms = None if before_time is None else moment(before_time, "--before-time")
    listed = None if from_file is None else read_offsets(from_file)
    chosen += [ChosenPartitions(place.topic, [place.partition]) for place in listed or ()]
    fixed = TO_THE_END if every else before_offset
    rows = run(_planned(bootstrap, chosen, fixed, timestamp_ms, listed))
    if dry_run:
        show([row._asdict() for row in rows], PlannedDeletion._fields, as_json=as_json)
        return
    count = sum(row.records for row in rows)
    topics = ", ".join(dict.fromkeys(row.topic for row in rows))
    confirm(f"delete {count:,} records of {topics}", yes=yes)
    done, failures = run(_delete(bootstrap, rows))
    report(
        done,
        lambda row: f"{row['topic']}-{row['partition']} begins at {row['start']} now",
        as_json=as_json,
    )
    report_failures(failures)
    if not rows:
        note("there is nothing to delete")


class PlannedDeletion(NamedTuple):
    """What becomes of one partition. records: how many offsets lie before its new start."""

    topic: str
    partition: int
    start: int
    new_start: int
    records: int

    @property
    def place(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


async def _planned(
    bootstrap: str,
    chosen: Sequence[ChosenPartitions],
    fixed: int | None,
    timestamp_ms: int | None,
    listed: Mapping[TopicPartition, int] | None,
) -> list[PlannedDeletion]:
    """The new start offset of each partition, between its start and its end."""
    async with connect(bootstrap) as client:
        places = await existing_partitions(client, chosen)
        wanted = dict.fromkeys(places, TO_THE_END if fixed is None else fixed) | dict(listed or {})
        starts, ends = await _ends(client, places)
        if timestamp_ms is not None:
            wanted = await offsets_at(client, places, timestamp_ms)
    rows: list[PlannedDeletion] = []
    for place in places:
        offset = ends[place] if wanted[place] < 0 else wanted[place]
        offset = max(min(offset, ends[place]), starts[place])
        rows.append(PlannedDeletion(*place, starts[place], offset, offset - starts[place]))
    return rows


async def _delete(
    bootstrap: str, planned: Sequence[PlannedDeletion]
) -> tuple[list[dict[str, Cell]], list[Exception]]:
    from kbroker.client.cluster import check
    from kbroker.protocol.errors import KafkaError
    from kbroker.protocol.messages.admin.topics import DeleteRecordsRequest, DeleteRecordsResponse

    done: list[dict[str, Cell]] = []
    failures: list[Exception] = []
    async with connect(bootstrap) as client:
        for row in planned:
            place = row.place
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsRequest.DeleteRecordsTopic(
                        name=place.topic,
                        partitions=[
                            DeleteRecordsRequest.DeleteRecordsPartition(
                                partition_index=place.partition, offset=row.new_start
                            )
                        ],
                    )
                ],
                timeout_ms=30_000,
            )

            async def ask(
                place: TopicPartition = place, request: DeleteRecordsRequest = request
            ) -> int:
                response = await client.to_leader(place, request, DeleteRecordsResponse)
                (found,) = response.topics[0].partitions
                check(found.error_code, f"{place}: records were not deleted")
                return found.low_watermark

            try:
                start = await client.retry(ask)
            except KafkaError as error:
                failures.append(error)
            else:
                done.append({"topic": place.topic, "partition": place.partition, "start": start})
    return done, failures
