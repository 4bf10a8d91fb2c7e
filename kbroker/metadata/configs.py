"""A topic's settings in the controller: validation, records, and the effective values including all
defaults.

The keys and their rules are in `kbroker/settings`; the dynamic settings of the cluster and of
brokers are in the image.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest
from typing import Final, NamedTuple, Protocol

from kbroker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import CreateTopicsResponse
from kbroker.protocol.messages.stored.metadata_records import ClearElrRecord, ConfigRecord
from kbroker.settings.dynamic import is_accepted
from kbroker.settings.tables.keys import ConfigError, ConfigSource
from kbroker.settings.tables.topic_table import TOPIC_BROKER_KEYS, TOPIC_KEYS, UNIT_MS
from kbroker.settings.topic_configs import validate_topic_configs

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
MAX_VALUE_BYTES: Final = 32_767
"""The maximum size of a value in a ConfigRecord, in UTF-8 bytes. Kafka counts characters."""
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


def check_value_size(value: str) -> None:
    """Raises KafkaError(INVALID_CONFIG) for a value that is too large for a ConfigRecord."""
    if len(value) > MAX_VALUE_BYTES or len(value.encode()) > MAX_VALUE_BYTES:
        message = (
            "The configuration value cannot be added because it exceeds the maximum value "
            f"size of {MAX_VALUE_BYTES} bytes."
        )
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def validate(configs: Mapping[str, str | None]) -> dict[str, str]:
    """The overrides of a new topic, by name. Raises KafkaError(INVALID_CONFIG)."""
    values: dict[str, str] = {}
    # more names than keys: at least one is unknown, no need to check all of a client's 70,000
    for name in nsmallest(len(TOPIC_KEYS) + 1, configs):
        value = configs[name]
        if value is None:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}"
            )
        check_value_size(value)
        values[name] = value
    try:
        validate_topic_configs(values)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return {name: values[name] for name in configs}


def config_records(image: MetadataImage, topic: str, values: Mapping[str, str]) -> list[Message]:
    """The records that set these values on a topic. A changed min.insync.replicas clears the
    topic's ELR.
    """
    records: list[Message] = [
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic, name=name, value=value)
        for name, value in values.items()
    ]
    if MIN_INSYNC_REPLICAS in values and image.elr_enabled:
        records.append(ClearElrRecord(topic_name=topic))
    return records


def cluster_min_insync_record(settings: TopicSettings) -> ConfigRecord:
    """With ELR the cluster-wide min.insync.replicas is stored once, so that all controllers use the
    same value.
    """
    value = settings.static.explicit.get(MIN_INSYNC_REPLICAS, "1")
    return ConfigRecord(
        resource_type=BROKER_RESOURCE, resource_name="", name=MIN_INSYNC_REPLICAS, value=value
    )


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
