"""The records that compaction may have left, and must have left, in the older part of a log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Row = tuple[int, bytes | None, bytes | None]
"""offset, key, value"""


class HasRows(Protocol):
    @property
    def rows(self) -> Sequence[Row]: ...


@dataclass
class CompactedRows:
    """The part of a log before `end` that was compacted since the last restart or truncation.

    rows: all records at the start. committed: those of them that are used per key: no markers, no
    aborted records.
    """

    end: int = 0
    rows: set[Row] = field(default_factory=set)
    committed: dict[bytes | None, dict[int, bytes | None]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def add(self, batches: Iterable[HasRows], *, committed: Iterable[HasRows]) -> None:
        """The current rows may be removed, or reappear."""
        self.rows |= {row for batch in batches for row in batch.rows}
        for batch in committed:
            for offset, key, value in batch.rows:
                self.committed[key][offset] = value

    def check(self, found: Iterable[HasRows], *, start: int, end: int, when: str) -> None:
        """start, end: the offsets of the rows that must be kept unless compaction removed them."""
        rows = [row for batch in found for row in batch.rows]
        seen = {row[0] for row in rows}
        assert [row[0] for row in rows] == sorted(seen), when
        assert set(rows) <= self.rows, when
        for values in self.committed.values():
            last_deletion = max(
                (offset for offset, value in values.items() if value is None), default=-1
            )
            for offset, value in values.items():
                if not start <= offset < end:
                    continue
                if offset in seen:
                    # a deleted row does not reappear: its tombstone is removed last
                    is_deleted = offset < last_deletion < end
                    assert not is_deleted or last_deletion in seen or value is None, when
                elif value is not None:
                    # superseded by an existing value, or by a deletion
                    assert offset < last_deletion or any(
                        later > offset and later in seen for later in values
                    ), f"{when}: the last of a key is lost"
