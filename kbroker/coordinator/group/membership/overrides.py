"""Configurations of single groups (KIP-848, resource type GROUP)."""

from __future__ import annotations

from typing import Final, Protocol


class GroupOverrides(Protocol):
    """The overrides of groups (IncrementalAlterConfigs), within the broker's limits."""

    def get_int(self, group_id: str, name: str) -> int | None:
        """An integer by its name, such as consumer.session.timeout.ms; None: no override."""
        ...


class _NoOverrides:
    __slots__ = ()

    def get_int(self, group_id: str, name: str) -> int | None:
        return None


NO_OVERRIDES: Final = _NoOverrides()
"""No overrides: the broker's settings apply to every group."""
