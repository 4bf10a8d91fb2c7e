"""The settings of consumer groups, and the context of their decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kbroker.coordinator.group.membership.context import AssignmentContext


class ConsumerSettings(Protocol):
    """The part of the broker's configuration that a consumer group reads."""

    @property
    def group_consumer_session_timeout_ms(self) -> int: ...
    @property
    def group_consumer_heartbeat_interval_ms(self) -> int: ...
    @property
    def group_consumer_max_size(self) -> int: ...
    @property
    def group_consumer_assignment_interval_ms(self) -> int: ...
    @property
    def group_consumer_migration_policy(self) -> str: ...
    @property
    def group_consumer_assignors(self) -> tuple[str, ...]: ...


class ConsumerContext(AssignmentContext, kw_only=True):
    """new_member_id: creates an id for a member that joins without one."""

    settings: ConsumerSettings
    new_member_id: Callable[[], str]
