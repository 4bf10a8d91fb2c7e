"""Which changes of a group's type are allowed: group.consumer.migration.policy (KIP-848)."""

from __future__ import annotations

from enum import Enum


class MigrationPolicy(Enum):
    """The values of the configuration."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def may_upgrade(self) -> bool:
        """Whether a classic group may become a consumer group."""
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def may_downgrade(self) -> bool:
        """Whether a consumer group may become a classic group."""
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)
