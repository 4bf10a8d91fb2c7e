"""The settings of a streams group, and the context of its decisions."""

from __future__ import annotations

from typing import Protocol

import msgspec

from kbroker.coordinator.group.membership.context import AssignmentContext
from kbroker.coordinator.group.membership.overrides import GroupOverrides
from kbroker.coordinator.topics import ClusterTopics


class StreamsSettings(Protocol):
    """The part of the broker's configuration that a streams group reads."""

    @property
    def group_streams_session_timeout_ms(self) -> int: ...
    @property
    def group_streams_heartbeat_interval_ms(self) -> int: ...
    @property
    def group_streams_max_size(self) -> int: ...
    @property
    def group_streams_num_standby_replicas(self) -> int: ...
    @property
    def group_streams_initial_rebalance_delay_ms(self) -> int: ...
    @property
    def group_streams_assignment_interval_ms(self) -> int: ...


class StreamsGroupSettings(msgspec.Struct, frozen=True):
    """The settings in effect for one group: its overrides and the broker's."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_size: int
    num_standby_replicas: int
    initial_rebalance_delay_ms: int
    assignment_interval_ms: int

    @classmethod
    def of(
        cls, group_id: str, broker: StreamsSettings, overrides: GroupOverrides
    ) -> StreamsGroupSettings:
        """The current settings of that group."""

        def own_or(name: str, default: int) -> int:
            own = overrides.get_int(group_id, f"streams.{name}")
            return default if own is None else own

        return cls(
            own_or("session.timeout.ms", broker.group_streams_session_timeout_ms),
            own_or("heartbeat.interval.ms", broker.group_streams_heartbeat_interval_ms),
            broker.group_streams_max_size,
            own_or("num.standby.replicas", broker.group_streams_num_standby_replicas),
            own_or("initial.rebalance.delay.ms", broker.group_streams_initial_rebalance_delay_ms),
            own_or("assignment.interval.ms", broker.group_streams_assignment_interval_ms),
        )


class StreamsContext(AssignmentContext, kw_only=True):
    """is_delayed: whether the first assignment of the group waits for more members."""

    settings: StreamsGroupSettings
    is_delayed: bool = False

    @classmethod
    def of(
        cls,
        settings: StreamsGroupSettings,
        topics: ClusterTopics,
        wall_ms: int,
        *,
        client_id: str = "",
        client_host: str = "",
        is_delayed: bool = False,
    ) -> StreamsContext:
        """A context with the intervals of the group's settings."""
        return cls(
            topics=topics,
            wall_ms=wall_ms,
            client_id=client_id,
            client_host=client_host,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            assignment_interval_ms=settings.assignment_interval_ms,
            settings=settings,
            is_delayed=is_delayed,
        )
