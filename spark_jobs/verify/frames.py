"""A frame with the columns of Spark's Kafka source, such as an archive, as facts of partitions."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..exactly_once.rows import binary_values, header_lists
from .facts import FactsBuilder, Field, PartitionFacts

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
"""Of a record."""

MARKS_SCHEMA: Final = "topic string, partition int, offset long, end long, facts string"
"""Of what the topic says among the records of its copy: a range that compaction removed, from
`offset` to `end` (exclusive), or the facts of a partition.
"""

MARKED_COLUMNS: Final = (*COLUMNS, "end", "facts")
"""Of the frame that reaches a task, sorted by topic, partition and offset, a range before the
record of its first offset. `end` and `facts` of a record are null.
"""

FACTS_SCHEMA: Final = "facts string"
SIDES_SCHEMA: Final = "facts string, is_copy boolean"
MARKS_PER_BATCH: Final = 1 << 16


def facts_rows(facts: list[PartitionFacts]) -> pa.RecordBatch:
    """Facts in FACTS_SCHEMA."""
    import pyarrow as pa

    column = pa.array([one.encode() for one in facts], pa.string())
    return pa.RecordBatch.from_arrays([column], names=["facts"])


class Marks:
    """What a partition of the topic says among the records of its copy."""

    def __init__(self) -> None:
        self._firsts, self._ends = array("q"), array("q")

    def add(self, first: int, end: int) -> None:
        """Compaction removed the offsets [first, end)."""
        self._firsts.append(first)
        self._ends.append(end)

    def rows(self, facts: PartitionFacts) -> Iterator[pa.RecordBatch]:
        """In MARKS_SCHEMA. facts: of the partition."""
        for at in range(0, len(self._firsts), MARKS_PER_BATCH):
            firsts = self._firsts[at : at + MARKS_PER_BATCH].tolist()
            ends = self._ends[at : at + MARKS_PER_BATCH].tolist()
            yield _mark_rows(facts, firsts, ends, None)
        yield _mark_rows(facts, [facts.start], [None], facts.encode())


def _mark_rows(
    facts: PartitionFacts, firsts: list[int], ends: Sequence[int | None], text: str | None
) -> pa.RecordBatch:
    import pyarrow as pa

    count = len(firsts)
    columns = [
        pa.array([facts.topic] * count, pa.string()),
        pa.array([facts.partition] * count, pa.int32()),
        pa.array(firsts, pa.int64()),
        pa.array(ends, pa.int64()),
        pa.array([text] * count, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(
        columns, names=["topic", "partition", "offset", "end", "facts"]
    )


@dataclass(frozen=True, slots=True)
class FrameFacts:
    """The facts of each partition of a copy, of which a task has all rows, for `mapInArrow`; those
    of the topic among them are passed on. Records that compaction removed from the topic count in
    `left_out` only.
    """

    ignored: frozenset[Field]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields one record batch in SIDES_SCHEMA."""
        import pyarrow as pa

        topic: list[str] = []
        copy = [facts.encode() for facts in self._facts(batches, topic)]
        texts = pa.array([*topic, *copy], pa.string())
        sides = pa.array([False] * len(topic) + [True] * len(copy), pa.bool_())
        yield pa.RecordBatch.from_arrays([texts, sides], names=["facts", "is_copy"])

    def _facts(
        self, batches: Iterable[pa.RecordBatch], passed_on: list[str]
    ) -> Iterator[PartitionFacts]:
        builder: FactsBuilder | None = None
        current: tuple[str, int] | None = None
        compacted: tuple[tuple[str, int], int] | None = None
        end = 0
        for batch in batches:
            columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
            topics = binary_values(columns["topic"])
            keys, values = binary_values(columns["key"]), binary_values(columns["value"])
            headers = header_lists(columns["headers"])
            numbers = [columns[n].to_pylist() for n in ("partition", "offset", "timestamp_ms")]
            marks = [columns[n].to_pylist() for n in ("end", "facts")]
            for name, partition, offset, timestamp, key, value, row_headers, removed, facts in zip(
                topics, *numbers, keys, values, headers, *marks, strict=True
            ):
                place = ((name or b"").decode(), partition)
                if facts is not None:
                    passed_on.append(facts)
                    continue
                if removed is not None:
                    compacted = (place, removed)
                    continue
                if place != current:
                    if builder is not None:
                        yield builder.facts(end)
                    current = place
                    builder = FactsBuilder(*place, offset, self.ignored)
                assert builder is not None
                builder.advance(offset, offset + 1, is_compacted=True)
                if compacted is not None and compacted[0] == place and offset < compacted[1]:
                    builder.leave_out()
                else:
                    builder.add_record(offset, timestamp, key, value, row_headers)
                end = offset + 1
        if builder is not None:
            yield builder.facts(end)
