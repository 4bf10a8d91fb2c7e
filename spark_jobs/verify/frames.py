"""A frame with the columns of Spark's Kafka source, such as an archive, as facts of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..exactly_once.rows import binary_values, header_lists
from .facts import FactsBuilder, Field, PartitionFacts

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
"""Of the frame that reaches a task, sorted by topic, partition and offset."""

FACTS_SCHEMA: Final = "facts string"


def facts_rows(facts: list[PartitionFacts]) -> pa.RecordBatch:
    """Facts in FACTS_SCHEMA."""
    import pyarrow as pa

    column = pa.array([one.encode() for one in facts], pa.string())
    return pa.RecordBatch.from_arrays([column], names=["facts"])


@dataclass(frozen=True, slots=True)
class FrameFacts:
    """The facts of each partition that a task has all rows of, for `mapInArrow`."""

    ignored: frozenset[Field]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields one record batch."""
        yield facts_rows(list(self._facts(batches)))

    def _facts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[PartitionFacts]:
        builder: FactsBuilder | None = None
        current: tuple[str, int] | None = None
        end = 0
        for batch in batches:
            columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
            topics = binary_values(columns["topic"])
            keys, values = binary_values(columns["key"]), binary_values(columns["value"])
            headers = header_lists(columns["headers"])
            numbers = [columns[n].to_pylist() for n in ("partition", "offset", "timestamp_ms")]
            for name, partition, offset, timestamp, key, value, row_headers in zip(
                topics, *numbers, keys, values, headers, strict=True
            ):
                topic = (name or b"").decode()
                if (topic, partition) != current:
                    if builder is not None:
                        yield builder.facts(end)
                    current = (topic, partition)
                    builder = FactsBuilder(topic, partition, offset, self.ignored)
                assert builder is not None
                builder.advance(offset, offset + 1, is_compacted=True)
                builder.add_record(offset, timestamp, key, value, row_headers)
                end = offset + 1
        if builder is not None:
            yield builder.facts(end)
