"""Which migrations each value of group.consumer.migration.policy allows."""

from __future__ import annotations

import pytest

from kbroker.coordinator.group.consumer.migration_policy import MigrationPolicy


@pytest.mark.parametrize(
    ("value", "may_upgrade", "may_downgrade"),
    [
        ("disabled", False, False),
        ("upgrade", True, False),
        ("downgrade", False, True),
        ("bidirectional", True, True),
    ],
)
def test_directions(value: str, may_upgrade: bool, may_downgrade: bool) -> None:
    policy = MigrationPolicy(value)
    assert (policy.may_upgrade, policy.may_downgrade) == (may_upgrade, may_downgrade)


def test_there_are_no_other_values() -> None:
    assert len(MigrationPolicy) == 4
