"""A batch of `dedupe` or `aggregate`: its records against the state of the batch before.

The new state is written before the records, and what is written to the topics is taken out of it: a
batch that is begun again writes the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..checkpoint import Offsets
from ..cluster import Topics
from ..errors import JobError
from ..exactly_once.sink import KafkaSink
from ..exactly_once.source_offsets import CheckpointOffsets
from ..storage import Folder
from .state import Counts, Part, State, StateLog
from .watermarks import NO_WATERMARK, next_watermark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TIME: Final = "time_ms"
"""The column of a record's time, in ms since 1970."""

LATE_HEADERS: Final = ("topic", "partition", "offset", "watermark")
LATE_PREFIX: Final = "kbroker.late."


@dataclass(frozen=True, slots=True)
class Step:
    """A batch between two states. batch: the records with TIME. prior: the rows of the state
    before, None if there are none. watermark_ms: behind the batch before; behind_ms: behind this.
    """

    batch_id: int
    batch: DataFrame
    prior: DataFrame | None
    watermark_ms: int
    behind_ms: int


class Rule(Protocol):
    """What a job does with records. Picklable. text: of the state, see `State.rule`. is_delta:
    whether a batch adds a part to the state, or replaces all of it. order_by: columns of the
    results and of the records, for the order within a target partition. keeps_partitions: whether
    results have the partitions of their records.
    """

    @property
    def text(self) -> str: ...

    @property
    def is_delta(self) -> bool: ...

    @property
    def order_by(self) -> tuple[str, ...]: ...

    @property
    def keeps_partitions(self) -> bool: ...

    def prepared(self, batch: DataFrame) -> DataFrame:
        """The records with what the rule needs as columns."""
        ...

    def is_late(self, watermark_ms: int) -> Column:
        """Which records are late."""
        ...

    def count(self, batch: DataFrame, watermark_ms: int) -> tuple[Counts, int | None]:
        """The records, without `duplicates`, and the time of the newest one. Raises JobError for
        records that the rule has no place for.
        """
        ...

    def rows(self, step: Step) -> DataFrame:
        """The rows that the batch adds to the state, or all of them."""
        ...

    def results(self, step: Step, rows: DataFrame) -> DataFrame:
        """What is written, with the columns of `kafka_sink`. rows: those of `rows`, as stored."""
        ...

    def compacted(self, state: DataFrame, watermark_ms: int) -> DataFrame:
        """The rows of a state that still count; for a rule with deltas."""
        ...

    def counted(self, counts: Counts, rows: DataFrame) -> Counts:
        """The counts with `duplicates`."""
        ...


MAX_PARTS: Final = 16
"""Parts of a state with deltas; they become one then."""


@dataclass
class StatefulBatches:
    """Writes batches. Picklable. tasks: that write a part of the state. counts: of this process."""

    sink: KafkaSink
    rule: Rule
    states: StateLog
    end_offsets: CheckpointOffsets
    delay_ms: int | None
    to_topic: str
    late_topic: str
    tasks: int
    counts: Counts = field(default_factory=Counts)
    written: int = 0

    def __call__(self, frame: DataFrame, batch_id: int, topics: Topics) -> None:
        """See `BatchWriter`."""
        from pyspark.sql import functions as F

        batch = self.rule.prepared(frame.withColumn(TIME, F.unix_millis("timestamp"))).persist()
        try:
            before = self.states.before(batch_id)
            state = self._state(batch, batch_id, before)
            self.sink(self._output(batch, before, state), batch_id)
        finally:
            batch.unpersist()
        report = self.sink.last_batch
        if report is None:
            raise JobError(f"batch {batch_id} has no report")
        if report.attempts:
            self.counts += state.counts
            self.written += report.records - (state.counts.late if self.late_topic else 0)

    def close(self) -> None:
        """See `BatchWriter`."""
        self.sink.close()

    def tally(self) -> dict[str, int]:
        """See `BatchWriter`."""
        return {**asdict(self.counts), "written": self.written}

    def take(self, tally: Mapping[str, int]) -> None:
        """See `BatchWriter`."""
        counts = dict(tally)
        self.written += counts.pop("written")
        self.counts += Counts(**counts)

    def _state(self, batch: DataFrame, batch_id: int, before: State | None) -> State:
        """The state behind a batch, as it was left by an earlier attempt or made now."""
        end = self.end_offsets(batch_id)
        offsets: Offsets = {topic: dict(each) for topic, each in end.items()}
        known = self.states.read(batch_id)
        if known is not None and (known.end, known.rule) == (offsets, self.rule.text):
            return known
        watermark = NO_WATERMARK if before is None else before.watermark_ms
        counts, newest_ms = self.rule.count(batch, watermark)
        behind = next_watermark(watermark, newest_ms, self.delay_ms)
        step = self._step(batch, batch_id, before, behind)
        newest = NO_WATERMARK if newest_ms is None else newest_ms
        part = self._write(batch_id, self.rule.rows(step), newest)
        counts = self.rule.counted(counts, self._read(batch, (part,)))
        parts: tuple[Part, ...] = (part,)
        if self.rule.is_delta and before is not None:
            alive = [each for each in before.parts if each.newest_ms >= behind]
            parts = (*alive, part)
        if len(parts) > MAX_PARTS:
            old = self.rule.compacted(self._read(batch, parts[:-1]), behind)
            oldest = self._write(batch_id, old, max(each.newest_ms for each in parts[:-1]))
            parts = (oldest, part)
        state = State(batch_id, self.rule.text, offsets, behind, parts, counts)
        self.states.write(state)
        return state

    def _step(self, batch: DataFrame, batch_id: int, before: State | None, behind: int) -> Step:
        if before is None or not before.parts:
            watermark = NO_WATERMARK if before is None else before.watermark_ms
            return Step(batch_id, batch, None, watermark, behind)
        prior = self._read(batch, before.parts)
        return Step(batch_id, batch, prior, before.watermark_ms, behind)

    def _write(self, batch_id: int, rows: DataFrame, newest_ms: int) -> Part:
        name = self.states.new_folder(batch_id)
        # A shuffle has spark.sql.shuffle.partitions tasks, 200 by default, however small it is.
        rows.coalesce(self.tasks).write.parquet(self.states.folder.child(name).spark_uri)
        return Part(name, newest_ms)

    def _read(self, batch: DataFrame, parts: tuple[Part, ...]) -> DataFrame:
        uris = [self.states.folder.child(part.folder).spark_uri for part in parts]
        return batch.sparkSession.read.parquet(*uris)

    def _output(self, batch: DataFrame, before: State | None, state: State) -> DataFrame:
        from pyspark.sql import functions as F

        step = self._step(batch, state.batch_id, before, state.watermark_ms)
        results = self.rule.results(step, self._read(batch, state.parts[-1:]))
        results = results.withColumn("topic", F.lit(self.to_topic))
        if not self.late_topic:
            return results
        late = batch.where(self.rule.is_late(step.watermark_ms))
        headers = F.coalesce("headers", F.array().cast(_HEADERS))
        added = F.array(*(_late_header(name, step.watermark_ms) for name in LATE_HEADERS))
        late = late.withColumn("headers", F.concat(headers, added))
        late = late.withColumn("topic", F.lit(self.late_topic)).withColumn("timestamp", F.col(TIME))
        return results.unionByName(late.select(*results.columns))


_HEADERS: Final = "array<struct<key:string,value:binary>>"


def _late_header(name: str, watermark_ms: int) -> Column:
    from pyspark.sql import functions as F

    content = F.lit(watermark_ms) if name == "watermark" else F.col(name)
    value = content.cast("string").cast("binary")
    return F.struct(F.lit(LATE_PREFIX + name).alias("key"), value.alias("value"))


def states_of(checkpoint: Folder, query: int) -> StateLog:
    """The states of a query in a checkpoint's folder."""
    return StateLog(checkpoint.child(f"state-{query}"))


def add_up(values: Any) -> int:
    """A sum out of a row; 0 for that of no rows."""
    return int(values or 0)
