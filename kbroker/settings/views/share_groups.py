"""`ShareGroupConfig`: how share groups (KIP-932) read partitions, and the log of their states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.group_configs import GroupConfigs

_GROUP_KEYS: Final[Mapping[str, str]] = {
    "share.record.lock.duration.ms": "group_share_record_lock_duration_ms",
    "share.delivery.count.limit": "group_share_delivery_count_limit",
    "share.partition.max.record.locks": "group_share_partition_max_record_locks",
    "share.auto.offset.reset": "auto_offset_reset",
    "share.renew.acknowledge.enable": "may_renew",
}


class ShareGroupConfig(msgspec.Struct, frozen=True):
    """The settings of one broker, or of a group (`of_group`). Only a group has the last three."""

    group_share_record_lock_duration_ms: int = 30_000
    group_share_delivery_count_limit: int = 5
    group_share_partition_max_record_locks: int = 2_000
    group_share_max_share_sessions: int = 2_000
    share_coordinator_state_topic_num_partitions: int = 50
    share_coordinator_state_topic_compression_codec: int = 0
    share_coordinator_snapshot_update_records_per_snapshot: int = 500
    share_coordinator_state_topic_prune_interval_ms: int = 300_000
    share_coordinator_write_timeout_ms: int = 5_000
    auto_offset_reset: str = "latest"
    """earliest, latest, or by_duration: and an ISO 8601 duration."""
    reads_committed: bool = False
    may_renew: bool = True

    @classmethod
    def from_broker(cls, config: BrokerConfig) -> ShareGroupConfig:
        """The share groups' part of a broker's settings."""
        names = {
            name: name.replace("_", ".")
            for name in cls.__struct_fields__
            if name.startswith(("group_share", "share_coordinator"))
        }
        values = {name: config.get_int(key) for name, key in names.items()}
        return cls(**values)  # type: ignore[arg-type]  # only fields that are numbers

    def of_group(self, configs: GroupConfigs, group_id: str) -> ShareGroupConfig:
        """The settings with the group's overrides."""
        found = {
            field: value
            for name, field in _GROUP_KEYS.items()
            if (value := configs.get(group_id, name)) is not None
        }
        isolation = configs.get(group_id, "share.isolation.level")
        if isolation is not None:
            found["reads_committed"] = isolation == "read_committed"
        return replace(self, **found) if found else self
