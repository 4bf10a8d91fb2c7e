"""AlterConfigs and IncrementalAlterConfigs (KIP-133, KIP-339): what a request makes of the settings
that stand, and its records.

Each resource has its own outcome; what fails leaves the others alone. Settings of brokers are
checked by the broker that is asked (`settings/dynamic`, in
`server/handlers/configs/alter_configs`), which knows its own; what is asked of a controller
directly is checked key by key. What a new topic is created with is in `topic_configs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from kbroker.controller.configs.topic_configs import check_value_size
from kbroker.controller.policies import AlterConfigPolicy, AlteredConfigs, PolicyViolation
from kbroker.controller.result import ControllerResult, DecisionSteps
from kbroker.metadata.client_metrics import check_subscription
from kbroker.metadata.configs import MIN_INSYNC_REPLICAS
from kbroker.metadata.features import CORDONED_DIRECTORIES_LEVEL
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.topic_names import name_error
from kbroker.model import ConfigOperation
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.stored.metadata_records import ClearElrRecord, ConfigRecord
from kbroker.settings.dynamic import check_key
from kbroker.settings.group_configs import BoundsConfig, validate_group_configs
from kbroker.settings.tables.group_table import CLIENT_METRICS_KEYS, GROUP_KEYS
from kbroker.settings.tables.keys import (
    ConfigError,
    ConfigKey,
    ConfigType,
    ResourceType,
    split_list,
)
from kbroker.settings.tables.table import BROKER_KEYS
from kbroker.settings.tables.topic_table import TOPIC_KEYS
from kbroker.settings.topic_configs import validate_topic_configs

CORDONED: Final = "cordoned.log.dirs"
MAX_DIGITS: Final = 10
"""Of the id of a node."""

_KEYS: Final[Mapping[int, Mapping[str, ConfigKey]]] = {
    ResourceType.TOPIC: TOPIC_KEYS,
    ResourceType.BROKER: BROKER_KEYS,
    ResourceType.CLIENT_METRICS: CLIENT_METRICS_KEYS,
    ResourceType.GROUP: GROUP_KEYS,
}


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


class AlterationOutcome(NamedTuple):
    """The outcome for one resource. message: None on success."""

    error: ErrorCode
    message: str | None


MAX_ALTERATIONS: Final = 1000
"""Of one resource; far more than there are keys."""

ALTERED: Final = AlterationOutcome(ErrorCode.NONE, None)


class Alterations(msgspec.Struct, frozen=True):
    """A request. incremental: what is not named stays as it is; otherwise it goes. from_broker: a
    broker has checked what concerns its own settings.
    """

    resources: Sequence[AlteredResource]
    incremental: bool
    validate_only: bool = False
    from_broker: bool = True


class ConfigContext(NamedTuple):
    """What alterations are decided on. broker: gives the bounds of group settings."""

    image: MetadataImage
    broker: BoundsConfig
    policy: AlterConfigPolicy | None = None


def alter_configs(
    context: ConfigContext, request: Alterations
) -> DecisionSteps[list[AlterationOutcome]]:
    """An outcome per resource, in their order."""
    counts = Counter((resource.resource_type, resource.name) for resource in request.resources)
    records: list[Message] = []
    outcomes: list[AlterationOutcome] = []
    for number, resource in enumerate(request.resources):
        if number:
            yield
        try:
            if counts[resource.resource_type, resource.name] > 1:
                message = "Each resource must appear at most once."
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            records += _decide_one(context, request, resource)
        except KafkaError as error:
            outcomes.append(AlterationOutcome(error.code, error.message))
        else:
            outcomes.append(ALTERED)
    if context.image.elr_enabled:  # what ELR knew under the old minimum is void
        records += [
            ClearElrRecord(
                topic_name=record.resource_name
                if record.resource_type == ResourceType.TOPIC
                else ""
            )
            for record in records
            if isinstance(record, ConfigRecord) and record.name == MIN_INSYNC_REPLICAS
        ]
    return ControllerResult([] if request.validate_only else records, outcomes)


Changes = Mapping[str, str | None]
"""New values by name, None for what goes."""


def _decide_one(
    context: ConfigContext, request: Alterations, resource: AlteredResource
) -> list[Message]:
    check_form(resource)
    if resource.resource_type not in _KEYS:
        message = f"Unknown resource type {resource.resource_type}"
        if not request.from_broker:  # Kafka's brokers refuse it before they ask a controller
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{message}.")
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    standing = context.image.configs.get((resource.resource_type, resource.name), {})
    changes = changes_of(resource, standing, incremental=request.incremental)
    values = dict(standing)
    for name, value in changes.items():
        _check_transition(context.image, resource, standing, name, value, request.from_broker)
        if value is None:
            values.pop(name, None)
        else:
            check_value_size(value)
            values[name] = value
    _CHECKS[resource.resource_type](context, request, resource, values)
    _ask_policy(context.policy, resource, changes)
    # a setting of brokers is written again too: it makes them read files anew (KAFKA-14136)
    is_of_broker = resource.resource_type == ResourceType.BROKER
    return [
        ConfigRecord(
            resource_type=resource.resource_type,
            resource_name=resource.name,
            name=name,
            value=value,
        )
        for name, value in changes.items()
        if is_of_broker or value != standing.get(name)
    ]


def _ask_policy(
    policy: AlterConfigPolicy | None, resource: AlteredResource, changes: Changes
) -> None:
    """Ask about what the request names: what AlterConfigs removes without naming it is not."""
    if policy is None:
        return
    named = {each.name: changes[each.name] for each in resource.alterations}
    try:
        policy.validate(AlteredConfigs(resource.resource_type, resource.name, named))
    except PolicyViolation as violation:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, str(violation)) from violation


def check_form(resource: AlteredResource) -> None:
    """Raises KafkaError for what no resource can be altered with."""
    if len(resource.alterations) > MAX_ALTERATIONS:
        message = f"No resource has more than {MAX_ALTERATIONS} settings."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    names = [alteration.name for alteration in resource.alterations]
    if len(set(names)) < len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [
        alteration.name
        for alteration in resource.alterations
        if alteration.value is None and alteration.operation != ConfigOperation.DELETE
    ]
    if nulls:
        message = f"Null value not supported for : {', '.join(nulls)}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check_transition(
    image: MetadataImage,
    resource: AlteredResource,
    standing: Mapping[str, str],
    name: str,
    value: str | None,
    from_broker: bool,
) -> None:
    """Raises KafkaError for a change of a broker's setting that the controller cannot allow."""
    if resource.resource_type != ResourceType.BROKER:
        return
    message = ""
    if name == MIN_INSYNC_REPLICAS and image.elr_enabled:
        if resource.name:
            message = f"Broker-level {name} cannot be altered while ELR is enabled."
        elif value is None:
            message = f"Cluster-level {name} cannot be removed while ELR is enabled."
    elif name == CORDONED:
        if image.metadata_version < CORDONED_DIRECTORIES_LEVEL:
            message = (
                f"The {CORDONED} configuration value cannot be set because it requires "
                "metadata.version >= 4.3-IV0"
            )
        elif not (from_broker or _is_sublist(value or "", standing.get(name, ""))):
            message = (
                f"When updating {CORDONED} via controllers,  the new value must be a subset of"
                " the current configuration value."
            )
    if message:
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def _is_sublist(value: str, of: str) -> bool:
    return set(split_list(value)) <= set(split_list(of))


def changes_of(
    resource: AlteredResource, standing: Mapping[str, str], *, incremental: bool
) -> Changes:
    """New values by name, None for what goes, of a resource of a type that can be altered. Raises
    KafkaError.
    """
    return _incremental(resource, standing) if incremental else _whole(resource, standing)


def _incremental(resource: AlteredResource, standing: Mapping[str, str]) -> Changes:
    keys = _KEYS[resource.resource_type]
    changes: dict[str, str | None] = {}
    for name, operation, value in resource.alterations:
        match operation:
            case ConfigOperation.SET:
                changes[name] = value
            case ConfigOperation.DELETE:
                changes[name] = None
            case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
                key = keys.get(name)
                if (
                    key is None
                    or key.type is not ConfigType.LIST
                    or resource.resource_type == ResourceType.CLIENT_METRICS  # as in Kafka's schema
                ):
                    verb = ConfigOperation(operation).name
                    message = f"Can't {verb} to key {name} because its type is not LIST."
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
    if operation == ConfigOperation.APPEND:
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


def _check_topic(
    context: ConfigContext,
    request: Alterations,
    resource: AlteredResource,
    values: Mapping[str, str],
) -> None:
    del request
    if not resource.name:
        message = "Default topic resources are not allowed."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if (reason := name_error(resource.name)) is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
    try:
        validate_topic_configs(values)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    if resource.name not in context.image.topics:
        message = f"The topic '{resource.name}' does not exist."
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


def _check_group(
    context: ConfigContext,
    request: Alterations,
    resource: AlteredResource,
    values: Mapping[str, str],
) -> None:
    del request
    if not resource.name:
        message = "Default group resources are not allowed."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    try:
        validate_group_configs(values, context.broker)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error


def _check_broker(
    context: ConfigContext,
    request: Alterations,
    resource: AlteredResource,
    values: Mapping[str, str],
) -> None:
    """The name, as Kafka's controller; the values too if no broker has looked at them."""
    name = resource.name
    if name:
        digits = name.removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS
        if not is_number or name != str(int(name)):
            message = "Unable to parse broker name as a base 10 number."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if int(name) < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid negative broker ID.")
    if not request.from_broker:
        for key, value in values.items():
            try:
                check_key(key, value, of_broker=bool(name))
            except ConfigError as error:
                raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    image = context.image
    if name and int(name) not in image.brokers and int(name) not in image.controllers:
        message = f"No node with id {name} found."
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, message)


def _check_client_metrics(
    context: ConfigContext,
    request: Alterations,
    resource: AlteredResource,
    values: Mapping[str, str],
) -> None:
    del context, request
    check_subscription(resource.name, values)


_CHECKS: Final[
    Mapping[int, Callable[[ConfigContext, Alterations, AlteredResource, Mapping[str, str]], None]]
] = {
    ResourceType.TOPIC: _check_topic,
    ResourceType.BROKER: _check_broker,
    ResourceType.CLIENT_METRICS: _check_client_metrics,
    ResourceType.GROUP: _check_group,
}
"""Raise KafkaError for values that a resource cannot have."""
