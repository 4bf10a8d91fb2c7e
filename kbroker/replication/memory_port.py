"""The account of what clients make the broker hold, as this room sees it.

`server.memory_pool` keeps it. What is charged is there whether it fits or not; what is kept for
longer than a request (sessions) has a share of its own and is refused beyond it.
"""

from __future__ import annotations

from typing import Protocol


class MemoryPort(Protocol):
    """Counts are bytes."""

    @property
    def is_short(self) -> bool:
        """Whether others wait for memory, or soon will."""
        ...

    def has_room(self, count: int) -> bool:
        """Whether so much more is within the limit."""
        ...

    def charge(self, count: int) -> None: ...
    def release(self, count: int) -> None: ...
    def keep(self, count: int) -> bool:
        """Charge what stays beyond the request, if there is room for such."""
        ...

    def lend(self, count: int) -> bool:
        """As `keep`, with more room while nobody waits for memory; see `overdrawn`."""
        ...

    @property
    def overdrawn(self) -> int:
        """What has to be dropped again when somebody waits."""
        ...

    def drop(self, count: int) -> None:
        """Of what is kept, so much is gone."""
        ...


class NoAccount:
    """The port where nobody counts."""

    is_short = False
    overdrawn = 0

    def has_room(self, count: int) -> bool:
        """There always is."""
        return True

    def charge(self, count: int) -> None:
        """Nothing."""

    def release(self, count: int) -> None:
        """Nothing."""

    def keep(self, count: int) -> bool:
        """There is always room."""
        return True

    def lend(self, count: int) -> bool:
        """There is always room."""
        return True

    def drop(self, count: int) -> None:
        """Nothing."""
