"""Configurations that a group sets for itself (KIP-848, resource type GROUP)."""

from __future__ import annotations

from typing import Final, Protocol


class GroupOverrides(Protocol):
    """The groups' own settings (IncrementalAlterConfigs), within the broker's bounds."""

    def get_int(self, group_id: str, name: str) -> int | None:
        """A whole number by its name, such as consumer.session.timeout.ms; None: nothing set."""
        ...


class _NoOverrides:
    __slots__ = ()

    def get_int(self, group_id: str, name: str) -> int | None:
        return None


NO_OVERRIDES: Final = _NoOverrides()
"""The broker's settings hold for every group."""
