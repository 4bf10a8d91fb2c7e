"""AlterConfigs and IncrementalAlterConfigs (KIP-133, KIP-339) of topics and groups: what a request
makes of the settings that stand, and its records.

Each resource has its own outcome; what fails leaves the others alone. What a new topic is created
with is in `configs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from kbroker.controller.result import ControllerResult
from kbroker.metadata.configs import MIN_INSYNC_REPLICAS, check_value_size
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.topic_names import name_error
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata_records import ClearElrRecord, ConfigRecord
from kbroker.protocol.schema import Message
from kbroker.settings.group_configs import BoundsConfig, validate_group_configs
from kbroker.settings.group_table import GROUP_KEYS
from kbroker.settings.keys import ConfigError, ConfigKey, ConfigType, ResourceType
from kbroker.settings.topic_configs import validate_topic_configs
from kbroker.settings.topic_table import TOPIC_KEYS

_KEYS: Final[Mapping[int, Mapping[str, ConfigKey]]] = {
    ResourceType.TOPIC: TOPIC_KEYS,
    ResourceType.GROUP: GROUP_KEYS,
}


class Operation(IntEnum):
    """The operation on one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    """One setting of a request. operation: None replaces the whole resource (AlterConfigs)."""

    name: str
    operation: int | None
    value: str | None


class AlteredResource(NamedTuple):
    """All that a request says of one resource."""

    resource_type: int
    name: str
    alterations: Sequence[Alteration]


class Outcome(NamedTuple):
    """The outcome for one resource. message: None on success."""

    error: ErrorCode
    message: str | None


MAX_ALTERATIONS: Final = 1000
"""Of one resource; far more than there are keys."""

ALTERED: Final = Outcome(ErrorCode.NONE, None)


def alter_configs(
    image: MetadataImage,
    broker: BoundsConfig,
    resources: Sequence[AlteredResource],
    *,
    incremental: bool,
    validate_only: bool,
) -> ControllerResult[list[Outcome]]:
    """An outcome per resource, in their order. broker: gives the bounds of group settings.

    incremental: what is not named stays as it is; otherwise it goes.
    """
    decide = _incremental if incremental else _whole
    counts = Counter((resource.resource_type, resource.name) for resource in resources)
    records: list[Message] = []
    outcomes: list[Outcome] = []
    for resource in resources:
        try:
            if counts[resource.resource_type, resource.name] > 1:
                message = "Each resource must appear at most once."
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            records += _decide_one(image, broker, resource, decide)
        except KafkaError as error:
            outcomes.append(Outcome(error.code, error.message))
        else:
            outcomes.append(ALTERED)
    if image.elr_enabled:  # what ELR knew under the old minimum is void
        records += [
            ClearElrRecord(topic_name=record.resource_name)
            for record in records
            if isinstance(record, ConfigRecord)
            and record.name == MIN_INSYNC_REPLICAS
            and record.resource_type == ResourceType.TOPIC
        ]
    return ControllerResult([] if validate_only else records, outcomes)


Changes = Mapping[str, str | None]
"""New values by name, None for what goes."""


def _decide_one(
    image: MetadataImage,
    broker: BoundsConfig,
    resource: AlteredResource,
    decide: Callable[[AlteredResource, Mapping[str, str]], Changes],
) -> list[Message]:
    _check_form(resource)
    standing = image.configs.get((resource.resource_type, resource.name), {})
    changes = decide(resource, standing)
    values = dict(standing)
    for name, value in changes.items():
        if value is None:
            values.pop(name, None)
        else:
            check_value_size(value)
            values[name] = value
    _check_values(image, broker, resource, values)
    return [
        ConfigRecord(
            resource_type=resource.resource_type,
            resource_name=resource.name,
            name=name,
            value=value,
        )
        for name, value in changes.items()
        if value != standing.get(name)
    ]


def _check_form(resource: AlteredResource) -> None:
    if len(resource.alterations) > MAX_ALTERATIONS:
        message = f"No resource has more than {MAX_ALTERATIONS} settings."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    names = [alteration.name for alteration in resource.alterations]
    if len(set(names)) < len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [
        alteration.name
        for alteration in resource.alterations
        if alteration.value is None and alteration.operation != Operation.DELETE
    ]
    if nulls:
        message = f"Null value not supported for : {', '.join(nulls)}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if resource.resource_type not in _KEYS:
        known = resource.resource_type in ResourceType.__members__.values()
        message = f"Unknown resource type {resource.resource_type}"
        if known and resource.resource_type != ResourceType.UNKNOWN:
            kind = ResourceType(resource.resource_type).name
            message = f"Settings of {kind} resources cannot be altered while running."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _incremental(resource: AlteredResource, standing: Mapping[str, str]) -> Changes:
    keys = _KEYS[resource.resource_type]
    changes: dict[str, str | None] = {}
    for name, operation, value in resource.alterations:
        match operation:
            case Operation.SET:
                changes[name] = value
            case Operation.DELETE:
                changes[name] = None
            case Operation.APPEND | Operation.SUBTRACT:
                key = keys.get(name)
                if key is None or key.type is not ConfigType.LIST:
                    message = (
                        f"Can't {Operation(operation).name} to key {name} because its type is not "
                        "LIST."
                    )
                    raise KafkaError(ErrorCode.INVALID_CONFIG, message)
                items = _items(standing.get(name, key.default or ""))
                changes[name] = ",".join(_altered_list(items, operation, (value or "").split(",")))
            case _:
                message = f"There is no operation {operation} on a setting."
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    return changes


def _items(text: str) -> list[str]:
    return [item for item in text.split(",") if item]


def _altered_list(items: list[str], operation: int, operands: list[str]) -> list[str]:
    """The items with the operands added that are not among them, or with the first of each operand
    removed.
    """
    if operation == Operation.APPEND:
        known = set(items)
        return items + [each for each in dict.fromkeys(operands) if each not in known]
    left = Counter(operands)
    altered: list[str] = []
    for item in items:
        if left[item]:
            left[item] -= 1
        else:
            altered.append(item)
    return altered


def _whole(resource: AlteredResource, standing: Mapping[str, str]) -> Changes:
    changes: dict[str, str | None] = dict.fromkeys(standing)
    changes.update({alteration.name: alteration.value for alteration in resource.alterations})
    return changes


def _check_values(
    image: MetadataImage,
    broker: BoundsConfig,
    resource: AlteredResource,
    values: Mapping[str, str],
) -> None:
    kind = "topic" if resource.resource_type == ResourceType.TOPIC else "group"
    if not resource.name:
        message = f"Default {kind} resources are not allowed."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    try:
        if resource.resource_type == ResourceType.GROUP:
            validate_group_configs(values, broker)
            return
        if (reason := name_error(resource.name)) is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        validate_topic_configs(values)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    if resource.name not in image.topics:
        message = f"The topic '{resource.name}' does not exist."
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
