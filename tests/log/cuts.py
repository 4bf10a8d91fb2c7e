"""Truncation of a hosted log in one call."""

from __future__ import annotations

from kbroker.log.manager import LogManager
from kbroker.model import TopicPartition


def cut_now(logs: LogManager, key: TopicPartition, offset: int) -> bool:
    """Begin a cut to offset, and complete it in this thread, as an operation does that cannot wait
    for the worker. Returns whether records were removed. Raises LogDirectoryError.
    """
    log = logs.get(key)
    assert log is not None
    log.jobs.settle()
    cut = logs.begin_cut(key, offset, is_full=False, then=lambda: None)
    log.thaw()
    return cut is not None
