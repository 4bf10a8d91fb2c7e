"""The typed settings of the group coordinator equal the table they are read from."""

from __future__ import annotations

import pytest

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig


def test_the_defaults_are_those_of_the_table() -> None:
    broker = BrokerConfig.from_properties({})
    assert GroupCoordinatorConfig.from_broker(broker) == GroupCoordinatorConfig()


@pytest.mark.parametrize(
    ("key", "text", "field", "value"),
    [
        ("group.max.size", "10", "group_max_size", 10),
        ("offsets.retention.minutes", "2", "offsets_retention_ms", 120_000),
        ("group.consumer.assignors", "range", "group_consumer_assignors", ("range",)),
        (
            "group.consumer.migration.policy",
            "UPGRADE",
            "group_consumer_migration_policy",
            "upgrade",
        ),
        ("kbroker.group.max.pending.members", "7", "kbroker_group_max_pending_members", 7),
    ],
)
def test_what_is_set(key: str, text: str, field: str, value: object) -> None:
    config = GroupCoordinatorConfig.from_broker(BrokerConfig.from_properties({key: text}))
    assert getattr(config, field) == value
