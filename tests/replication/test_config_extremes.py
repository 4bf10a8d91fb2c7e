"""Every topic configuration at its extremes, through a topic's whole life (`topic_life`): alone,
and with all others at theirs. What a validator refuses is refused with Kafka's error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import count
from random import Random
from typing import Final

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.settings.tables.keys import ConfigError
from kbroker.settings.tables.topic_table import TOPIC_KEYS
from kbroker.settings.topic_configs import validate_topic_configs
from tests.controller.cluster import Cluster as Controllers
from tests.controller.cluster import CreatableTopic, TopicConfig
from tests.replication.topic_life import (
    NEIGHBOUR,
    BoundedWorld,
    TopicLife,
    folder_in_memory,
)
from tests.settings.extremes import Setting, all_pairs, covering, extremes, is_allowed

TRIED: Final[list[Setting]] = [
    (name, text) for name, key in TOPIC_KEYS.items() for text in extremes(key)
]


def refusal(settings: Mapping[str, str]) -> str | None:
    """Why these settings cannot be; None if they can."""
    try:
        validate_topic_configs(settings)
    except ConfigError as error:
        return str(error)
    return None


ACCEPTED: Final = [setting for setting in TRIED if refusal(dict([setting])) is None]
REFUSED: Final = [setting for setting in TRIED if refusal(dict([setting])) is not None]

_numbers = count(100)


@pytest.fixture(scope="module")
def world() -> Iterator[BoundedWorld]:
    """One for many topics, as a broker has them. Nothing is synced: no machine crashes here."""
    with pytest.MonkeyPatch.context() as patch, folder_in_memory() as folder:
        patch.setattr(os, "fsync", lambda fd: None)
        made = BoundedWorld(folder)
        made.host(topic=NEIGHBOUR, topic_id=bytes(15) + b"\1")
        yield made
        made.close()


def live(world: BoundedWorld, settings: Mapping[str, str]) -> None:
    number = next(_numbers)
    TopicLife(world, number, settings).live(alter=bool(number % 2))


def test_the_tables_are_tried_at_all_their_extremes() -> None:
    assert len(ACCEPTED) > 90 and len(REFUSED) > 90
    assert {name for name, _ in ACCEPTED} == set(TOPIC_KEYS)
    for name, text in TRIED:
        allowed = is_allowed(TOPIC_KEYS[name], text)
        if allowed is not None and name != "remote.storage.enable":
            assert allowed == (refusal({name: text}) is None), (name, text)


def test_what_is_beyond_the_extremes_is_refused_with_kafkas_error() -> None:
    cluster = Controllers()
    for number, (name, text) in enumerate(REFUSED):
        topic = CreatableTopic(
            name=f"t{number}", num_partitions=1, replication_factor=1,
            configs=[TopicConfig(name=name, value=text)],
        )  # fmt: skip
        (result,) = cluster.create(topic).topics
        assert result.error_code == ErrorCode.INVALID_CONFIG, (name, text, result)
        assert result.error_message
    assert not cluster.image.topics


BUSY: Final = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0",
    "preallocate": "true",
}
"""With many segments and compaction most other settings begin to matter."""


@pytest.mark.parametrize(
    "background",
    [pytest.param({}, id="alone", marks=pytest.mark.slow), pytest.param(BUSY, id="compacted")],
)
@pytest.mark.parametrize("name", TOPIC_KEYS)
def test_each_configuration_at_its_extremes(
    world: BoundedWorld, name: str, background: dict[str, str]
) -> None:
    for key, text in ACCEPTED:
        if key == name:
            live(world, background | {name: text})


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.slow) for seed in range(20)])
def test_all_configurations_at_their_extremes_at_once(world: BoundedWorld, seed: int) -> None:
    """Each pair of values is met, among random values of all the other keys."""
    for settings in covering(ACCEPTED, Random(seed)):
        if refusal(settings) is None:
            live(world, settings)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", TOPIC_KEYS)
def test_each_pair_of_extremes(world: BoundedWorld, name: str) -> None:
    """The second key is one that follows in the alphabet."""
    mine = [setting for setting in ACCEPTED if setting[0] >= name]
    for settings in all_pairs(mine):
        if name in settings and refusal(settings) is None:
            live(world, settings)
