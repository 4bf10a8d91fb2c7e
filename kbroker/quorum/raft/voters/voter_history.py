"""The values of control records by offset: the newest voter set and kraft.version in the log take
effect at once, committed or not, and truncation restores earlier ones. KIP-853.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Generic, NamedTuple, TypeVar

from kbroker.model import InvariantError
from kbroker.quorum.raft.voters.voter_set import VoterSet

T = TypeVar("T")


class Entry(NamedTuple, Generic[T]):
    """A value and the offset of its record; -1 for the bootstrap checkpoint."""

    offset: int
    value: T


class History(Generic[T]):
    """Values by ascending offset."""

    __slots__ = ("_offsets", "_values")

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._values: list[T] = []

    @property
    def last(self) -> Entry[T] | None:
        """The newest value; None if there is none."""
        return Entry(self._offsets[-1], self._values[-1]) if self._offsets else None

    def newest(self, default: T) -> T:
        """The newest value; default if there is none."""
        return self._values[-1] if self._values else default

    def add(self, offset: int, value: T) -> None:
        """Add the newest value. Raises InvariantError for an offset that is not above the last."""
        if offset < -1 or (self._offsets and offset <= self._offsets[-1]):
            raise InvariantError(f"a value at offset {offset}, after those at {self._offsets}")
        self._offsets.append(offset)
        self._values.append(value)

    def value_at(self, offset: int) -> T | None:
        """The newest value at or before offset; None if there is none."""
        index = bisect_right(self._offsets, offset)
        return self._values[index - 1] if index else None

    def truncate_new(self, end_offset: int) -> None:
        """Remove the values from end_offset on: the log was truncated to it."""
        index = bisect_left(self._offsets, end_offset)
        del self._offsets[index:], self._values[index:]

    def truncate_old(self, start_offset: int) -> None:
        """Remove the values that are not in effect at start_offset or later: the log starts
        there.
        """
        index = bisect_right(self._offsets, start_offset) - 1
        if index > 0:
            del self._offsets[:index], self._values[:index]

    def clear(self) -> None:
        """Remove all values."""
        self._offsets.clear()
        self._values.clear()


class VoterHistory:
    """The voter sets of the log, with that of the configuration (controller.quorum.voters) as the
    first.

    last: the voter set in effect, cached because every event of the core reads it several times.
    """

    __slots__ = ("_history", "last", "static_voters")

    def __init__(self, static_voters: VoterSet) -> None:
        self.static_voters = static_voters
        self.last = static_voters
        self._history: History[VoterSet] = History()

    @property
    def last_offset(self) -> int | None:
        """The offset of the record with the last voter set; None for the static voters, -1 for the
        bootstrap checkpoint.
        """
        last = self._history.last
        return None if last is None else last.offset

    def add(self, offset: int, voters: VoterSet) -> None:
        """Add the voter set of a record. Raises InvariantError for an offset that is not above the
        last.
        """
        self._history.add(offset, voters)
        self.last = voters

    def value_at(self, offset: int) -> VoterSet | None:
        """The voter set of the log as of offset; None if the log has none so far."""
        return self._history.value_at(offset)

    def truncate_new(self, end_offset: int) -> None:
        """Restore the voter set before end_offset."""
        self._history.truncate_new(end_offset)
        self.last = self._history.newest(self.static_voters)

    def truncate_old(self, start_offset: int) -> None:
        """Remove the sets that are not in effect at start_offset or later."""
        self._history.truncate_old(start_offset)
        self.last = self._history.newest(self.static_voters)

    def clear(self) -> None:
        """Remove all sets except the static one."""
        self._history.clear()
        self.last = self.static_voters
