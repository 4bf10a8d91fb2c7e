"""AlterConfigs v0-2, IncrementalAlterConfigs v0-1, ListConfigResources v0-1.

AlterConfigs replaces all that a resource has set (KIP-133), IncrementalAlterConfigs changes what it
names (KIP-339); v2 and v1 are flexible. ListConfigResources v0 knew client-metrics subscriptions
only (KIP-714), v1 every resource (KIP-1142). What may be set is decided in
`metadata/config_changes`; the answer goes out when it is committed and in effect. Deviations:
topics and groups can be altered, brokers, broker loggers and client metrics not yet
(INVALID_REQUEST).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kbroker.metadata.config_changes import Alteration, AlteredResource
from kbroker.metadata.config_changes import Outcome as Altered
from kbroker.metadata.image import MetadataImage
from kbroker.model import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from kbroker.protocol.schema import Message
from kbroker.server.dispatch import ApiHandler, Outcome, RequestContext
from kbroker.server.services import Services
from kbroker.settings.keys import ResourceType

LISTED_TYPES: Final = frozenset[int](ResourceType) - {ResourceType.UNKNOWN}


def handle_alter_configs(
    services: Services, context: RequestContext, request: AlterConfigsRequest
) -> Outcome:
    """Answered when the new settings are in effect."""
    resources = [
        AlteredResource(
            resource.resource_type,
            resource.resource_name,
            [Alteration(config.name, None, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]

    def respond(outcomes: Sequence[Altered]) -> AlterConfigsResponse:
        result = AlterConfigsResponse.AlterConfigsResourceResponse
        return AlterConfigsResponse(
            responses=[
                result(
                    error_code=outcome.error,
                    error_message=outcome.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.name,
                )
                for resource, outcome in zip(resources, outcomes, strict=True)
            ]
        )

    altered = services.controller.alter_configs(
        resources, incremental=False, validate_only=request.validate_only
    )
    return _as_outcome(altered, respond)


def handle_incremental_alter_configs(
    services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> Outcome:
    """Answered when the new settings are in effect."""
    resources = [
        AlteredResource(
            resource.resource_type,
            resource.resource_name,
            [
                Alteration(config.name, config.config_operation, config.value)
                for config in resource.configs
            ],
        )
        for resource in request.resources
    ]

    def respond(outcomes: Sequence[Altered]) -> IncrementalAlterConfigsResponse:
        result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
        return IncrementalAlterConfigsResponse(
            responses=[
                result(
                    error_code=outcome.error,
                    error_message=outcome.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.name,
                )
                for resource, outcome in zip(resources, outcomes, strict=True)
            ]
        )

    altered = services.controller.alter_configs(
        resources, incremental=True, validate_only=request.validate_only
    )
    return _as_outcome(altered, respond)


def _as_outcome(
    altered: Deferred[list[Altered]], respond: Callable[[Sequence[Altered]], Message]
) -> Outcome:
    if altered.done:
        return respond(altered.value)
    later: Deferred[Message] = Deferred()
    altered.on_done(lambda outcomes: later.resolve(respond(outcomes)))
    return later


def alter_configs_error(
    request: AlterConfigsRequest, error: ErrorCode, message: str
) -> AlterConfigsResponse:
    """The same error for every resource."""
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=error,
                error_message=message or None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


def incremental_alter_configs_error(
    request: IncrementalAlterConfigsRequest, error: ErrorCode, message: str
) -> IncrementalAlterConfigsResponse:
    """The same error for every resource."""
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=error,
                error_message=message or None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


def handle_list_config_resources(
    services: Services, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Topics and brokers that there are; groups and subscriptions that have settings."""
    wanted = set(request.resource_types) or LISTED_TYPES
    if context.api_version == 0:
        wanted = {ResourceType.CLIENT_METRICS}
    if not wanted <= LISTED_TYPES:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    image = services.image
    names: dict[ResourceType, Iterable[str]] = {
        ResourceType.GROUP: _with_settings(image, ResourceType.GROUP),
        ResourceType.CLIENT_METRICS: _with_settings(image, ResourceType.CLIENT_METRICS),
        ResourceType.BROKER_LOGGER: map(str, sorted(image.brokers)),
        ResourceType.BROKER: map(str, sorted(image.brokers)),
        ResourceType.TOPIC: sorted(image.topics),
    }
    return ListConfigResourcesResponse(
        config_resources=[
            ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
            for kind, found in names.items()
            if kind in wanted
            for name in found
        ]
    )


def _with_settings(image: MetadataImage, wanted: ResourceType) -> list[str]:
    return sorted(name for kind, name in image.configs if kind == wanted)


def list_config_resources_error(
    request: ListConfigResourcesRequest, error: ErrorCode, message: str
) -> ListConfigResourcesResponse:
    """The bare error."""
    return ListConfigResourcesResponse(error_code=error)


HANDLERS: tuple[ApiHandler, ...] = (
    ApiHandler(ApiKey.ALTER_CONFIGS, 0, 2, handle_alter_configs, alter_configs_error),
    ApiHandler(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        0,
        1,
        handle_incremental_alter_configs,
        incremental_alter_configs_error,
    ),
    ApiHandler(
        ApiKey.LIST_CONFIG_RESOURCES,
        0,
        1,
        handle_list_config_resources,
        list_config_resources_error,
    ),
)
