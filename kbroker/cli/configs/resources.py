"""Requests for the settings of topics, brokers, loggers, client-metrics subscriptions and groups.

A broker answers for itself: what concerns one broker is sent to it, the rest to the controller or
to any broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from kbroker.cli.console.output import Cell
from kbroker.model import ConfigOperation, StartupError

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.protocol.messages.admin.configs import DescribeConfigsResponse
    from kbroker.settings.tables.keys import ResourceType

    DescribedConfigs = DescribeConfigsResponse.DescribeConfigsResult

DEFAULT_BROKER: Final = "default"
"""The name under which a user means the settings of all brokers; in requests it is empty."""


class ResourceKind(StrEnum):
    """What a setting belongs to."""

    TOPIC = "topic"
    BROKER = "broker"
    BROKER_LOGGER = "broker-logger"
    CLIENT_METRICS = "client-metrics"
    GROUP = "group"

    @property
    def resource_type(self) -> ResourceType:
        """The code in requests."""
        from kbroker.settings.tables.keys import ResourceType

        return ResourceType[self.name]

    @property
    def is_of_one_broker(self) -> bool:
        """Whether only the broker itself can answer."""
        return self in (ResourceKind.BROKER, ResourceKind.BROKER_LOGGER)


class ConfigChange(NamedTuple):
    """Of one setting. value: None to delete it."""

    key: str
    operation: ConfigOperation
    value: str | None


def _asked_name(kind: ResourceKind, name: str) -> str:
    return "" if kind is ResourceKind.BROKER and name == DEFAULT_BROKER else name


def _node(kind: ResourceKind, name: str) -> int | None:
    """The broker that answers; None for any of them."""
    if not kind.is_of_one_broker or not _asked_name(kind, name):
        return None
    if not name.isascii() or not name.isdecimal():
        also = f", or {DEFAULT_BROKER} for all" if kind is ResourceKind.BROKER else ""
        raise StartupError(f"{kind} {name}: give the id of a broker{also}")
    return int(name)


async def resource_names(client: Client, kind: ResourceKind) -> list[str]:
    """The names of a kind that have settings, or could have some."""
    from kbroker.client.cluster import check
    from kbroker.protocol.messages.admin.configs import (
        ListConfigResourcesRequest,
        ListConfigResourcesResponse,
    )

    if kind is ResourceKind.TOPIC:
        topics = (await client.metadata()).topics
        return sorted(topic.name or "" for topic in topics if not topic.is_internal)
    if kind.is_of_one_broker:
        await client.metadata([])
        ids = [str(node_id) for node_id in sorted(client.brokers)]
        return [DEFAULT_BROKER, *ids] if kind is ResourceKind.BROKER else ids
    request = ListConfigResourcesRequest(resource_types=[kind.resource_type])
    response = await client.any(request, ListConfigResourcesResponse)
    check(response.error_code, f"names of {kind} resources")
    return sorted(found.resource_name for found in response.config_resources)


async def described_configs(
    client: Client, kind: ResourceKind, names: Sequence[str], keys: Sequence[str] = ()
) -> list[DescribedConfigs]:
    """One result per name, in their order. keys: which; none for all. Raises KafkaError."""
    from kbroker.client.cluster import check
    from kbroker.protocol.messages.admin.configs import (
        DescribeConfigsRequest,
        DescribeConfigsResponse,
    )

    by_node: dict[int | None, list[str]] = {}
    for name in dict.fromkeys(names):
        by_node.setdefault(_node(kind, name), []).append(name)
    found: dict[str, DescribedConfigs] = {}
    for node_id, some in by_node.items():
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=kind.resource_type,
                    resource_name=_asked_name(kind, name),
                    configuration_keys=list(keys) or None,
                )
                for name in some
            ],
        )
        if node_id is None:
            response = await client.any(request, DescribeConfigsResponse)
        else:
            response = await client.to_node(node_id, request, DescribeConfigsResponse)
        for result in response.results:
            name = result.resource_name
            if kind is ResourceKind.BROKER:
                name = name or DEFAULT_BROKER
            check(result.error_code, _about(kind, name, result.error_message))
            found[name] = result
    return [found[name] for name in dict.fromkeys(names) if name in found]


async def change_configs(
    client: Client,
    kind: ResourceKind,
    names: Sequence[str],
    changes: Sequence[ConfigChange],
    *,
    validate_only: bool = False,
) -> list[Exception | None]:
    """What became of each name, in their order: None where it is changed. Raises KafkaError for
    what concerns the request as a whole.
    """
    from kbroker.protocol.errors import ErrorCode, KafkaError
    from kbroker.protocol.messages.admin.configs import (
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
    )

    outcomes: list[Exception | None] = []
    for name in names:
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=kind.resource_type,
                    resource_name=_asked_name(kind, name),
                    configs=[
                        IncrementalAlterConfigsRequest.AlterableConfig(
                            name=change.key, config_operation=change.operation, value=change.value
                        )
                        for change in changes
                    ],
                )
            ],
            validate_only=validate_only,
        )
        kind_of_response = IncrementalAlterConfigsResponse
        node_id = _node(kind, name)
        if node_id is None:
            response = await client.to_controller(request, kind_of_response)
        else:
            response = await client.to_node(node_id, request, kind_of_response)
        for result in response.responses:
            about = _about(kind, name, result.error_message)
            code = result.error_code
            outcomes.append(KafkaError(ErrorCode(code), about) if code else None)
    return outcomes


def _about(kind: ResourceKind, name: str, message: str | None) -> str:
    """A broker's error message, with the name of the resource in it."""
    if message and name and name in message:
        return message
    return f"{kind} {name}: {message}" if message else f"{kind} {name}"


def config_value(text: str | None, config_type: int) -> Cell:
    """The value with its JSON type; text where the broker does not say which type it is."""
    from kbroker.settings.tables.keys import ConfigType

    if text is None:
        return None
    match config_type:
        case ConfigType.BOOLEAN:
            return text == "true"
        case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
            return int(text)
        case ConfigType.DOUBLE:
            return float(text)
        case ConfigType.LIST:
            return [item.strip() for item in text.split(",") if item.strip()]
        case _:
            return text


def config_rows(
    described: Sequence[DescribedConfigs], column: str, *, every: bool = True
) -> list[dict[str, Cell]]:
    """A row per setting. column: of the resource's name. every: not only those that were set for
    the resource itself.
    """
    from kbroker.settings.tables.keys import ConfigSource

    return [
        {
            column: result.resource_name or DEFAULT_BROKER,
            "key": entry.name,
            "value": config_value(entry.value, entry.config_type),
            "source": ConfigSource(entry.config_source).name,
        }
        for result in described
        for entry in sorted(result.configs, key=lambda entry: entry.name)
        if every or ConfigSource(entry.config_source).name in _own_sources(result)
    ]


def _own_sources(result: DescribedConfigs) -> Collection[str]:
    """Where the settings of a resource itself come from."""
    from kbroker.settings.tables.keys import ResourceType

    if result.resource_type == ResourceType.BROKER:
        own = ("DYNAMIC_BROKER_CONFIG", "STATIC_BROKER_CONFIG")
        return own if result.resource_name else ("DYNAMIC_DEFAULT_BROKER_CONFIG",)
    if result.resource_type == ResourceType.BROKER_LOGGER:
        return ("DYNAMIC_BROKER_LOGGER_CONFIG",)
    return ("TOPIC_CONFIG", "GROUP_CONFIG", "CLIENT_METRICS_CONFIG")


def pairs_to_changes(
    sets: Mapping[str, str],
    unsets: Sequence[str] = (),
    appends: Mapping[str, str] | None = None,
    subtracts: Mapping[str, str] | None = None,
) -> list[ConfigChange]:
    """All changes of one command, in this order."""
    return [
        *(ConfigChange(key, ConfigOperation.SET, value) for key, value in sets.items()),
        *(ConfigChange(key, ConfigOperation.DELETE, None) for key in unsets),
        *(
            ConfigChange(key, ConfigOperation.APPEND, value)
            for key, value in (appends or {}).items()
        ),
        *(
            ConfigChange(key, ConfigOperation.SUBTRACT, value)
            for key, value in (subtracts or {}).items()
        ),
    ]


def change_text(change: ConfigChange) -> str:
    """`retention.ms=5`, `cleanup.policy+=compact`, `retention.ms unset`."""
    match change.operation:
        case ConfigOperation.DELETE:
            return f"{change.key} unset"
        case ConfigOperation.APPEND:
            return f"{change.key}+={change.value}"
        case ConfigOperation.SUBTRACT:
            return f"{change.key}-={change.value}"
        case _:
            return f"{change.key}={change.value}"
