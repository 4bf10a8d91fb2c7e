"""Totals and lines of progress."""

from __future__ import annotations

import io
import json

from spark_jobs.progress import Progress, Reporter, Style, Totals, parse_progress

ENTRY = {
    "batchId": 3,
    "numInputRows": 500,
    "processedRowsPerSecond": 250.0,
    "durationMs": {"triggerExecution": 2000},
    "sources": [
        {
            "endOffset": {"t": {"0": 700, "1": 10}},
            "latestOffset": '{"t": {"0": 1700, "1": 10}}',
        }
    ],
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(style: Style, stream: io.StringIO) -> str:
    progress = Progress("archive", Reporter(style, stream))
    progress.totals.files = 4
    progress.batch(ENTRY)
    progress.ended()
    progress.wait()
    return stream.getvalue()


def test_a_batch() -> None:
    batch = parse_progress(ENTRY)
    assert (batch.batch_id, batch.rows, batch.lag, batch.duration_ms) == (3, 500, 1000, 2000)
    assert batch.seconds_behind == 4.0
    assert batch.end == {"t": {0: 700, 1: 10}}


def test_a_batch_without_rows_or_rates() -> None:
    batch = parse_progress({**ENTRY, "numInputRows": 0, "processedRowsPerSecond": "NaN"})
    assert (batch.rows_per_second, batch.seconds_behind) == (0.0, None)
    entry = {"batchId": 0, "numInputRows": 0, "sources": [{"endOffset": None}]}
    assert parse_progress(entry).seconds_behind == 0.0


def test_rows_that_only_the_sources_have() -> None:
    sources = [{"endOffset": None, "numInputRows": rows} for rows in (30, 4)]
    assert parse_progress({"batchId": 0, "sources": sources}).rows == 34


def test_sources_that_are_not_kafkas() -> None:
    """And of a partition that is read twice the lower offset counts."""
    kafka = [{"endOffset": {"t": {"0": 7}}}, {"endOffset": '{"t": {"0": 5, "1": 3}}'}]
    others = [7, "8", "a text", {"logOffset": 3}, {"0": {"value": 5}}, {"t": {"2": None}}, None]
    sources = [*kafka, *({"endOffset": other} for other in others), {}]
    batch = parse_progress({"batchId": 0, "numInputRows": 0, "sources": sources})
    assert batch.end == {"t": {0: 5, 1: 3}}


def test_more_batches_than_spark_remembers() -> None:
    """`recentProgress` has 100 of them: of 100,000 records it told of 59,200."""
    totals = Totals()
    for _ in range(250):
        totals.add(parse_progress(ENTRY))
    totals.add(parse_progress({**ENTRY, "numInputRows": 0}))
    assert (totals.rows, totals.batches) == (125_000, 250)
    assert totals.end == {"t": {0: 700, 1: 10}}


def test_the_line_of_a_terminal() -> None:
    line = "archive  batch 3  250 rows/s  lag 1,000  4 s behind  4 files"
    assert shown("auto", Terminal()) == f"\r{line}\n"
    assert shown("line", io.StringIO()) == f"{line}\n"


def test_json_elsewhere_and_nothing_by_default() -> None:
    assert shown("auto", io.StringIO()) == ""
    assert shown("none", Terminal()) == ""
    assert json.loads(shown("json", io.StringIO())) == {
        "query": "archive",
        "batch": 3,
        "rows": 500,
        "rows_per_second": 250.0,
        "lag": 1000,
        "seconds_behind": 4.0,
        "files": 4,
        "duration_ms": 2000,
        "end_offsets": {"t": {"0": 700, "1": 10}},
    }


def test_what_is_said_meanwhile() -> None:
    stream = Terminal()
    Reporter("auto", stream).say("starting")
    assert stream.getvalue() == "starting\n"
    quiet = io.StringIO()
    Reporter("auto", quiet).say("starting")
    assert quiet.getvalue() == ""
