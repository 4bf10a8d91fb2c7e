"""`DataFrame.mapInArrow` without pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from .worker import forget_archives

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ArrowFunction = Callable[["Iterable[pa.RecordBatch]"], "Iterable[pa.RecordBatch]"]


def map_in_arrow(frame: DataFrame, function: ArrowFunction, schema: StructType | str) -> DataFrame:
    """The frame of what function yields for the record batches of each task.

    pyspark 4.0 refuses `mapInArrow` without pandas, which neither side of it uses: then the same
    plan is made from the same parts. Spark Connect, where they do not exist, needs pandas anyway.
    """
    task = _Task(function)
    if find_spec("pandas") is not None or not hasattr(frame, "_jdf"):
        return frame.mapInArrow(task, schema)
    from pyspark.sql import DataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    mapped = UserDefinedFunction(
        task, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    column = mapped(*[frame[name] for name in frame.columns])
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)


@dataclass(frozen=True, slots=True)
class _Task:
    """A function for `mapInArrow` that leaves its worker's next task a faster start."""

    function: ArrowFunction

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.function(batches)
        finally:
            forget_archives()
