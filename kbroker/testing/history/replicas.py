"""Checks that the replicas of a partition have the same bytes."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.protocol.batches.batch_header import iter_batches


def replica_difference(logs: Mapping[str, bytes], high_watermark: int) -> str | None:
    """Describes the difference of the logs, by node, if they do not have the same bytes from the
    latest of their first offsets up to the high watermark (exclusive); None if they have.
    """
    start = common_start(logs)
    if start > high_watermark:
        return f"a log begins at offset {start}, after the high watermark {high_watermark}"
    committed = {name: between(log, start, high_watermark) for name, log in logs.items()}
    for name, log in committed.items():
        end = max((header.next_offset for _, header in iter_batches(log)), default=start)
        if end < high_watermark:
            return (
                f"the log of {name} ends at offset {end}, before the high watermark "
                f"{high_watermark}"
            )
    first_name = next(iter(committed), "")
    for name, log in committed.items():
        first = committed[first_name]
        if log != first:
            return (
                f"the logs of {first_name} and {name} differ below the high watermark "
                f"{high_watermark}, first in the batch at offset {_first_difference(first, log)}"
            )
    return None


def common_start(logs: Mapping[str, bytes]) -> int:
    """The latest of the first offsets of the logs; 0 if all are empty."""
    return max((_first_offset(log) for log in logs.values()), default=0)


def between(log: bytes, start: int, end: int) -> bytes:
    """The bytes of the batches with offsets from start up to end (exclusive). log: whole batches,
    possibly followed by an incomplete one.
    """
    low, high = len(log), 0
    for position, header in iter_batches(log, partial_ok=True):
        if header.base_offset >= start and header.next_offset <= end:
            low, high = min(low, position), max(high, position + header.size_bytes)
    return log[low:high]


def _first_offset(log: bytes) -> int:
    return next((header.base_offset for _, header in iter_batches(log, partial_ok=True)), 0)


def _first_difference(one: bytes, other: bytes) -> int:
    """The base offset of the first batch that differs."""
    batches = {
        header.base_offset: other[position : position + header.size_bytes]
        for position, header in iter_batches(other)
    }
    for position, header in iter_batches(one):
        if batches.pop(header.base_offset, None) != one[position : position + header.size_bytes]:
            return header.base_offset
    return min(batches, default=-1)
