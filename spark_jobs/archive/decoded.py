"""Record batches of a task with decoded values; records that cannot be decoded beside them, as
dead letters. Knows pyarrow, not Spark.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..decoding.errors import Undecodable
from ..decoding.types import arrow_type
from ..dlq.checks import DATA_EXCEPTION, Problem
from ..dlq.headers import Place, dead_letter_headers
from ..dlq.records import header_array
from ..exactly_once.rows import binary_values, header_lists
from .files import DEAD_LETTERS, Part
from .tables import TopicTable

_NOT_ARROWS: Final = (pa.ArrowException, ValueError, TypeError, OverflowError)


@dataclass(frozen=True, slots=True)
class ValueDecoder:
    """Decodes the values of one batch of the query, in its tasks."""

    tables: Mapping[str, TopicTable]
    query_name: str

    def to_text(self) -> str:
        """For an option of Spark's."""
        return base64.b64encode(pickle.dumps(self)).decode()

    @classmethod
    def from_text(cls, text: str) -> ValueDecoder:
        """What `to_text` gave, in a task of the same job."""
        found = pickle.loads(base64.b64decode(text))
        if not isinstance(found, cls):
            raise TypeError(f"a {type(found).__name__} is no {cls.__name__}")
        return found

    def parts(self, batch: pa.RecordBatch, task: int) -> Iterator[Part]:
        """The records by topic, and by whether they could be decoded, each in their order."""
        names = batch.column("topic")
        topics = pc.unique(names).to_pylist()
        for topic in topics:
            rows = batch if len(topics) == 1 else batch.filter(pc.equal(names, topic))
            yield from self._of_topic(topic, rows, task)

    def _of_topic(self, topic: str, rows: pa.RecordBatch, task: int) -> Iterator[Part]:
        table = self.tables[topic]
        values: list[Any] = []
        why: dict[int, str] = {}
        for place, content in enumerate(binary_values(rows.column("value"))):
            try:
                values.append(None if content is None else table.decoder.value(content))
            except Undecodable as error:
                values.append(None)
                why[place] = str(error)
        index = rows.schema.get_field_index("value")
        if table.type is None:  # tombstones only, before the first value: there is no column yet
            kind, decoded = None, rows.remove_column(index)
        else:
            kind = arrow_type(table.type)
            decoded = rows.set_column(index, "value", _column(values, kind, why))
        if why:
            good = [place for place in range(len(values)) if place not in why]
            decoded = decoded.take(pa.array(good, pa.int64()))
        if decoded.num_rows:
            yield Part(decoded, kind)
        if why:
            places = sorted(why)
            dead = self._dead(topic, rows.take(pa.array(places)), [why[p] for p in places], task)
            yield Part(dead, pa.binary(), DEAD_LETTERS)

    def _dead(self, topic: str, rows: pa.RecordBatch, why: list[str], task: int) -> pa.RecordBatch:
        """The records as they were, with headers that say what is wrong."""
        class_name = type(self.tables[topic].decoder)
        after = [
            dead_letter_headers(
                headers,
                Place(topic, partition, offset, self.query_name, task),
                Problem("VALUE_CONVERTER", DATA_EXCEPTION, message),
                f"{class_name.__module__}.{class_name.__qualname__}",
            )
            for headers, partition, offset, message in zip(
                header_lists(rows.column("headers")),
                rows.column("partition").to_pylist(),
                rows.column("offset").to_pylist(),
                why,
                strict=True,
            )
        ]
        return rows.set_column(
            rows.schema.get_field_index("headers"), "headers", header_array(after)
        )


def _column(values: list[Any], kind: pa.DataType, why: dict[int, str]) -> pa.Array:
    """The values as a column. One that Arrow does not take becomes null, and is named in `why`."""
    try:
        return pa.array(values, kind)
    except _NOT_ARROWS:
        pass  # of one of them, or of more
    for place, value in enumerate(values):
        try:
            pa.array([value], kind)
        except _NOT_ARROWS as error:
            values[place] = None
            why[place] = f"the value cannot be stored: {str(error).splitlines()[0]}"
    return pa.array(values, kind)
