"""Acquisitions of a share partition's records (KIP-932): their limits, and the ranges in which the
response lists them. This is a core.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.share.runs import Run


class Acquired(NamedTuple):
    """Offsets first to last, both inclusive, delivered for the deliveries-th time."""

    first: int
    last: int
    deliveries: int


class AcquireLimits(NamedTuple):
    """How many records to acquire. is_strict: max_records is exact, not rounded to whole batches;
    batch_size: the largest range in the response.
    """

    max_records: int
    batch_size: int
    is_strict: bool
    max_locks: int
    delivery_limit: int
    lock_ms: int


def few_of(run: Run, delivery_limit: int) -> int | None:
    """Limit on the number of records to acquire, which shrinks near their delivery limit."""
    threshold = max(2, -(-delivery_limit // 2))
    if run.deliveries < threshold:
        return None
    if run.deliveries >= delivery_limit - 1:
        return 1
    return max(1, (run.last - run.first + 1) >> (run.deliveries - threshold + 1))


def add_piece(acquired: list[Acquired], run: Run, batch_size: int, *, may_cut: bool) -> None:
    """Add acquired records to the list; ranges grow up to batch_size records."""
    if acquired:
        before = acquired[-1]
        is_full = before.last - before.first + 1 >= batch_size
        if (
            before.last == run.first - 1
            and before.deliveries == run.deliveries
            and not (is_full and may_cut)
        ):
            acquired[-1] = before._replace(last=run.last)
            return
    acquired.append(Acquired(run.first, run.last, run.deliveries))
