"""Functions of `foreachBatch` under Spark Connect, which runs them in a process of the server.

Spark 4.0 gives that process none of the session's Python files (its executors get them, see
`session.ship`), so a function brings this package along. What a job's function has counted comes
back as a file in its checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Protocol

from .bundle import bundle_path
from .session import is_remote
from .storage import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BatchFunction = Callable[["DataFrame", int], None]
TALLY: Final = "tally.json"


class JobFunction(Protocol):
    """The function of a job. Picklable."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None: ...

    def tally(self) -> dict[str, int]:
        """What it has counted by name."""
        ...

    def take(self, tally: Mapping[str, int]) -> None:
        """Count what it has counted in another process."""
        ...


def batch_function(spark: SparkSession, function: BatchFunction) -> BatchFunction:
    """A function as `foreachBatch` wants it: under Spark Connect with this package, which the
    server need not have then; otherwise as it is. function: must be picklable for that.
    """
    path = bundle_path() if is_remote(spark) else None
    return function if path is None else _Carried(function, path.read_bytes())


def job_function(spark: SparkSession, function: JobFunction, checkpoint: Folder) -> BatchFunction:
    """As `batch_function`; what it counts under Spark Connect is kept for `take_tally`."""
    if not is_remote(spark):
        return function
    checkpoint.delete(TALLY)  # of an earlier run
    return batch_function(spark, _Tallied(function, checkpoint))


def take_tally(spark: SparkSession, function: JobFunction, checkpoint: Folder) -> None:
    """Have a function of `job_function` count what it has counted on the server."""
    content = checkpoint.read(TALLY) if is_remote(spark) else None
    if content is not None:
        function.take(json.loads(content))


@dataclass(frozen=True, slots=True)
class _Tallied:
    """Keeps what a function has counted so far behind each batch."""

    function: JobFunction
    checkpoint: Folder

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.function(frame, batch_id)
        self.checkpoint.write(TALLY, json.dumps(self.function.tally()).encode())


class _Carried:
    """A function with a bundle of this package; read from a pickle it is the function itself."""

    def __init__(self, function: BatchFunction, bundle: bytes) -> None:
        self._function = function
        self._bundle = bundle

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self._function(frame, batch_id)

    def __reduce__(self) -> tuple[Callable[[bytes, bytes], Any], tuple[bytes, bytes]]:
        from pyspark import cloudpickle

        unpacked = FunctionType(_unpacked.__code__, {"__builtins__": __builtins__}, "_unpacked")
        unpacked.__module__ = "__main__"  # so the pickle has its code, and not its name
        pickled = cloudpickle.dumps(self._function)  # type: ignore[no-untyped-call]
        return unpacked, (self._bundle, pickled)


def _unpacked(bundle: bytes, pickled: bytes) -> Any:
    """The pickled object, in a process that has the package of `bundle` from here on. It runs where
    no other name of this module is known.
    """
    import os
    import pickle
    import sys
    import tempfile

    number, path = tempfile.mkstemp(suffix=".zip")
    with open(path, "wb") as file:
        file.write(bundle)
    if os.path.exists(f"/proc/self/fd/{number}"):
        # The server kills the process in the end, which could not delete the file then.
        os.unlink(path)
        path = f"/proc/self/fd/{number}"
    sys.path.insert(0, path)
    return pickle.loads(pickled)
