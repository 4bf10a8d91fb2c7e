"""The settings of share groups: the broker's, and a group's own in their place."""

from __future__ import annotations

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.group_configs import GroupConfigs
from kbroker.settings.views.share_groups import ShareGroupConfig


def of_group(overrides: dict[str, str], **properties: str) -> ShareGroupConfig:
    broker = BrokerConfig.from_properties(
        {name.replace("_", "."): value for name, value in properties.items()}
    )
    configs = GroupConfigs(broker, lambda group_id: overrides if group_id == "g" else {})
    config = ShareGroupConfig.from_broker(broker)
    assert config.of_group(configs, "another") == config
    return config.of_group(configs, "g")


def test_the_defaults_are_those_of_the_table() -> None:
    broker = BrokerConfig.from_properties({})
    assert ShareGroupConfig.from_broker(broker) == ShareGroupConfig()
    assert of_group({}) == ShareGroupConfig()


def test_a_groups_own_settings() -> None:
    found = of_group(
        {
            "share.record.lock.duration.ms": "20000",
            "share.delivery.count.limit": "7",
            "share.auto.offset.reset": "by_duration:PT1H",
            "share.isolation.level": "read_committed",
            "share.renew.acknowledge.enable": "false",
        },
        group_share_max_share_sessions="9",
    )
    assert found.group_share_record_lock_duration_ms == 20_000
    assert found.group_share_delivery_count_limit == 7
    assert found.auto_offset_reset == "by_duration:PT1H"
    assert (found.reads_committed, found.may_renew) == (True, False)
    assert found.group_share_max_share_sessions == 9


def test_a_group_s_setting_stays_within_the_broker_s_bounds() -> None:
    assert of_group({"share.delivery.count.limit": "1000"}).group_share_delivery_count_limit == 10
    uncommitted = of_group({"share.isolation.level": "read_uncommitted"})
    assert not uncommitted.reads_committed
