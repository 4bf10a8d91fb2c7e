"""What a query did, summed as it happens, and the line or the JSON that says so meanwhile.

Spark's `recentProgress` has the last 100 batches only, so a listener sums. Its events come in order
and after the batch; `wait` returns when the last one is here.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

from .checkpoint import Offsets, kafka_offsets, merged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

Style = Literal["auto", "line", "json", "none"]


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One batch as Spark reports it. lag: records from its end to the end of the topics."""

    batch_id: int
    rows: int
    rows_per_second: float
    lag: int
    duration_ms: int
    end: Offsets

    @property
    def seconds_behind(self) -> float | None:
        """How long the lag takes at the batch's speed; None if that is not known."""
        if not self.lag:
            return 0.0
        return self.lag / self.rows_per_second if self.rows_per_second else None


def parse_progress(entry: Mapping[str, Any]) -> BatchProgress:
    """A batch out of Spark's JSON of a query's progress."""
    ends = []
    lag = 0
    for source in entry.get("sources", ()):
        reached, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        ends.append(reached)
        lag += sum(
            max(0, offset - reached.get(topic, {}).get(partition, 0))
            for topic, offsets in latest.items()
            for partition, offset in offsets.items()
        )
    rate = entry.get("processedRowsPerSecond")
    return BatchProgress(
        batch_id=int(entry["batchId"]),
        rows=_rows(entry),
        rows_per_second=float(rate) if isinstance(rate, int | float) else 0.0,
        lag=lag,
        duration_ms=int(entry.get("durationMs", {}).get("triggerExecution", 0)),
        end=merged(ends),
    )


def _rows(entry: Mapping[str, Any]) -> int:
    """Of all sources: their sum is not in what Spark Connect 4.0 tells of a query's last batch."""
    if "numInputRows" in entry:
        return int(entry["numInputRows"])
    return sum(int(source["numInputRows"]) for source in entry["sources"])


def _offsets(value: object) -> Offsets:
    """Of a source, empty unless it is Kafka's: some versions of Spark give its JSON as a text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    try:
        return kafka_offsets(value)
    except TypeError:
        return {}


@dataclass(slots=True)
class Totals:
    """The sums of one query's batches; batches: those with records. end: offsets reached."""

    rows: int = 0
    batches: int = 0
    files: int = 0
    size_bytes: int = 0
    end: Offsets = field(default_factory=dict)

    def add(self, batch: BatchProgress) -> None:
        """Count a batch."""
        self.rows += batch.rows
        self.batches += bool(batch.rows)
        for topic, offsets in batch.end.items():
            self.end.setdefault(topic, {}).update(offsets)


def line(name: str, batch: BatchProgress, files: int) -> str:
    """The line of a terminal."""
    behind = batch.seconds_behind
    return (
        f"{name}  batch {batch.batch_id}  {batch.rows_per_second:,.0f} rows/s  "
        f"lag {batch.lag:,}  {'?' if behind is None else f'{behind:,.0f}'} s behind  "
        f"{files:,} files"
    )


def json_line(name: str, batch: BatchProgress, files: int) -> str:
    """A batch as one line of JSON."""
    return json.dumps(
        {
            "query": name,
            "batch": batch.batch_id,
            "rows": batch.rows,
            "rows_per_second": round(batch.rows_per_second, 1),
            "lag": batch.lag,
            "seconds_behind": batch.seconds_behind,
            "files": files,
            "duration_ms": batch.duration_ms,
            "end_offsets": batch.end,
        }
    )


Record = Callable[[str, BatchProgress, int], None]
"""Takes the query's name, a batch, and the files of all its batches."""


class Reporter:
    """Shows progress on a stream: a line that is overwritten, lines of JSON, or nothing. record: is
    told of each batch besides.
    """

    def __init__(
        self, style: Style, stream: TextIO | None = None, record: Record | None = None
    ) -> None:
        self._record = record
        self._stream = stream if stream is not None else sys.stderr
        is_terminal = self._stream.isatty()
        self.style = ("line" if is_terminal else "none") if style == "auto" else style
        self._is_terminal = is_terminal
        self._shown = 0

    def show(self, name: str, batch: BatchProgress, files: int) -> None:
        """Report a batch."""
        if self._record is not None:
            self._record(name, batch, files)
        if self.style == "json":
            print(json_line(name, batch, files), file=self._stream, flush=True)
        elif self.style == "line":
            text = line(name, batch, files)
            if self._is_terminal:
                self._stream.write(f"\r{text.ljust(self._shown)}")
                self._stream.flush()
                self._shown = len(text)
            else:
                print(text, file=self._stream, flush=True)

    def say(self, text: str) -> None:
        """A line that stays, in a terminal only."""
        if self._is_terminal and self.style == "line":
            self.end()
            print(text, file=self._stream, flush=True)

    def end(self) -> None:
        """End the line that is overwritten."""
        if self._shown:
            self._stream.write("\n")
            self._stream.flush()
            self._shown = 0


class Progress:
    """Totals of the queries that are watched, by name."""

    def __init__(self, name: str, reporter: Reporter) -> None:
        self.totals = Totals()
        self._name = name
        self._reporter = reporter
        self._ended = threading.Event()

    def batch(self, entry: Mapping[str, Any]) -> None:
        """Count and show a batch, from Spark's JSON."""
        batch = parse_progress(entry)
        self.totals.add(batch)
        self._reporter.show(self._name, batch, self.totals.files)

    def idle(self) -> None:
        """Nothing to count."""

    def ended(self) -> None:
        """No batch follows."""
        self._ended.set()

    def wait(self, timeout_s: float = 10.0) -> None:
        """Until every batch was counted."""
        self._ended.wait(timeout_s)
        self._reporter.end()


class Watcher(Protocol):
    """What is told of a query, in Spark's listener thread: it must not take long."""

    def batch(self, entry: Mapping[str, Any]) -> None:
        """A batch was committed. entry: Spark's JSON of the query's progress."""
        ...

    def idle(self) -> None:
        """There was nothing to read for some seconds."""
        ...

    def ended(self) -> None:
        """No batch follows."""
        ...


def listen(
    spark: SparkSession,
    watcher: Watcher,
    *,
    query_name: str | None = None,
    run_id: str | None = None,
) -> StreamingQueryListener:
    """Have a session tell a watcher of one query; to be removed at its end with
    `spark.streams.removeListener`.

    query_name: of a query that will be started. run_id: of one that runs.
    """
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryListener,
    )

    class Listener(StreamingQueryListener):
        def __init__(self) -> None:
            self._run_id = run_id

        def onQueryStarted(self, event: QueryStartedEvent) -> None:
            if query_name is not None and event.name == query_name:
                self._run_id = str(event.runId)

        def onQueryProgress(self, event: QueryProgressEvent) -> None:
            if str(event.progress.runId) == self._run_id:
                watcher.batch(json.loads(event.progress.json))

        def onQueryIdle(self, event: QueryIdleEvent) -> None:
            if str(event.runId) == self._run_id:
                watcher.idle()

        def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
            if str(event.runId) == self._run_id:
                watcher.ended()

    listener = Listener()
    spark.streams.addListener(listener)
    return listener
