"""Functions of `foreachBatch` and formats under Spark Connect: they run in processes of the server.

Spark 4.0 gives these processes none of the session's Python files (its executors get them, see
`session.ship`), so a function or a format brings this package along. What a job's function has
counted comes back as a file in its checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Protocol, SupportsIndex

from .bundle import bundle_path
from .session import is_remote
from .storage import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

BatchFunction = Callable[["DataFrame", int], None]
TALLY: Final = "tally.json"
_MAIN: Final = "__main__"
"""The module of what is pickled with its code, and not by its name."""


class JobFunction(Protocol):
    """The function of a job. Picklable."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None: ...

    def tally(self) -> dict[str, int]:
        """What it has counted by name."""
        ...

    def take(self, tally: Mapping[str, int]) -> None:
        """Count what it has counted in another process."""
        ...


class Portable:
    """Its pickle brings this package along, if it has a bundle of it."""

    bundle: bytes | None = None

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        bundle = self.bundle
        if bundle is None:
            return super().__reduce_ex__(protocol)
        from pyspark import cloudpickle

        known = next(each for each in type(self).__mro__ if each.__module__ != _MAIN)
        plain: Any = object.__new__(known)
        plain.__dict__.update(self.__getstate__() or {}, bundle=None)
        pickled = cloudpickle.dumps(plain)  # type: ignore[no-untyped-call]
        return _unpacker(), (bundle, pickled, True)


def batch_function(spark: SparkSession, function: BatchFunction) -> BatchFunction:
    """A function as `foreachBatch` wants it: under Spark Connect with this package, which the
    server need not have then; otherwise as it is. function: must be picklable for that.
    """
    path = bundle_path() if is_remote(spark) else None
    return function if path is None else _Carried(function, path.read_bytes())


def data_source_class(spark: SparkSession, kind: type[DataSource]) -> type[DataSource]:
    """A format as `spark.dataSource.register` wants it. kind: `Portable`, and gives its bundle to
    what it makes: under Spark Connect a stream's tasks, and the processes that plan and commit its
    batches, have none of the session's Python files either.
    """
    path = bundle_path() if is_remote(spark) else None
    if path is None:
        return kind
    return type(kind.__name__, (kind,), {"__module__": _MAIN, "bundle": path.read_bytes()})


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

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes, bytes, bool]]:
        from pyspark import cloudpickle

        pickled = cloudpickle.dumps(self._function)  # type: ignore[no-untyped-call]
        return _unpacker(), (self._bundle, pickled, False)


def _unpacker() -> Callable[..., Any]:
    """`_unpacked` as a function whose pickle has its code, and not its name."""
    unpacker = FunctionType(_unpacked.__code__, {"__builtins__": __builtins__}, "_unpacked")
    unpacker.__module__ = _MAIN
    return unpacker


def _unpacked(bundle: bytes, pickled: bytes, is_portable: bool) -> Any:
    """The pickled object, in a process that has the package of `bundle` from here on. It runs where
    no other name of this module is known. is_portable: of a `Portable`, not of a user's function.
    """
    import os
    import pickle
    import sys
    import tempfile
    import zlib

    # A worker of Spark's runs many tasks: one file for all of them.
    unpacked: set[int] = sys.__dict__.setdefault("_kbroker_bundles", set())
    if zlib.crc32(bundle) not in unpacked:
        number, path = tempfile.mkstemp(suffix=".zip")
        with open(path, "wb") as file:
            file.write(bundle)
        if os.path.exists(f"/proc/self/fd/{number}"):
            # The server kills the process in the end, which could not delete the file then.
            os.unlink(path)
            path = f"/proc/self/fd/{number}"
        sys.path.insert(0, path)
        unpacked.add(zlib.crc32(bundle))
    found = pickle.loads(pickled)
    if is_portable:
        found.bundle = bundle  # for what it makes, and for where it goes next
    return found
