"""The settings with which topics are created: which values are refused, and the records that set
them.

The keys and their rules are in `kbroker/settings`, and the effective values in `metadata/configs`.
`configs` decides on alterations.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest
from typing import Final

from kbroker.metadata.configs import MIN_INSYNC_REPLICAS
from kbroker.metadata.image import TOPIC_RESOURCE, MetadataImage
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.stored.metadata_records import ClearElrRecord, ConfigRecord
from kbroker.settings.tables.keys import ConfigError
from kbroker.settings.tables.topic_table import TOPIC_KEYS
from kbroker.settings.topic_configs import validate_topic_configs

MAX_VALUE_BYTES: Final = 32_767
"""The maximum size of a value in a ConfigRecord, in UTF-8 bytes. Kafka counts characters."""


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
