"""The effective values of a topic's settings, including all defaults.

The keys and their rules are in `kbroker/settings`; the dynamic settings of the cluster and of
brokers are in the image. `controller/configs/topic_configs` decides on the settings of new topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from kbroker.metadata.image import MetadataImage
from kbroker.protocol.messages.admin.topics import CreateTopicsResponse
from kbroker.settings.dynamic import is_accepted
from kbroker.settings.tables.keys import ConfigSource
from kbroker.settings.tables.topic_table import TOPIC_BROKER_KEYS, TOPIC_KEYS, UNIT_MS

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
UNCLEAN_LEADER_ELECTION: Final = "unclean.leader.election.enable"

CreatableTopicConfigs = CreateTopicsResponse.CreatableTopicConfigs


class StaticConfig(Protocol):
    """The part of BrokerConfig that is needed here: the values from the properties file and
    --override, as text.
    """

    @property
    def explicit(self) -> Mapping[str, str]: ...


class TopicSettings(NamedTuple):
    """The sources of a topic's defaults."""

    static: StaticConfig
    node_id: int


class EffectiveValue(NamedTuple):
    """A value and its source."""

    value: str | None
    source: ConfigSource


def effective_value(
    settings: TopicSettings, image: MetadataImage, overrides: Mapping[str, str], name: str
) -> EffectiveValue:
    """The effective value of a topic's setting, from the first of: the topic's overrides, the
    broker, the cluster, the properties file, the built-in default. An invalid value, which may be
    stored without validation by a broker, is ignored.
    """
    if name in overrides:
        return EffectiveValue(overrides[name], ConfigSource.TOPIC_CONFIG)
    layers = (
        (image.broker_configs(settings.node_id), ConfigSource.DYNAMIC_BROKER_CONFIG),
        (image.broker_configs(None), ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (settings.static.explicit, ConfigSource.STATIC_BROKER_CONFIG),
    )
    for configs, source in layers:
        for broker_key in TOPIC_BROKER_KEYS.get(name, ()):
            value = configs.get(broker_key)
            if value is not None and is_accepted(broker_key, value):
                unit_ms = UNIT_MS.get(broker_key, 1)
                return EffectiveValue(value if unit_ms == 1 else str(int(value) * unit_ms), source)
    return EffectiveValue(TOPIC_KEYS[name].default, ConfigSource.DEFAULT_CONFIG)


def effective_configs(
    settings: TopicSettings, image: MetadataImage, overrides: Mapping[str, str]
) -> list[CreatableTopicConfigs]:
    """Every setting of a topic with its value and source, by name; internal ones only if they are
    set.
    """
    entries = []
    for name, key in sorted(TOPIC_KEYS.items()):
        if key.internal and name not in overrides:
            continue
        value, source = effective_value(settings, image, overrides, name)
        entries.append(
            CreatableTopicConfigs(
                name=name,
                value=value,
                read_only=False,
                config_source=source,
                is_sensitive=key.sensitive,
            )
        )
    return entries
