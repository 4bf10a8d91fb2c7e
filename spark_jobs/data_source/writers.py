"""Writing to the format `kbroker`: tasks leave their rows in a folder, and the commit writes them
with the exactly-once sink, in one transaction.

The commit runs beside the driver, in a process of Python's that Spark starts for it. It knows the
number of the batch, so a batch that Spark repeats is found in the topic and skipped.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from ..checkpoint import read_query_id
from ..connect import Portable
from ..errors import JobError
from ..exactly_once.driver import QueryDriver, QuerySettings, TaskReport
from ..exactly_once.errors import SinkError
from ..exactly_once.frames import Layout, record_fields
from ..exactly_once.grant import Grant
from ..exactly_once.rows import PARTITION
from ..exactly_once.source_offsets import CheckpointOffsets
from ..exactly_once.tasks import AddPartition, write_rows
from ..exactly_once.tokens import EndOffsets
from ..storage import Folder, absolute
from ..wire.client import BlockingClient, ClusterAddress
from .sink_options import SinkOptions
from .staging import StagedRows, read_staged, stage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

STAGING: Final = "kbroker-staging"
"""A folder of this name has what belongs to the batch that is written, and to none before it."""

ADVICE: Final = (
    "use the checkpoint that belongs to the output; or begin anew, with a new checkpoint and a "
    "queryName that has written nothing yet, or none"
)

Messages = Sequence[WriterCommitMessage | None]


@dataclass
class Staged(WriterCommitMessage):
    """What a task says at its end."""

    rows: StagedRows


class _StagingWriter(Portable):
    """What both writers do in the tasks. Picklable."""

    def __init__(self, options: SinkOptions, schema: StructType, staging: Folder) -> None:
        """Raises SinkError for columns that cannot be written."""
        from pyspark.sql.types import TimestampNTZType

        self.options = options
        self.staging = staging
        fields = record_fields(schema, Layout(options.topic))
        for field in fields.values():
            if isinstance(field.dataType, TimestampNTZType):
                raise SinkError(f"column {field.name} has no time zone: make it a timestamp")
        places = {field.name: place for place, field in enumerate(schema.fields)}
        self.columns = [(places[field.name], name) for name, field in fields.items()]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Called in a task. iterator: of record batches, since the class is one of Arrow's."""
        from pyspark import TaskContext

        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        return Staged(stage(iterator, self.columns, self.staging, task))

    def remove_staged(self) -> None:
        """What this batch and those that were cut off have left."""
        self.staging.delete_folder("")

    def write_batch(
        self,
        driver: QueryDriver,
        batch_id: int,
        messages: Messages,
        *,
        query_id: str = "",
        end_offsets: EndOffsets | None = None,
    ) -> None:
        """Write what the tasks have left, once. Raises SinkError."""
        staged = [message.rows for message in messages if isinstance(message, Staged)]
        driver.write_batch(
            batch_id,
            partial(self._send, staged),
            query_id=query_id,
            end_offsets=end_offsets,
        )

    def _send(self, staged: Sequence[StagedRows], grant: Grant) -> list[TaskReport]:
        """Raises OSError or SinkError; nothing of the batch is committed then."""
        topic = self.options.topic
        batches = read_staged(self.staging, staged)
        if PARTITION not in (name for _, name in self.columns):
            counts = {one.name: one.partition_count for one in grant.topics.values()}
            batches = AddPartition(counts, topic)(batches)
        try:
            report = write_rows(grant, batches, topic=topic, task=0)
        except FileNotFoundError as error:
            raise SinkError(
                f"the rows of a task are not in {self.staging}: give the option stagingLocation, a "
                "folder that driver and executors share"
            ) from error
        wanted, written = sum(one.rows for one in staged), sum(report.records.values())
        if report.failure is None and written != wanted:
            raise SinkError(f"{wanted} rows were to be written and {written} were: nothing is")
        return [report]


def _driver(options: SinkOptions, query_name: str) -> QueryDriver:
    settings = QuerySettings(
        query_name,
        options.topics,
        advice=ADVICE,
        transaction_timeout_ms=options.transaction_timeout_ms,
        has_own_numbers=not options.checkpoint,  # batchId, which may leave some out
        compression=options.compression,
    )
    return QueryDriver(BlockingClient(ClusterAddress(options.bootstrap_servers)), settings)


class KafkaWriter(_StagingWriter, DataSourceArrowWriter):
    """Of `frame.write`: all rows of the frame in one transaction."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Raises JobError."""
        place = options.staging or tempfile.gettempdir()
        staging = Folder(absolute(place)).child(f"{STAGING}-{uuid.uuid4().hex}")
        super().__init__(options, schema, staging)

    def commit(self, messages: Messages) -> None:
        """Called once, beside the driver. Raises SinkError."""
        options = self.options
        driver = _driver(options, options.query_name or f"write-{uuid.uuid4().hex}")
        try:
            batch_id = options.batch_id
            if batch_id is None:
                token = driver.newest_token() if options.query_name else None
                batch_id = 0 if token is None else token.batch_id + 1
            self.write_batch(driver, batch_id, messages)
        finally:
            driver.close()
            self.remove_staged()

    def abort(self, messages: Messages) -> None:
        """Called once where a task failed."""
        self.remove_staged()


class KafkaStreamWriter(_StagingWriter, DataSourceStreamWriter, DataSourceArrowWriter):
    """Of `writeStream`: each batch in one transaction. Spark gives a class of Arrow's record
    batches also in a stream.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Raises JobError."""
        checkpoint = absolute(options.checkpoint)
        staging = Folder(checkpoint).child(STAGING)
        if options.staging:  # other queries may leave theirs there too
            own = uuid.uuid5(uuid.NAMESPACE_URL, checkpoint).hex
            staging = Folder(absolute(options.staging)).child(f"{STAGING}-{own}")
        super().__init__(options, schema, staging)

    def commit(self, messages: Messages, batchId: int) -> None:  # type: ignore[override]
        """Called once for a batch, beside the driver. Raises JobError."""
        checkpoint = self.options.checkpoint
        query_id = read_query_id(Folder(absolute(checkpoint)))
        if not query_id:
            raise JobError(f"{checkpoint} is no checkpoint that can be seen here")
        driver = _driver(self.options, self.options.query_name or query_id)
        try:
            self.write_batch(
                driver,
                batchId,
                messages,
                query_id=query_id,
                end_offsets=CheckpointOffsets(checkpoint)(batchId),
            )
        finally:
            driver.close()
        self.remove_staged()

    def abort(self, messages: Messages, batchId: int) -> None:  # type: ignore[override]
        """Called once for a batch with a task that failed."""
        self.remove_staged()
