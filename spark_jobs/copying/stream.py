"""The query of a streaming copy, and what happens in each batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from ..checkpoint import Offsets, batch_ends
from ..cluster import Topics, look
from ..connect import JobFunction, job_function, take_tally
from ..errors import JobError, StartRefused, first_cause
from ..identity import Identity, read_identity, write_identity
from ..kafka_source import arrow_batches, read_stream, record_limit, starting_at
from ..lease import check_lease
from ..progress import Progress, Reporter, Totals
from ..running import StopRequested, run_query
from ..session import check_kafka_source, ship
from ..storage import Folder
from .opening import LEASE, Opened
from .options import StreamOptions
from .targets import look_at_targets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


class BatchWriter(Protocol):
    """Writes a batch exactly once; picklable."""

    def __call__(self, frame: DataFrame, batch_id: int, topics: Topics) -> None:
        """topics: of the source, as they are now; empty if it cannot be asked. Raises JobError."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...

    def tally(self) -> dict[str, int]:
        """See `JobFunction`."""
        ...

    def take(self, tally: Mapping[str, int]) -> None:
        """See `JobFunction`."""
        ...


@dataclass
class CopyBatches:
    """The function of the query's foreachBatch. Its state is in the target and the checkpoint.

    is_stopping: only called in the process that made it.
    """

    options: StreamOptions
    checkpoint: Folder
    lease_id: str
    write: BatchWriter
    is_stopping: Callable[[], bool] | None = None
    failure: Exception | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "is_stopping": None, "failure": None}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Copy a batch, unless the target has it. Raises JobError, StopRequested or what Spark
        raises; readers of committed records see nothing of the batch then, or all of it.
        """
        try:
            if self.is_stopping is not None and self.is_stopping():
                raise StopRequested
            self._copy(frame, batch_id)
        except Exception as error:
            self.failure = error
            raise

    def _copy(self, frame: DataFrame, batch_id: int) -> None:
        check_lease(self.checkpoint, LEASE, self.lease_id)
        identity = read_identity(self.checkpoint)
        topics = self._look({} if identity is None else identity.topics)
        self.write(frame, batch_id, topics)
        if identity is not None:
            # A batch that was planned before a topic was added does not have it.
            ends = batch_ends(self.checkpoint.child(identity.query_folder), batch_id) or {}
            read = {name: facts for name, facts in topics.items() if name in ends}
            following = replace(identity, targets=self._target_ids(identity, ends))
            write_identity(self.checkpoint, following.at_batch(batch_id, read))

    def _target_ids(self, identity: Identity, ends: Offsets) -> dict[str, str]:
        """For the identity behind a batch, of targets that have got something. Those of an earlier
        query are looked up again; an id that is known stays, so that a topic that is created again
        is noticed.
        """
        targets = self.options.targets
        current = {name for each in targets.values() for name in each}
        known = {
            name: topic_id
            for name, topic_id in identity.targets.items()
            if identity.batch_id >= 0 or name not in current
        }
        written = {
            name
            for topic, each in targets.items()
            if any(ends.get(topic, {}).values())
            for name in each
        }
        unknown = sorted(written - known.keys())
        if not unknown:
            return known
        try:
            there = look_at_targets(self.options.target_servers, unknown)
        except JobError:  # the batch is written; the next one asks again
            return known
        return known | {name: facts.topic_id for name, facts in there.items()}

    def tally(self) -> dict[str, int]:
        """See `JobFunction`."""
        return self.write.tally()

    def take(self, tally: Mapping[str, int]) -> None:
        """See `JobFunction`."""
        self.write.take(tally)

    def _look(self, known: Topics) -> Topics:
        """The topics now; empty if the cluster cannot be asked. Raises StartRefused for a topic
        that was created again while the query runs.
        """
        options = self.options
        try:
            topics = look(options.servers, options.subscription, "PLAINTEXT").topics
        except JobError:  # Spark itself waits for brokers that restart
            return {}
        for name, facts in topics.items():
            before = known.get(name)
            if before is not None and before.topic_id != facts.topic_id:
                raise StartRefused(
                    f"topic {name} was deleted and created again while it was copied: nothing of "
                    "this batch is visible. --resume-from earliest copies the new topic behind the "
                    "old records"
                )
        return topics


def run_copy(
    spark: SparkSession,
    opened: Opened,
    write: BatchWriter,
    *,
    reporter: Reporter | None,
    stop: threading.Event | None,
) -> Totals:
    """Run the query of an opened copy: to the end of what there is now, or with a trigger until
    `stop` is set. Raises JobError.
    """
    stopping = stop if stop is not None else threading.Event()
    options = opened.options
    progress = Progress(options.query_name, reporter or Reporter("none"))
    batches = CopyBatches(options, opened.checkpoint, opened.lease_id, write, stopping.is_set)
    try:
        run_query(
            spark,
            lambda: _start(spark, opened, batches),
            lambda: batches.failure,
            progress,
            query_name=options.query_name,
            job=options.job,
            stop=stopping,
        )
        take_tally(spark, batches, opened.checkpoint)
    finally:
        write.close()
    return progress.totals


def _start(spark: SparkSession, opened: Opened, batches: JobFunction) -> StreamingQuery:
    """Raises JobError."""
    options = opened.options
    ship(spark)
    try:
        check_kafka_source(spark)
        starting = opened.identity.starting
        frame = read_stream(
            spark,
            options.servers,
            options.subscription,
            starting_at(starting, options.source_options, options.subscription, opened.view),
            record_limit(options.source_options, options.max_bytes_per_trigger, opened.view),
        )
        writer = (
            frame.writeStream.queryName(options.query_name)
            .option("checkpointLocation", opened.query.spark_uri)
            .foreachBatch(job_function(spark, batches, opened.checkpoint))
        )
        if options.trigger is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=options.trigger)
        with arrow_batches(spark, opened.view.record_bytes):
            return writer.start()
    except JobError:
        raise
    except Exception as error:  # pyspark's own, and Java's through py4j
        raise JobError(f"{options.job} cannot start: {first_cause(error)}") from error
