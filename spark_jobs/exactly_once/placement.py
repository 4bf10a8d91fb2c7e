"""Which task of a shuffle Spark sends a number to: Murmur3 of the number, modulo the tasks.

Used only to spread target partitions evenly: that all rows of one partition reach one task does not
depend on it.
"""

from __future__ import annotations

from functools import cache
from itertools import count
from typing import Final

SEED: Final = 42
_MASK: Final = 0xFFFFFFFF


def task_of(number: int, tasks: int) -> int:
    """The task that `repartition(tasks, column)` sends an int in the column to. Source: Spark's
    HashPartitioning and Murmur3_x86_32.hashInt.
    """
    k = number * 0xCC9E2D51 & _MASK
    k = (k << 15 | k >> 17) * 0x1B873593 & _MASK
    h = SEED ^ k
    h = (h << 13 | h >> 19) * 5 + 0xE6546B64 & _MASK
    h ^= 4  # bytes
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    h ^= h >> 16
    return (h - (1 << 32) if h >> 31 else h) % tasks


@cache
def numbers_for_tasks(tasks: int) -> tuple[int, ...]:
    """For each task a number that is sent to it."""
    found: dict[int, int] = {}
    for number in count():
        found.setdefault(task_of(number, tasks), number)
        if len(found) == tasks:
            return tuple(found[task] for task in range(tasks))
    raise AssertionError("numbers have no end")
