"""DescribeConfigs v0-4: the settings of topics, brokers, groups and client-metrics subscriptions.

v0: whether a value is the default. v1: synonyms and sources instead (KIP-226). v3: types and
documentation (KIP-569). v4: flexible. Resources: topic, broker (its own id, or "" for what holds
for every broker), broker logger, client metrics (KIP-714), group (KIP-848). Each resource has its
own error; the others are answered. A resource named again is answered once, with all keys asked
for; what would go beyond `kbroker.response.max.bytes` is answered POLICY_VIOLATION. Passwords and
unknown keys have no value in the response. Deviations: documentation is always null; Kafka repeats
the response to what is named again, and takes "01" for broker 1; broker loggers are Python's, under
their own names; kbroker's own keys are listed with Kafka's. Where a value comes from is found in
`kbroker.settings.describe`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from kbroker.metadata.topic_names import name_error
from kbroker.ports import at_once
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.configs import DescribeConfigsRequest, DescribeConfigsResponse
from kbroker.replication.time_slices import Pace, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.handlers.configs.broker_loggers import describe_loggers
from kbroker.server.policies.administration import CONFIGS as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import NodeServices
from kbroker.server.slicing.sliced import CHEAP_ITEMS, TOO_LARGE, AnswerSize, once_each, sliced
from kbroker.settings.describe import (
    ConfigEntry,
    describe_broker,
    describe_client_metrics,
    describe_cluster_default,
    describe_group,
    describe_topic,
    select,
)
from kbroker.settings.dynamic import stored_configs
from kbroker.settings.tables.keys import ConfigSource, ResourceType

DescribedResource = DescribeConfigsResponse.DescribeConfigsResult
DescribedEntry = DescribeConfigsResponse.DescribeConfigsResourceResult
Synonym = DescribeConfigsResponse.DescribeConfigsSynonym

ENTRY_BYTES: Final = 256
SYNONYM_BYTES: Final = 128
MAX_DIGITS: Final = 10


class _Resource(NamedTuple):
    """The resource of a result."""

    kind: int
    name: str


def describe_configs_error(
    request: DescribeConfigsRequest, error: ErrorCode, message: str
) -> DescribeConfigsResponse:
    """The same error for every resource."""
    return at_once(_refuse(request, error, message))


def _refuse(
    request: DescribeConfigsRequest, error: ErrorCode, message: str
) -> Generator[None, None, DescribeConfigsResponse]:
    resources = yield from once_each(map(_resource_of, request.resources))
    response = DescribeConfigsResponse()
    pace = Pace(CHEAP_ITEMS)
    for resource in resources:
        if pace.is_due():
            yield None
        response.results.append(_error(resource, error, message))
    return response


@sliced
def handle_describe_configs(
    services: NodeServices, context: RequestContext, request: DescribeConfigsRequest
) -> Steps[DescribeConfigsResponse]:
    """Every resource in the order asked, one in a step."""
    results: list[DescribedResource] = []
    asked = yield from _asked(request)
    with AnswerSize(services) as size:
        for resource, keys in asked.items():
            results.append(
                _describe(
                    services, resource, keys, size, request.include_synonyms, context.api_version
                )
            )
            yield None
    return DescribeConfigsResponse(results=results)


def _asked(
    request: DescribeConfigsRequest,
) -> Generator[None, None, dict[_Resource, frozenset[str] | None]]:
    """Each resource once, with the keys that are asked for, of all places that name it; None for
    every key.
    """
    asked: dict[_Resource, frozenset[str] | None] = {}
    for count, each in enumerate(request.resources, 1):
        if count % CHEAP_ITEMS == 0:
            yield None
        resource = _resource_of(each)
        keys = frozenset(each.configuration_keys) if each.configuration_keys else None
        before = asked.get(resource, keys)
        asked[resource] = None if keys is None or before is None else before | keys
    return asked


def _resource_of(asked: DescribeConfigsRequest.DescribeConfigsResource) -> _Resource:
    return _Resource(asked.resource_type, asked.resource_name)


def _describe(
    services: NodeServices,
    resource: _Resource,
    keys: frozenset[str] | None,
    size: AnswerSize,
    include_synonyms: bool,
    version: int,
) -> DescribedResource:
    if size.is_full:
        return _error(resource, ErrorCode.POLICY_VIOLATION, TOO_LARGE)
    try:
        entries = select(_entries(services, resource.kind, resource.name), keys)
    except KafkaError as error:
        return _error(resource, error.code, error.message)
    if not size.add(sum(map(_size_of, entries))):
        return _error(resource, ErrorCode.POLICY_VIOLATION, TOO_LARGE)
    return DescribedResource(
        error_code=ErrorCode.NONE,
        error_message="",
        resource_type=resource.kind,
        resource_name=resource.name,
        configs=[_wire_entry(entry, include_synonyms, version) for entry in entries],
    )


def _size_of(entry: ConfigEntry) -> int:
    """Memory of an entry while the response is built, roughly."""
    value = entry.value or ""
    return ENTRY_BYTES + len(value) + SYNONYM_BYTES * len(entry.synonyms)


def _entries(services: NodeServices, resource_type: int, name: str) -> list[ConfigEntry]:
    image, config = services.image, services.config
    dynamic = stored_configs(image, services.node_id)
    match resource_type:
        case ResourceType.TOPIC:
            if (reason := name_error(name)) is not None:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
            if name not in image.topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return describe_topic(config, dynamic, image.topic_configs(name))
        case ResourceType.BROKER:
            if not name:
                return describe_cluster_default(config, dynamic)
            _check_broker_id(services.node_id, name, f"{services.node_id} or empty string")
            return describe_broker(config, dynamic)
        case ResourceType.BROKER_LOGGER:
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
            _check_broker_id(services.node_id, name, str(services.node_id))
            return describe_loggers()
        case ResourceType.CLIENT_METRICS:
            if not name:
                message = "Client metrics subscription name must not be empty"
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            return describe_client_metrics(image.configs.get((resource_type, name), {}))
        case ResourceType.GROUP:
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            return describe_group(config, dynamic, image.configs.get((resource_type, name), {}))
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource_type}")


def _check_broker_id(node_id: int, name: str, expected: str) -> None:
    """An id has one spelling: "01" would be another resource with the same long answer."""
    digits = name.removeprefix("-")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS
    if not is_number or name != str(int(name)):
        message = f"Broker id must be an integer, but it is: {name}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if int(name) != node_id:
        message = f"Unexpected broker id, expected {expected}, but received {name}"
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            message if "or" in expected else message.replace(", but", " but"),
        )


def _wire_entry(entry: ConfigEntry, include_synonyms: bool, version: int) -> DescribedEntry:
    return DescribedEntry(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        is_default=version == 0 and entry.source == ConfigSource.DEFAULT_CONFIG,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        config_type=entry.type,
        documentation=None,
        synonyms=[
            Synonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        ]
        if include_synonyms
        else [],
    )


def _error(resource: _Resource, error: ErrorCode, message: str) -> DescribedResource:
    return DescribedResource(
        error_code=error,
        error_message=message,
        resource_type=resource.kind,
        resource_name=resource.name,
    )


HANDLERS: tuple[ApiHandler[NodeServices], ...] = (
    ApiHandler(
        ApiKey.DESCRIBE_CONFIGS,
        handle_describe_configs,
        describe_configs_error,
        POLICIES[ApiKey.DESCRIBE_CONFIGS],
        refusal=_refuse,
    ),
)
