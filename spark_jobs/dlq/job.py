"""`dlq`: records that can be used to one topic, the others to a dead letter topic.

Both are written in one transaction of the exactly-once sink, which is committed if they are as many
as Spark has read: every record is in one of the two topics, once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..arrow_map import map_in_arrow
from ..cluster import Topics
from ..copying.opening import Opened, describe_start, opened
from ..copying.start import query_id
from ..copying.stream import run_copy
from ..copying.targets import FOR_EVER, check_target, create_copy, find_target, retention_of
from ..decoding.decoder import Decoder
from ..decoding.spark_schema import json_schema
from ..exactly_once.driver import QueryDriver, QuerySettings, TaskReport
from ..exactly_once.errors import SinkError
from ..exactly_once.frames import Layout, arranged
from ..exactly_once.grant import Grant
from ..exactly_once.source_offsets import CheckpointOffsets
from ..exactly_once.tasks import REPORT_SCHEMA, WriteTask, reports_of
from ..exactly_once.topics import TargetTopic, describe_topic
from ..progress import Reporter, Totals
from ..topic_checks import counted
from ..wire.client import BlockingClient, ClusterAddress
from .checks import Checks
from .headers import dead_letter_bytes
from .options import DlqOptions
from .records import COLUMNS, ROUTED_SCHEMA, Route

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEEP: Final = Layout(None, "keep")
DEFAULT_MAX_BYTES: Final = 1_048_588
"""max.message.bytes of a topic by default."""
COUNT_S: Final = 30.0
"""How long the count of a batch may take to arrive; then its rows are counted once more."""


@dataclass(frozen=True, slots=True)
class DlqReport:
    """What a run did: records read, and by where they are now. totals: as Spark counted them."""

    options: DlqOptions
    totals: Totals
    used: int
    dead: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "rows": self.used + self.dead,
            "used": self.used,
            "dead": self.dead,
            "batches": self.totals.batches,
            "end_offsets": self.totals.end,
        }

    def to_text(self) -> str:
        """The line at the end of a run."""
        options = self.options
        return (
            f"read {counted(self.used + self.dead, 'record')} of {options.topic}: "
            f"{self.used:,} to {options.to_topic}, {self.dead:,} to {options.dead_letters}, in "
            f"{counted(self.totals.batches, 'batch')}"
        )


@dataclass
class DlqBatches:
    """Writes batches. Picklable. records: written by this process, by topic."""

    settings: QuerySettings
    servers: str
    route: Route
    query_id: str
    end_offsets: CheckpointOffsets
    records: dict[str, int] = field(default_factory=dict)
    _driver: QueryDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}

    def __call__(self, frame: DataFrame, batch_id: int, topics: Topics) -> None:
        """See `BatchWriter`."""
        if self._driver is None:
            self._driver = QueryDriver(BlockingClient(ClusterAddress(self.servers)), self.settings)
        written: dict[str, int] = {}
        report = self._driver.write_batch(
            batch_id,
            lambda grant: self._write(frame, grant, written),
            query_id=self.query_id,
            end_offsets=self.end_offsets(batch_id),
        )
        if report.attempts:
            for topic, count in written.items():
                self.records[topic] = self.records.get(topic, 0) + count

    def close(self) -> None:
        """See `BatchWriter`."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def tally(self) -> dict[str, int]:
        """See `BatchWriter`: records by topic."""
        return self.records

    def take(self, tally: Mapping[str, int]) -> None:
        """See `BatchWriter`."""
        self.records |= tally

    def _write(
        self, frame: DataFrame, grant: Grant, written: dict[str, int]
    ) -> Sequence[TaskReport]:
        """The tasks of one attempt. written: becomes the records by topic. Raises SinkError if they
        are not as many as were read.
        """
        from pyspark.sql import functions as F

        read = RowCount(frame)
        time = F.unix_millis("timestamp").alias("timestamp")
        rows = read.observed.select(
            *(time if name == "timestamp" else F.col(name) for name in COLUMNS)
        )
        routed = map_in_arrow(rows, self.route, ROUTED_SCHEMA)
        counts = {topic.name: topic.partition_count for topic in grant.topics.values()}
        tasks = map_in_arrow(arranged(routed, KEEP, counts), WriteTask(grant, None), REPORT_SCHEMA)
        reports = reports_of(tasks.collect())
        if any(report.failure is not None for report in reports):
            return reports
        written.clear()
        for report in reports:
            for place, count in report.records.items():
                written[place.topic] = written.get(place.topic, 0) + count
        check_balance(read.value(), written)
        return reports


class RowCount:
    """The rows of a frame, counted by Spark while they are read. observed: the frame to be used."""

    def __init__(self, frame: DataFrame) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        self._frame = frame
        self._observation = Observation()
        self.observed = frame.observe(self._observation, F.count(F.lit(1)).alias("rows"))
        self._counted: list[int] = []

    def value(self) -> int:
        """To be called after the job that read the frame."""
        # The count comes by Spark's listener bus, which drops events when it is overloaded.
        waiting = threading.Thread(target=self._wait, name="row count", daemon=True)
        waiting.start()
        waiting.join(COUNT_S)
        return self._counted[0] if self._counted else self._frame.count()

    def _wait(self) -> None:
        with suppress(Exception):  # py4j's; the rows are counted once more then
            self._counted.append(int(self._observation.get["rows"]))


def check_balance(rows_read: int, written: dict[str, int]) -> None:
    """Raises SinkError unless as many records were written as read."""
    total = sum(written.values())
    if total != rows_read:
        shown = ", ".join(f"{count} to {topic}" for topic, count in sorted(written.items()))
        raise SinkError(
            f"{rows_read} records were read and {total} written ({shown or 'none'}): nothing of "
            "the batch is committed"
        )


def describe_check(options: DlqOptions) -> str:
    """What a start would do, in one line; nothing is changed. Raises JobError or StartRefused."""
    options.decoding.check(options.topic)
    said = describe_start(options.stream)
    client = BlockingClient(ClusterAddress(options.bootstrap_servers))
    try:
        for name in (options.to_topic, options.dead_letters):
            if find_target(client, name) is None:
                said += f"; topic {name} is created"
    finally:
        client.close()
    return said


def dlq(
    spark: SparkSession,
    options: DlqOptions,
    *,
    reporter: Reporter | None = None,
    stop: threading.Event | None = None,
) -> DlqReport:
    """Run `dlq` or `dlq retry`: to the end of what there is now, or with a trigger until `stop` is
    set. Raises StartRefused if targets, checkpoint and source do not fit together, JobError if the
    query failed; what was committed stays.
    """
    decoder = _decoder(spark, options)
    with opened(options.stream) as copy:
        target, notes = _prepared(options, copy)
        checks = Checks(
            options.max_record_bytes or target.max_message_bytes or DEFAULT_MAX_BYTES,
            options.requires_key,
            decoder,
        )
        batches = _batches(options, copy, checks)
        totals = run_copy(spark, copy, batches, reporter=reporter, stop=stop)
    return DlqReport(
        options,
        totals,
        batches.records.get(options.to_topic, 0),
        batches.records.get(options.dead_letters, 0),
        (*copy.notes, *notes),
    )


def _decoder(spark: SparkSession, options: DlqOptions) -> Decoder | None:
    """Of the topic's values; None for any. Raises JobError."""
    decoding = options.decoding
    if decoding.decode == "confluent-avro":
        return decoding.framed()
    return decoding.typed(options.topic, json_schema(spark, decoding))


def _batches(options: DlqOptions, copy: Opened, checks: Checks) -> DlqBatches:
    stream = options.stream
    return DlqBatches(
        QuerySettings(
            stream.query_name,
            tuple(dict.fromkeys((options.to_topic, options.dead_letters))),
            adopt_checkpoint=copy.is_adopted,
        ),
        stream.target_servers,
        Route(checks, options.to_topic, options.dead_letters, stream.query_name, options.is_retry),
        query_id(copy.identity),
        CheckpointOffsets(str(copy.query)),
    )


def _prepared(options: DlqOptions, copy: Opened) -> tuple[TargetTopic, list[str]]:
    """Both targets, created with as many partitions as the source if need be. Gives the target of
    the records that can be used, and notes.
    """
    count = len(copy.view.topics[options.topic].latest)
    client = BlockingClient(ClusterAddress(options.bootstrap_servers))
    notes: list[str] = []
    found: list[TargetTopic] = []
    try:
        source = describe_topic(client, options.topic, ["max.message.bytes"])
        retention = retention_of(client, options.topic)
        for name in (options.to_topic, options.dead_letters):
            topic = find_target(client, name)
            if topic is None:
                is_dead = name == options.dead_letters
                configs: dict[str, str] = {}
                if is_dead and "max.message.bytes" in source:
                    # Dead letters may be as large as in the source, and have headers besides.
                    largest = dead_letter_bytes(int(source["max.message.bytes"]))
                    configs["max.message.bytes"] = str(largest)
                kept = FOR_EVER if is_dead else retention
                topic, note = create_copy(client, name, count, configs, kept)
                notes.append(note)
            else:
                notes += check_target(client, topic, count, retention)
            found.append(topic)
    finally:
        client.close()
    return found[0], notes
