"""For tests: what the garbage collector finds, which is what reference counts did not free."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType, GeneratorType

ROOMS = tuple(
    f"kbroker.{room}."
    for room in (
        "broker", "controller", "coordinator", "log", "metadata", "model", "protocol", "quorum",
        "replication", "server", "share",
    )
)  # fmt: skip


@contextmanager
def found_by_collector() -> Iterator[Counter[str]]:
    """At the end of the context the counter has the broker's objects that were part of reference
    cycles, or held by one, by the name of their class or function.
    """
    found: Counter[str] = Counter()
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found.update(name for each in gc.garbage if (name := name_of(each)).startswith(ROOMS))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def name_of(found: object) -> str:
    """Module and qualified name."""
    if isinstance(found, FunctionType):
        return f"{found.__module__}.{found.__qualname__}"
    if isinstance(found, GeneratorType) and found.gi_frame is not None:
        return f"{_module_of(found.gi_frame)}.{found.__qualname__}"
    if isinstance(found, FrameType):
        return f"{_module_of(found)}.{found.f_code.co_qualname}"
    return f"{type(found).__module__}.{type(found).__qualname__}"


def _module_of(frame: FrameType) -> str:
    module: str = frame.f_globals.get("__name__", "")
    return module
