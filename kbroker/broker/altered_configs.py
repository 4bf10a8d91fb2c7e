"""AlterConfigs and IncrementalAlterConfigs as a broker passes them on to the active controller: it
has decoded the request to check what concerns itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from kbroker.controller.configs.configs import AlterationOutcome, Alterations, AlteredResource
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.configs import (
    AlterConfigsRequest,
    IncrementalAlterConfigsRequest,
)


class ResourceResult(Protocol):
    """`AlterConfigsResourceResponse` of either response."""

    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


def incremental_request(request: Alterations) -> IncrementalAlterConfigsRequest:
    """The same as a request of Kafka's protocol."""
    kind = IncrementalAlterConfigsRequest
    return kind(
        resources=[
            kind.AlterConfigsResource(
                resource_type=each.resource_type,
                resource_name=each.name,
                configs=[
                    kind.AlterableConfig(
                        name=one.name, config_operation=one.operation or 0, value=one.value
                    )
                    for one in each.alterations
                ],
            )
            for each in request.resources
        ],
        validate_only=request.validate_only,
    )


def whole_request(request: Alterations) -> AlterConfigsRequest:
    """The same as a request of Kafka's protocol."""
    kind = AlterConfigsRequest
    return kind(
        resources=[
            kind.AlterConfigsResource(
                resource_type=each.resource_type,
                resource_name=each.name,
                configs=[
                    kind.AlterableConfig(name=one.name, value=one.value) for one in each.alterations
                ],
            )
            for each in request.resources
        ],
        validate_only=request.validate_only,
    )


def outcomes_of(
    results: Iterable[ResourceResult], named: Sequence[AlteredResource]
) -> list[AlterationOutcome]:
    """The outcomes in the order of the request; Kafka's controller answers in another one. Raises
    KafkaError(UNKNOWN_SERVER_ERROR) if one is missing.
    """
    found: dict[tuple[int, str], AlterationOutcome] = {}
    for each in results:
        error = ErrorCode(each.error_code)
        found[each.resource_type, each.resource_name] = AlterationOutcome(error, each.error_message)
    try:
        return [found[each.resource_type, each.name] for each in named]
    except KeyError:
        message = "the active controller answered fewer resources than it was asked for"
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message) from None
