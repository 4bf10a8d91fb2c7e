"""Thread pools for logs without a node, which makes them otherwise (`node.resources`)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor


def own_threads(name: str, count: int) -> ThreadPoolExecutor:
    """A `ports.ThreadPools`."""
    return ThreadPoolExecutor(count, thread_name_prefix=f"kbroker-{name}")
