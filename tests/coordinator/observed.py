"""The state of a group coordinator's shard in a form that can be compared: all state that is
durable by design.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from kbroker.coordinator.group.classic.group import ClassicGroup
from kbroker.coordinator.group.classic.state import GroupState
from kbroker.coordinator.group.membership.subscriptions import Subscription
from kbroker.coordinator.group.offsets.pending import OffsetPlace
from kbroker.coordinator.group.shard import GroupShard
from kbroker.ports import at_once
from kbroker.protocol.errors import KafkaError
from tests.coordinator.simulation import World

NOT_DURABLE = frozenset(
    {
        "configured",
        "endpoint_epoch",
        "is_hash_current",
        "matched_topics",
        "quiet_on",
        "seen_topics",
        "shutdown_by",
    }
)
"""Attributes of groups that the next heartbeat computes again, or that are lost as in Kafka."""
AT_REST = (GroupState.EMPTY, GroupState.STABLE)


def plain(value: Any) -> Any:
    """Values as dicts and lists, whatever their classes; the order of dicts does not count."""
    if isinstance(value, Enum | str | bytes | int | float | bool) or value is None:
        return value
    if isinstance(value, Mapping):
        return {_key(key): plain(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return frozenset(value)
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return {
        name: plain(getattr(value, name))
        for kind in type(value).__mro__
        for name in getattr(kind, "__slots__", ())
        if name not in NOT_DURABLE
    }


def _key(key: Any) -> Any:
    """Subscriptions are keys by identity."""
    return (key.names, key.regex) if isinstance(key, Subscription) else key


def classic(group: ClassicGroup) -> dict[str, Any]:
    """A classic group at rest."""
    return {
        "state": group.state.value,
        "since": group.state_since_ms,
        "generation": group.generation_id,
        "protocol": (group.protocol_type, group.protocol_name),
        "leader": group.leader_id,
        "static": dict(group.static_members),
        "members": {
            member.member_id: (
                member.instance_id,
                member.client_id,
                member.client_host,
                member.session_timeout_ms,
                member.rebalance_timeout_ms,
                member.metadata(group.protocol_name),
                member.assignment,
            )
            for member in group.members.values()
        },
    }


def in_flux(shard: GroupShard) -> frozenset[str]:
    """Classic groups in the middle of a rebalance: members and state of it are not durable."""
    return frozenset(
        group_id
        for group_id, group in shard.classic.groups.items()
        if group.state not in AT_REST
        or any(member.join_waiter is not None for member in group.members.values())
    )


def observed(world: World, flux: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The complete state of the shard. flux: classic groups of which only the record is
    compared.
    """
    shard = world.shard()
    offsets = shard.offsets
    bare = {
        group_id
        for group_id in shard.classic.groups
        if group_id not in shard.classic.metadata and not offsets.has_group(group_id)
    }
    return {
        "listed": sorted(
            (one.group_id, one.group_type, one.protocol_type, one.group_state)
            for one in at_once(world.coordinator.list_groups()).groups
            if one.group_id not in bare | flux
        ),
        "records": plain(shard.classic.metadata),
        "classic": {
            group_id: classic(group)
            for group_id, group in shard.classic.groups.items()
            if group_id not in bare | flux and group_id in shard.classic.metadata
        },
        "consumer": plain(shard.consumer.groups),
        "share": plain(shard.share.groups),
        "streams": plain(shard.streams.groups),
        "states": {
            group_id: group.state()
            for groups in (shard.consumer.groups, shard.share.groups, shard.streams.groups)
            for group_id, group in groups.items()
        },
        "offsets": {group_id: plain(offsets.of_group(group_id)) for group_id in offsets.groups()},
        "pending": {
            place: plain(offsets.pending.values(place))
            for group_id in offsets.pending.groups
            for place in (
                OffsetPlace(group_id, *each) for each in offsets.pending.in_group(group_id)
            )
        },
        "deletable": {
            group_id: deletable(shard, group_id) for group_id in sorted(shard.classic.metadata)
        }
        if not flux
        else {},
        "timers": timers(shard),
    }


def deletable(shard: GroupShard, group_id: str) -> object:
    """The results that DeleteGroups and OffsetDelete would have."""
    error, records = shard.delete_group(group_id)
    try:
        subscribed: object = shard.subscribed_topics(group_id)
    except KafkaError as refused:
        subscribed = refused.code
    return error, len(records), subscribed


def timers(shard: GroupShard) -> dict[str, object]:
    """Which members have a session timeout, and which a rebalance timeout."""
    consumer, streams = shard.consumer._sessions, shard.streams._sessions
    return {
        "consumer sessions": sorted(consumer._sessions),
        "consumer revocations": sorted(consumer._rebalances),
        "share sessions": sorted(shard.share._sessions),
        "streams sessions": sorted(streams._sessions),
        "streams revocations": sorted(streams._rebalances),
    }
