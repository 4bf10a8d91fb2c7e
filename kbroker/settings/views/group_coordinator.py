"""`GroupCoordinatorConfig`: groups, members and committed offsets."""

from __future__ import annotations

import msgspec

from kbroker.settings.broker import BrokerConfig


class GroupCoordinatorConfig(msgspec.Struct):
    """The settings of one broker. Only the assignment intervals change while it runs. The
    properties of the offsets topic are in `metadata/internal_topics`.
    """

    offsets_topic_num_partitions: int = 50
    offsets_topic_compression_codec: int = 0
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offsets_commit_timeout_ms: int = 5_000
    offsets_load_buffer_size: int = 5_242_880
    offset_metadata_max_bytes: int = 4_096
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2**31 - 1
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_assignment_interval_ms: int = 1_000
    group_share_session_timeout_ms: int = 45_000
    group_share_heartbeat_interval_ms: int = 5_000
    group_share_max_size: int = 200
    group_share_assignment_interval_ms: int = 1_000
    group_share_initialize_retry_interval_ms: int = 30_000
    group_streams_session_timeout_ms: int = 45_000
    group_streams_heartbeat_interval_ms: int = 5_000
    group_streams_max_size: int = 2**31 - 1
    group_streams_num_standby_replicas: int = 0
    group_streams_initial_rebalance_delay_ms: int = 3_000
    group_streams_assignment_interval_ms: int = 1_000
    kbroker_group_max_pending_members: int = 1_000
    kbroker_group_members_max_bytes: int = 67_108_864
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")

    @property
    def offsets_retention_ms(self) -> int:
        """How long offsets of an empty group are kept, in ms."""
        return self.offsets_retention_minutes * 60_000

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply the settings that may change while the broker runs."""
        for kind in ("consumer", "share", "streams"):
            interval_ms = config.get_int(f"group.{kind}.assignment.interval.ms")
            setattr(self, f"group_{kind}_assignment_interval_ms", interval_ms)

    @classmethod
    def from_broker(cls, config: BrokerConfig) -> GroupCoordinatorConfig:
        """The group coordinator's part of a broker's settings."""
        names = {name: name.replace("_", ".") for name in cls.__struct_fields__}
        del names["group_consumer_assignors"]
        policy = config.get_string(names.pop("group_consumer_migration_policy"))
        assignors = config.get_list("group.consumer.assignors")
        return cls(
            **{name: config.get_int(key) for name, key in names.items()},
            group_consumer_migration_policy=policy.lower(),
            group_consumer_assignors=assignors,
        )
