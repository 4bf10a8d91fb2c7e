"""The functions that Spark runs in its Python workers, one call per task."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kbroker.client.cluster import TopicPartition

from ..errors import JobError
from ..wire.client import BlockingClient
from .claims import Claims
from .driver import TaskReport
from .errors import Failure, TaskFailure
from .grant import Grant
from .partitioner import partition_for
from .rows import KEY, PARTITION, TOPIC, VALUE, binary_values
from .runs import Run, Span, joined

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row

    from .writer import TaskWriter

REPORT_SCHEMA: Final = (
    "topic string, partition int, records long, failure string, message string, runs string"
)
"""A row per partition that the task wrote to, or one row with its failure. runs: of the offset map,
as JSON, empty where the rows do not have their source offsets.
"""


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Writes the rows of a task with the columns of `rows` and yields its report.

    topic: of all rows, None if they have a column for it.
    """

    grant: Grant
    topic: str | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for `mapInArrow`. Raises AttemptRefused."""
        from pyspark import TaskContext

        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        yield report_rows(write_rows(self.grant, batches, topic=self.topic, task=task))


def write_rows(
    grant: Grant, batches: Iterable[pa.RecordBatch], *, topic: str | None, task: int
) -> TaskReport:
    """Write the rows and wait until all of them are acknowledged. task: number of the Spark
    partition. Raises AttemptRefused; every other failure of writing is in the report.
    """
    from .writer import TaskWriter  # which needs pyarrow

    client = BlockingClient(grant.address)
    writer = TaskWriter(grant, client, Claims(client, grant, task=task, attempt=uuid.uuid4().hex))
    sources: dict[TopicPartition, list[Span]] = {}
    try:
        for batch in batches:
            _write_batch(grant, writer, batch, topic, sources)
        records = writer.finish()
        targets = writer.target_offsets() if sources else {}
        runs = {place: joined(spans, targets[place]) for place, spans in sources.items()}
        return TaskReport(records, runs=runs)
    except TaskFailure as failure:
        return TaskReport(failure=failure.failure, message=failure.message)
    except JobError as error:  # no broker answers
        return TaskReport(failure=Failure.RESTART, message=str(error))
    finally:
        client.close()


def _write_batch(
    grant: Grant,
    writer: TaskWriter,
    batch: pa.RecordBatch,
    topic: str | None,
    sources: dict[TopicPartition, list[Span]],
) -> None:
    """sources: gets the source offsets of the rows, where the record batch has them."""
    from .blocks import add_sources, target_blocks

    try:
        for target, block, offsets in target_blocks(
            batch, topic=topic, now_ms=int(time.time() * 1000)
        ):
            _check_target(grant, target)
            writer.write(target, block)
            if offsets is not None:
                add_sources(sources.setdefault(target, []), offsets)
    except ValueError as error:  # rows that cannot be records
        raise TaskFailure(Failure.FATAL, str(error)) from error


def _check_target(grant: Grant, target: TopicPartition) -> None:
    topic = grant.topics.get(target.topic)
    if topic is None:
        raise TaskFailure(
            Failure.FATAL,
            f"a row has topic {target.topic}, which is none of {', '.join(sorted(grant.topics))}: "
            "name every topic for the sink",
        )
    if not 0 <= target.partition < topic.partition_count:
        raise TaskFailure(
            Failure.FATAL,
            f"a row has partition {target.partition}, but topic {topic.name} has partitions 0 to "
            f"{topic.partition_count - 1}: add partitions, or change the column partition",
        )


def report_rows(report: TaskReport) -> pa.RecordBatch:
    """A report in REPORT_SCHEMA."""
    import pyarrow as pa

    if report.failure is not None:
        columns: list[list[object]] = [
            [None],
            [None],
            [0],
            [report.failure.value],
            [report.message],
            [None],
        ]
    else:
        written = sorted(report.records.items())
        columns = [
            [partition.topic for partition, _ in written],
            [partition.partition for partition, _ in written],
            [records for _, records in written],
            [None] * len(written),
            [None] * len(written),
            [json.dumps(report.runs.get(partition, ())) for partition, _ in written],
        ]
    types = [pa.string(), pa.int32(), pa.int64(), *[pa.string()] * 3]
    names = [column.split()[0] for column in REPORT_SCHEMA.split(", ")]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def reports_of(rows: Iterable[Row]) -> list[TaskReport]:
    """The reports out of rows of REPORT_SCHEMA, one for each row."""
    reports = []
    for row in rows:
        if row.failure is not None:
            reports.append(TaskReport(failure=Failure(row.failure), message=row.message))
        else:
            place = TopicPartition(row.topic, row.partition)
            runs = [Run(*each) for each in json.loads(row.runs)]
            reports.append(TaskReport({place: row.records}, runs={place: runs} if runs else {}))
    return reports


@dataclass(frozen=True, slots=True)
class AddPartition:
    """Adds the column partition: that of the Java client's partitioner for the key.

    partition_counts: by topic. topic: of all rows, None if they have a column for it.
    """

    partition_counts: dict[str, int]
    topic: str | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for `mapInArrow`."""
        import pyarrow as pa

        for batch in batches:
            names = batch.schema.names
            values = binary_values(batch.column(names.index(VALUE)))
            keys: list[bytes | None] = [None] * len(values)
            if KEY in names:
                keys = binary_values(batch.column(names.index(KEY)))
            counts = self._counts(batch)
            partitions = [
                partition_for(key, value, count)
                for key, value, count in zip(keys, values, counts, strict=True)
            ]
            columns = [*batch.columns, pa.array(partitions, pa.int32())]
            yield pa.RecordBatch.from_arrays(columns, names=[*names, PARTITION])

    def _counts(self, batch: pa.RecordBatch) -> list[int]:
        """The partition count of each row's topic; 1 for topics that the sink does not have, which
        `WriteTask` reports.
        """
        if self.topic is not None:
            return [self.partition_counts[self.topic]] * batch.num_rows
        names = binary_values(batch.column(batch.schema.names.index(TOPIC)))
        return [self.partition_counts.get((name or b"").decode(), 1) for name in names]
