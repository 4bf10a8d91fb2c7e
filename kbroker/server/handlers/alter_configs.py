"""AlterConfigs v0-2, IncrementalAlterConfigs v0-1, ListConfigResources v0-1.

AlterConfigs replaces all that a resource has set (KIP-133), IncrementalAlterConfigs changes what it
names (KIP-339); v2 and v1 are flexible. ListConfigResources v0 knew client-metrics subscriptions
only (KIP-714), v1 every resource (KIP-1142). What may be set is decided in
`controller/configs`; the response goes out when it is committed and in effect. Deviations:
topics and groups can be altered, brokers, broker loggers and client metrics not yet
(INVALID_REQUEST).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from kbroker.controller.configs import ALTERED, Alteration, AlteredResource
from kbroker.controller.configs import Outcome as Altered
from kbroker.controller.result import MAX_RECORDS_PER_OPERATION, TOO_MANY_RECORDS
from kbroker.metadata.image import MetadataImage
from kbroker.ports import Deferred
from kbroker.protocol.acl_operations import AclOperation, AclResource
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
from kbroker.replication.time_slices import Pace
from kbroker.server.api_handler import ApiHandler
from kbroker.server.api_policy import EVERY_LISTENER, Access, ApiPolicy, Extent, Forward, Versions
from kbroker.server.requests import RequestContext
from kbroker.server.services import NodeServices
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import CHEAP_ITEMS, Steps, once_each, sliced
from kbroker.settings.keys import ResourceType

ALTERATIONS_PER_PART: Final = 64
"""Settings that are decided on in one step, with a weight of one for their resource."""

LISTED_TYPES: Final = frozenset[int](ResourceType) - {ResourceType.UNKNOWN}


def alter_configs_error(
    request: AlterConfigsRequest, error: ErrorCode, message: str
) -> AlterConfigsResponse:
    """The same error for every resource."""
    result = AlterConfigsResponse.AlterConfigsResourceResponse
    return AlterConfigsResponse(responses=_failures(result, request.resources, error, message))


def incremental_alter_configs_error(
    request: IncrementalAlterConfigsRequest, error: ErrorCode, message: str
) -> IncrementalAlterConfigsResponse:
    """The same error for every resource."""
    result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    return IncrementalAlterConfigsResponse(
        responses=_failures(result, request.resources, error, message)
    )


@sliced
def handle_alter_configs(
    services: NodeServices, context: RequestContext, request: AlterConfigsRequest
) -> Steps[AlterConfigsResponse]:
    """Answered when the new settings are in effect."""
    resources = yield from _asked(
        request.resources, lambda config: Alteration(config.name, None, config.value)
    )
    outcomes = yield from _alter(
        services, resources, incremental=False, validate_only=request.validate_only
    )
    result = AlterConfigsResponse.AlterConfigsResourceResponse
    return AlterConfigsResponse(responses=(yield from _results(result, resources, outcomes)))


@sliced
def handle_incremental_alter_configs(
    services: NodeServices, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> Steps[IncrementalAlterConfigsResponse]:
    """Answered when the new settings are in effect."""
    resources = yield from _asked(
        request.resources,
        lambda config: Alteration(config.name, config.config_operation, config.value),
    )
    outcomes = yield from _alter(
        services, resources, incremental=True, validate_only=request.validate_only
    )
    result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    return IncrementalAlterConfigsResponse(
        responses=(yield from _results(result, resources, outcomes))
    )


R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class _ResultType(Protocol[R_co]):
    """`AlterConfigsResourceResponse` of either response class."""

    def __call__(
        self,
        *,
        error_code: int,
        error_message: str | None,
        resource_type: int,
        resource_name: str,
    ) -> R_co: ...


class _NamedResource(Protocol):
    """`AlterConfigsResource` of either request class."""

    resource_type: int
    resource_name: str


def _failures(
    result: _ResultType[R], named: Iterable[_NamedResource], error: ErrorCode, message: str
) -> list[R]:
    return [
        result(
            error_code=error,
            error_message=message or None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource in named
    ]


def _results(
    result: _ResultType[R], resources: Sequence[AlteredResource], outcomes: Sequence[Altered]
) -> Generator[None, None, list[R]]:
    """The results of a response, in the order of the resources; steps of a sliced handler."""
    pace = Pace(CHEAP_ITEMS)
    results: list[R] = []
    for altered, outcome in zip(resources, outcomes, strict=True):
        if pace.is_due():
            yield
        results.append(
            result(
                error_code=outcome.error,
                error_message=outcome.message,
                resource_type=altered.resource_type,
                resource_name=altered.name,
            )
        )
    return results


# Any: resources and settings of the two requests have no class in common
def _asked(
    named: Sequence[Any], alteration_of: Callable[[Any], Alteration]
) -> Generator[None, None, list[AlteredResource]]:
    """The resources of a request. Raises KafkaError for too many settings, before any is read."""
    pace = Pace(CHEAP_ITEMS)
    alterations = 0
    for resource in named:
        if pace.is_due():
            yield None
        alterations += len(resource.configs)
    if alterations > MAX_RECORDS_PER_OPERATION:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, TOO_MANY_RECORDS)
    resources: list[AlteredResource] = []
    for resource in named:
        if pace.is_due():
            yield None
        asked: list[Alteration] = []
        for config in resource.configs:
            if pace.is_due():
                yield None
            asked.append(alteration_of(config))
        resources.append(AlteredResource(resource.resource_type, resource.resource_name, asked))
    return resources


def _alter(
    services: NodeServices,
    resources: Sequence[AlteredResource],
    *,
    incremental: bool,
    validate_only: bool,
) -> Generator[Deferred[Any] | None, None, list[Altered]]:
    """The outcomes in the order of the resources. Many resources are decided on in parts; one that
    is named more than once is in a single part with all its names.
    """
    pace = Pace(CHEAP_ITEMS)
    places: dict[tuple[int, str], list[int]] = {}
    for place, resource in enumerate(resources):
        if pace.is_due():
            yield None
        places.setdefault((resource.resource_type, resource.name), []).append(place)
    asked: list[tuple[list[list[int]], Deferred[list[Altered]]]] = []
    part: list[list[int]] = []
    weighs = 0

    def submit() -> None:
        altered = services.controller.alter_configs(
            [resources[place] for same in part for place in same[:2]],
            incremental=incremental,
            validate_only=validate_only,
        )
        asked.append((part, altered))

    for same in places.values():
        weight = 1 + len(resources[same[0]].alterations)
        if part and weighs + weight > ALTERATIONS_PER_PART:
            submit()
            yield None
            part, weighs = [], 0
        part.append(same)
        weighs += weight
    submit()
    outcomes: list[Altered] = [ALTERED] * len(resources)
    for some, altered in asked:
        if not altered.done:
            yield altered
        found = iter(altered.value)
        for same in some:
            answers = [next(found) for _ in same[:2]]
            for place in same:
                outcomes[place] = answers[0]
    return outcomes


@sliced
def handle_list_config_resources(
    services: NodeServices, context: RequestContext, request: ListConfigResourcesRequest
) -> Steps[ListConfigResourcesResponse]:
    """The existing topics and brokers, and the groups and subscriptions that have settings."""
    wanted = set((yield from once_each(request.resource_types))) or LISTED_TYPES
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
    """The response that carries only the error."""
    return ListConfigResourcesResponse(error_code=error)


ALTER_EACH_RESOURCE: Final = (
    Access(Extent.EACH, AclResource.CLUSTER, (AclOperation.ALTER_CONFIGS,)),
    Access(Extent.EACH, AclResource.TOPIC, (AclOperation.ALTER_CONFIGS,)),
    Access(Extent.EACH, AclResource.GROUP, (AclOperation.ALTER_CONFIGS,)),
)

HANDLERS: tuple[ApiHandler[NodeServices], ...] = (
    ApiHandler(
        ApiKey.ALTER_CONFIGS,
        handle_alter_configs,
        alter_configs_error,
        ApiPolicy(
            Versions(0, 2),
            ALTER_EACH_RESOURCE,
            listeners=EVERY_LISTENER,
            forward=Forward.TO_CONTROLLER,
        ),
        refusal=Division(("resources",), ("responses",)),
    ),
    ApiHandler(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        handle_incremental_alter_configs,
        incremental_alter_configs_error,
        ApiPolicy(
            Versions(0, 1),
            ALTER_EACH_RESOURCE,
            listeners=EVERY_LISTENER,
            forward=Forward.TO_CONTROLLER,
        ),
        refusal=Division(("resources",), ("responses",)),
    ),
    ApiHandler(
        ApiKey.LIST_CONFIG_RESOURCES,
        handle_list_config_resources,
        list_config_resources_error,
        ApiPolicy(
            Versions(0, 1),
            (Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.DESCRIBE_CONFIGS,)),),
        ),
    ),
)
