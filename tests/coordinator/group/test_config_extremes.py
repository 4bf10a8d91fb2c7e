"""Every configuration of a group at its extremes, with the widest bounds of the broker: members
join, stay, stop sending and leave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.group_configs import GroupConfigs, validate_group_configs
from kbroker.settings.tables.group_table import GROUP_KEYS
from kbroker.settings.tables.keys import ConfigError
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from kbroker.settings.views.share_groups import ShareGroupConfig
from tests.coordinator.group.consumers import Consumer
from tests.coordinator.group.share.shares import Shares
from tests.coordinator.group.streams_members import StreamsThread
from tests.coordinator.simulation import World
from tests.settings.extremes import Setting, extremes, is_allowed

LARGEST: Final = str(2**31 - 1)
WIDE: Final = {
    f"group.{kind}.{bound}.{what}": LARGEST if bound == "max" else least
    for kind, whats in {
        "consumer": ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"),
        "share": ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"),
        "streams": ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"),
    }.items()
    for what in whats
    for bound, least in (("min", "0" if what.startswith("assignment") else "1"), ("max", ""))
}
WIDE_LOCKS: Final = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.max.record.lock.duration.ms": "3600000",
}
DURATIONS: Final = ("PT0S", "PT-1S", "P106751991167D", "P106751991168D", "PT9223372036854775807S")
MORE: Final[list[Setting]] = [
    ("share.auto.offset.reset", f"by_duration:{duration}") for duration in DURATIONS
]
TRIED: Final[list[Setting]] = [
    (name, text) for name, key in GROUP_KEYS.items() for text in extremes(key)
] + MORE


def wide_broker() -> BrokerConfig:
    return BrokerConfig.from_properties(
        {"node.id": "1", "log.dirs": "unused", **WIDE, **WIDE_LOCKS}
    )


def refusal(settings: dict[str, str]) -> str | None:
    try:
        validate_group_configs(settings, wide_broker())
    except ConfigError as error:
        return str(error)
    return None


ACCEPTED: Final = [(name, text) for name, text in TRIED if refusal({name: text}) is None]


def world_of(settings: dict[str, str]) -> World:
    broker = wide_broker()
    world = World(config=GroupCoordinatorConfig.from_broker(broker))
    configs = GroupConfigs(broker, lambda group_id: settings)
    for group_id in ("c", "s"):
        for name in settings:
            value = configs.get(group_id, name)
            if isinstance(value, int):
                world.overrides.values[group_id, name] = value
            ShareGroupConfig.from_broker(broker).of_group(configs, group_id)
    return world


def consumers(settings: dict[str, str]) -> None:
    world = world_of(settings)
    members = [Consumer(world, name) for name in ("m1", "m2")]
    live(world, members, silent_ms=settings.get("consumer.session.timeout.ms"))
    assert world.shard().consumer.groups["c"].state() in ("Stable", "Empty", "Assigning")


def streams(settings: dict[str, str]) -> None:
    world = world_of(settings)
    threads = [StreamsThread(world, name) for name in ("m1", "m2")]
    live(world, threads, silent_ms=settings.get("streams.session.timeout.ms"))


def live(
    world: World, members: list[Consumer] | list[StreamsThread], *, silent_ms: str | None
) -> None:
    """They poll as fast as any session requires, then one sends nothing for as long as allowed."""
    for _ in range(20):
        for member in members:
            member.poll()
            assert member.error in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID), member.error
        world.timers.advance(1 if silent_ms else 1000)
    world.timers.advance(int(silent_ms or 45_000) + 1)
    for _ in range(2):  # a removed member joins again
        members[0].poll()
    assert members[0].error is ErrorCode.NONE
    members[0].leave()
    world.timers.advance(100_000)


def shares(settings: dict[str, str]) -> None:
    made = Shares()
    made.take(world_of(settings))
    for member in ("m1", "m2"):
        assert not made.join(member).error_code
        made.world.timers.advance(1)
    made.world.timers.advance(int(settings.get("share.session.timeout.ms", "45000")) + 1)
    assert not made.group().members
    assert not made.join("m1").error_code


LIVES: Final[dict[str, Callable[[dict[str, str]], None]]] = {
    "consumer": consumers,
    "share": shares,
    "streams": streams,
}


def test_the_table_is_tried_at_all_its_extremes() -> None:
    assert len(ACCEPTED) > 20
    assert {name for name, _ in ACCEPTED} >= {name for name in GROUP_KEYS if "timeout" not in name}
    for name, text in TRIED:
        if is_allowed(GROUP_KEYS[name], text) is False:
            assert refusal({name: text}) is not None, (name, text)


@pytest.mark.parametrize("name", GROUP_KEYS)
def test_each_configuration_at_its_extremes(name: str) -> None:
    session = f"{name.split('.')[0]}.session.timeout.ms"
    for key, text in TRIED:
        if key != name:
            continue
        settings = {name: text}
        if refusal(settings) is not None and name.endswith("heartbeat.interval.ms"):
            settings[session] = LARGEST  # which has to be longer
        if refusal(settings) is not None and name == session:
            settings[f"{name.split('.')[0]}.heartbeat.interval.ms"] = "1"
        if refusal(settings) is None:
            LIVES[name.split(".")[0]](settings)
