"""What a task does with its records: each becomes one row, for the target or the dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kbroker.protocol.batches.records import Header

from ..exactly_once.rows import binary_values, header_lists
from .checks import Checks
from .headers import Place, dead_letter_headers, own_headers

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")
"""Of the frame that reaches a task; timestamp is a long of ms, -1 without one."""

ROUTED_SCHEMA: Final = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, "
    "partition int, timestamp long"
)
_CLASS: Final = f"{Checks.__module__}.{Checks.__qualname__}"


@dataclass(frozen=True, slots=True)
class Route:
    """Splits records, for `mapInArrow`; picklable. is_retry: records are dead letters, whose
    headers are taken off again.
    """

    checks: Checks
    target: str
    dead_letters: str
    query_name: str
    is_retry: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields as many rows as it gets, in ROUTED_SCHEMA, in the same order."""
        from pyspark import TaskContext

        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        for batch in batches:
            yield self.routed(batch, task)

    def routed(self, batch: pa.RecordBatch, task: int) -> pa.RecordBatch:
        """One record batch."""
        import pyarrow as pa

        columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
        keys, values = binary_values(columns["key"]), binary_values(columns["value"])
        before = header_lists(columns["headers"])
        places = [columns[name].to_pylist() for name in ("topic", "partition", "offset")]
        topics: list[str] = []
        after: list[Sequence[Header]] = []
        for key, value, headers, topic, partition, offset in zip(
            keys, values, before, *places, strict=True
        ):
            own = own_headers(headers) if self.is_retry else headers
            problem = self.checks.problem(key, value, own)
            if problem is None:
                topics.append(self.target)
                after.append(own)
                continue
            topics.append(self.dead_letters)
            place = Place(topic, partition, offset, self.query_name, task)
            after.append(dead_letter_headers(headers, place, problem, _CLASS))
        is_unchanged = not self.is_retry and self.dead_letters not in topics
        arrays = [
            columns["key"],
            columns["value"],
            columns["headers"] if is_unchanged else header_array(after),
            pa.array(topics, pa.string()),
            columns["partition"],
            columns["timestamp"],
        ]
        names = ["key", "value", "headers", "topic", "partition", "timestamp"]
        return pa.RecordBatch.from_arrays(arrays, names=names)


def header_array(rows: Sequence[Sequence[Header]]) -> pa.Array:
    """Headers as Spark's Kafka source has them."""
    import pyarrow as pa

    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.array(
        [
            [{"key": name.decode(errors="replace"), "value": value} for name, value in headers]
            for headers in rows
        ],
        kind,
    )
