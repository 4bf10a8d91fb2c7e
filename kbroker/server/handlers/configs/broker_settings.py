"""What a broker checks itself of AlterConfigs and IncrementalAlterConfigs before the controller
decides on the rest (Kafka's ConfigAdminManager): settings of its own and of all brokers, whose
rules (`settings/dynamic`) need the settings of its file; and the levels of its loggers.
"""

from __future__ import annotations

from typing import Final

from kbroker.controller.configs.configs import (
    ALTERED,
    AlterationOutcome,
    Alterations,
    AlteredResource,
    changes_of,
    check_form,
)
from kbroker.log_lines import shown
from kbroker.model import ConfigOperation
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.server.handlers.configs.broker_loggers import alter_levels
from kbroker.server.services import NodeServices
from kbroker.settings.dynamic import broker_key, check_altered, stored_configs
from kbroker.settings.listener_keys import listener_of
from kbroker.settings.tables.keys import ConfigError, ConfigType, ResourceType

_OPERATIONS: Final = frozenset[int](ConfigOperation)
_OF_LISTS: Final = frozenset[int]({ConfigOperation.APPEND, ConfigOperation.SUBTRACT})


def outcome_here(
    services: NodeServices, request: Alterations, resource: AlteredResource
) -> AlterationOutcome | None:
    """The outcome for a resource that need not be asked of the controller; None for any other."""
    try:
        if resource.resource_type == ResourceType.BROKER_LOGGER and request.incremental:
            check_form(resource)
            alter_levels(
                services.node_id,
                resource,
                validate_only=request.validate_only,
                set_level=services.set_log_level,
            )
            return ALTERED
        if resource.resource_type == ResourceType.BROKER and services.is_broker:
            check_form(resource)
            _check_broker(services, request, resource)
    except KafkaError as error:
        return AlterationOutcome(error.code, error.message)
    return None


def _check_broker(services: NodeServices, request: Alterations, resource: AlteredResource) -> None:
    """Raises KafkaError."""
    name = resource.name
    if name:
        digits = name.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()):
            message = f"Node id must be an integer, but it is: {shown(name)}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if name != str(services.node_id):
            message = (
                f"Unexpected broker id, expected {services.node_id}, but received {shown(name)}"
            )
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if request.incremental:
        _check_operations(resource)
    stored = stored_configs(services.image, services.node_id)
    values = dict(stored.broker if name else stored.default)
    for key, value in changes_of(resource, values, incremental=request.incremental).items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    try:
        check_altered(services.config, stored, values, of_broker=bool(name))
    except ConfigError as error:
        is_unknown = broker_key(error.name) is None
        code = ErrorCode.INVALID_CONFIG if is_unknown else ErrorCode.INVALID_REQUEST
        raise KafkaError(code, _words(error)) from error


def _check_operations(resource: AlteredResource) -> None:
    """Raises KafkaError with a broker's own words, which are not the controller's, for an operation
    that there is not or not on this setting.
    """
    for name, operation, _ in resource.alterations:
        if operation not in _OPERATIONS:
            message = f"Unknown operations type {operation}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if operation not in _OF_LISTS:
            continue
        key = broker_key(name)
        if key is None or listener_of(name) is not None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {shown(name)}")
        if key.type is not ConfigType.LIST:
            verb = ConfigOperation(operation).name.lower()
            message = f"Config value {verb} is not allowed for config key: {shown(name)}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def _words(error: ConfigError) -> str:
    """What is wrong, with the name of the key."""
    text = str(error)
    if error.name in text:
        return text
    return f"Invalid value {shown(error.value)} for configuration {error.name}: {text}"
