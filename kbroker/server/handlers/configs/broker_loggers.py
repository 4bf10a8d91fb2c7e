"""The levels of this node's loggers (KIP-412), for DescribeConfigs and IncrementalAlterConfigs of
the resource BROKER_LOGGER. They are not stored: a restart begins with those of the command line.

The names are those of kbroker's modules (`kbroker.replication.leaders.isr`), whose levels a module
inherits from its package (`kbroker.replication`); `root` is the parent of all loggers, including
those of libraries. Kafka's names of classes (`kafka.controller.KafkaController`) have no
counterpart. The levels are Kafka's: TRACE is everything, FATAL is Python's CRITICAL.

Loggers belong to the process, so their levels are set only where the process is the node's own
(`kbroker serve`). An embedded broker describes them and refuses to alter them (docs/adr/0020).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from kbroker.controller.configs.configs import AlteredResource
from kbroker.log_lines import shown
from kbroker.model import ConfigOperation
from kbroker.ports import SetLogLevel
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.describe import ConfigEntry
from kbroker.settings.tables.keys import ConfigSource, ConfigType

logger = logging.getLogger(__name__)

ROOT: Final = "root"
TRACE: Final = 5
LEVELS: Final[Mapping[str, int]] = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": TRACE,
    "WARN": logging.WARNING,
}
"""Kafka's, in the order in which its message names them."""


def describe_loggers() -> list[ConfigEntry]:
    """The root logger and kbroker's, with the levels that hold for them."""
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    return [
        ConfigEntry(name, _level_of(name), source, ConfigType.UNKNOWN, False, False, ())
        for name in (ROOT, *sorted(filter(_is_kbroker, logging.root.manager.loggerDict)))
    ]


def alter_levels(
    node_id: int,
    resource: AlteredResource,
    *,
    validate_only: bool,
    set_level: SetLogLevel | None,
) -> None:
    """Set the levels that a resource of IncrementalAlterConfigs names, all or none. Raises
    KafkaError, with Kafka's codes and words. set_level: None for an embedded broker, which refuses
    with INVALID_REQUEST what is valid otherwise.
    """
    _check_name(node_id, resource.name)
    for name, operation, level in resource.alterations:
        match operation:
            case ConfigOperation.SET:
                _check_exists(name)
                if level not in LEVELS:
                    message = (
                        f"Cannot set the log level of {name} to {shown(level)} as it is not a"
                        f" supported log level. Valid log levels are {', '.join(LEVELS)}"
                    )
                    raise KafkaError(ErrorCode.INVALID_CONFIG, message)
            case ConfigOperation.DELETE:
                _check_exists(name)
                if name == ROOT:
                    message = "Removing the log level of the root logger is not allowed"
                    raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
                kind = ConfigOperation(operation).name
                message = f"{kind} operation is not allowed for the BROKER_LOGGER resource"
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            case _:
                message = (
                    f"Unknown operation type {operation} is not allowed for the BROKER_LOGGER"
                    " resource"
                )
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if set_level is None:
        message = (
            f"Cannot alter the log levels of node {node_id}: it is embedded in another program, and"
            " they belong to its process. Set them there, with Python's logging module."
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if not validate_only:
        for name, operation, level in resource.alterations:
            is_set = operation == ConfigOperation.SET
            set_level(_logger_of(name), LEVELS[level or ""] if is_set else logging.NOTSET)
            logger.warning("Node %d: the log level of %s is %s now", node_id, name, _level_of(name))


def _check_name(node_id: int, name: str) -> None:
    digits = name.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        message = f"Node id must be an integer, but it is: {shown(name)}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if name != str(node_id):
        message = f"Unexpected node id. Expected {node_id}, but received {shown(name)}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check_exists(name: str) -> None:
    known = logging.root.manager.loggerDict
    if name != ROOT and not (_is_kbroker(name) and name in known):
        message = f"Logger {shown(name)} does not exist!"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def _is_kbroker(name: str) -> bool:
    return name == "kbroker" or name.startswith("kbroker.")


def _logger_of(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def _level_of(name: str) -> str:
    """The next of Kafka's levels at or below the one that holds."""
    effective = _logger_of(name).getEffectiveLevel()
    below = [(number, level) for level, number in LEVELS.items() if number <= effective]
    return max(below)[1] if below else "TRACE"
