"""Entries of a segment's indexes as plain values, for modules that read no files.

The indexes themselves are in `index` and `transaction_index`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_RELATIVE_OFFSET: Final = 0x7FFFFFFF
"""The largest distance of an offset from its segment's base offset that fits into an index
entry.
"""


class AbortedTransaction(NamedTuple):
    """One aborted transaction. last_offset: the marker's; last_stable_offset: that of the partition
    after the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
