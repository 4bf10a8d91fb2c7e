"""AlterConfigs v0-2, IncrementalAlterConfigs v0-1, ListConfigResources v0-1.

AlterConfigs replaces all that a resource has set (KIP-133), IncrementalAlterConfigs changes what it
names (KIP-339); v2 and v1 are flexible. ListConfigResources v0 knew client-metrics subscriptions
only (KIP-714), v1 every resource (KIP-1142).

A broker checks settings of its own and of all brokers itself and sets the levels of its own loggers
(`broker_settings`); what is left it passes on to the active controller, in the client's name and a
part at a time (`alteration_parts`), where `controller/configs/configs` decides. On a node
that is its whole cluster the response goes out when the change is committed and in effect, on any
other when it is committed.
Deviations: a broker refuses settings that are not Kafka's (Kafka keeps them for its plug-ins); a
request of many resources is not one atomic change, resource by resource it is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from kbroker.broker.alteration_parts import AlterationParts
from kbroker.controller.configs.configs import (
    ALTERED,
    Alteration,
    AlterationOutcome,
    Alterations,
    AlteredResource,
)
from kbroker.controller.result import MAX_RECORDS_PER_OPERATION, TOO_MANY_RECORDS
from kbroker.metadata.image import MetadataImage
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from kbroker.replication.time_slices import Pace, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.forwarding import ENVELOPE_BYTES
from kbroker.server.handlers.configs.broker_settings import outcome_here
from kbroker.server.policies.administration import ALTER_CONFIGS as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import NodeServices
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import CHEAP_ITEMS, once_each, sliced
from kbroker.settings.tables.keys import ResourceType
from kbroker.settings.views.network import NetworkConfig

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
    alterations = Alterations(resources, incremental=False, validate_only=request.validate_only)
    outcomes = yield from _alter(services, context, alterations)
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
    alterations = Alterations(resources, incremental=True, validate_only=request.validate_only)
    outcomes = yield from _alter(services, context, alterations)
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
    result: _ResultType[R],
    resources: Sequence[AlteredResource],
    outcomes: Sequence[AlterationOutcome],
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
    services: NodeServices, context: RequestContext, request: Alterations
) -> Generator[Deferred[Any] | None, None, list[AlterationOutcome]]:
    """The outcomes in the order of the resources. What this node does not decide on itself goes to
    the controller in parts.
    """
    pace = Pace(CHEAP_ITEMS)
    places: dict[tuple[int, str], list[int]] = {}
    for place, resource in enumerate(request.resources):
        if pace.is_due():
            yield None
        places.setdefault((resource.resource_type, resource.name), []).append(place)
    outcomes: list[AlterationOutcome] = [ALTERED] * len(request.resources)
    parts = _parts(services, context, request)
    for same in places.values():
        if pace.is_due():
            yield None
        resource = request.resources[same[0]]
        outcome: AlterationOutcome | None = _REPEATED
        if len(same) == 1:
            outcome = outcome_here(services, request, resource)
            if resource.resource_type in _CHECKED_HERE:
                yield None
        if outcome is not None:
            for place in same:
                outcomes[place] = outcome
        else:
            yield from parts.add(same[0], resource)
    for found in (yield from parts.outcomes()):
        for place, outcome in found:
            outcomes[place] = outcome
    return outcomes


_REPEATED: Final = AlterationOutcome(
    ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
)
_CHECKED_HERE: Final = frozenset({ResourceType.BROKER, ResourceType.BROKER_LOGGER})


def _parts(
    services: NodeServices, context: RequestContext, request: Alterations
) -> AlterationParts:
    """Of this request, on the way to the active controller."""
    network = NetworkConfig.from_broker(services.config)
    return AlterationParts(
        services.channel,
        context.identity,
        incremental=request.incremental,
        validate_only=request.validate_only,
        from_broker=services.is_broker or context.session.is_forwarded,
        max_bytes=min(network.max_frame_bytes, network.max_list_bytes) - ENVELOPE_BYTES,
    )


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


HANDLERS: tuple[ApiHandler[NodeServices], ...] = (
    ApiHandler(
        ApiKey.ALTER_CONFIGS,
        handle_alter_configs,
        alter_configs_error,
        POLICIES[ApiKey.ALTER_CONFIGS],
        refusal=Division(("resources",), ("responses",)),
    ),
    ApiHandler(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        handle_incremental_alter_configs,
        incremental_alter_configs_error,
        POLICIES[ApiKey.INCREMENTAL_ALTER_CONFIGS],
        refusal=Division(("resources",), ("responses",)),
    ),
    ApiHandler(
        ApiKey.LIST_CONFIG_RESOURCES,
        handle_list_config_resources,
        list_config_resources_error,
        POLICIES[ApiKey.LIST_CONFIG_RESOURCES],
    ),
)
