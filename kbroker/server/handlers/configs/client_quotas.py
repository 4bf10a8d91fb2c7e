"""DescribeClientQuotas v0-1, AlterClientQuotas v0-1 (KIP-546): the quotas of users, client ids,
pairs of both, and ip addresses.

v1 is flexible. A filter is checked as a whole before anything matches. What may be altered is
decided in `controller/configs/client_quotas`; the response goes out when the records are committed
and this broker has acted on them. An entity that is named again is answered once. How quotas are
enforced is in `server/quotas`. Deviations: an ip entity is an address, not a host name; a response
beyond `kbroker.response.max.bytes` is POLICY_VIOLATION; entries keep their order, in Kafka's
response they have that of a hash map.
"""

from __future__ import annotations

from typing import Final

from kbroker.controller.configs.client_quotas import (
    QuotaAlteration,
    QuotaOperation,
    quota_entity,
)
from kbroker.metadata.client_quotas import FilterComponent, QuotaFilter
from kbroker.metadata.image import QuotaEntity
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kbroker.replication.time_slices import Pace, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.administration import CLIENT_QUOTAS as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import NodeServices
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import (
    CHEAP_ITEMS,
    TOO_LARGE,
    AnswerSize,
    estimated_bytes,
    sliced,
)

MAX_REPETITIONS: Final = 2
"""Alterations of one entity that count: the second one makes it a duplicate."""

DescribedQuota = DescribeClientQuotasResponse.EntryData
AlteredQuota = AlterClientQuotasResponse.EntryData
AlteredPart = AlterClientQuotasResponse.EntityData


@sliced
def handle_describe_client_quotas(
    services: NodeServices, context: RequestContext, request: DescribeClientQuotasRequest
) -> Steps[DescribeClientQuotasResponse]:
    """Every entity that matches all components of the filter."""
    pace = Pace(CHEAP_ITEMS)
    wanted = QuotaFilter(strict=request.strict)
    for component in request.components:
        if pace.is_due():
            yield None
        wanted.add(FilterComponent(component.entity_type, component.match_type, component.match))
    wanted.check()
    entries: list[DescribedQuota] = []
    with AnswerSize(services) as size:
        for entity, quotas in services.image.client_quotas.items():
            if pace.is_due():
                yield None
            if not wanted.matches(entity):
                continue
            entry = DescribedQuota(
                entity=[
                    DescribeClientQuotasResponse.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity
                ],
                values=[
                    DescribeClientQuotasResponse.ValueData(key=key, value=value)
                    for key, value in quotas.items()
                ],
            )
            if not size.add(estimated_bytes(entry)):
                raise KafkaError(ErrorCode.POLICY_VIOLATION, TOO_LARGE)
            entries.append(entry)
    return DescribeClientQuotasResponse(entries=entries)


def describe_client_quotas_error(
    request: DescribeClientQuotasRequest, error: ErrorCode, message: str
) -> DescribeClientQuotasResponse:
    """The response that carries only the error."""
    return DescribeClientQuotasResponse(
        error_code=error, error_message=message or None, entries=None
    )


@sliced
def handle_alter_client_quotas(
    services: NodeServices, context: RequestContext, request: AlterClientQuotasRequest
) -> Steps[AlterClientQuotasResponse]:
    """Answered when the new quotas are in effect."""
    pace = Pace(CHEAP_ITEMS)
    alterations: list[QuotaAlteration] = []
    named: dict[QuotaEntity, int] = {}
    for entry in request.entries:
        parts: dict[str, str | None] = {}
        for part in entry.entity:
            if pace.is_due():
                yield None
            parts[part.entity_type] = part.entity_name
        if pace.is_due():
            yield None
        entity = quota_entity(parts)
        named[entity] = named.get(entity, 0) + 1
        if named[entity] > MAX_REPETITIONS:
            continue
        operations: list[QuotaOperation] = []
        for each in entry.ops:
            if pace.is_due():
                yield None
            operations.append(QuotaOperation(each.key, None if each.remove else each.value))
        alterations.append(QuotaAlteration(entity, operations))
    deferred = services.controller.alter_client_quotas(
        alterations, validate_only=request.validate_only
    )
    yield deferred
    response = AlterClientQuotasResponse()
    for entity, outcome in deferred.value.items():
        altered = AlteredQuota(error_code=outcome.error, error_message=outcome.message)
        response.entries.append(altered)
        if pace.is_due():
            yield None
        for kind, name in entity:
            if pace.is_due():
                yield None
            altered.entity.append(AlteredPart(entity_type=kind, entity_name=name))
    return response


def alter_client_quotas_error(
    request: AlterClientQuotasRequest, error: ErrorCode, message: str
) -> AlterClientQuotasResponse:
    """The same error for every entry."""
    return AlterClientQuotasResponse(
        entries=[
            AlteredQuota(
                error_code=error,
                error_message=message or None,
                entity=[
                    AlteredPart(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entry.entity
                ],
            )
            for entry in request.entries
        ]
    )


HANDLERS: tuple[ApiHandler[NodeServices], ...] = (
    ApiHandler(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        handle_describe_client_quotas,
        describe_client_quotas_error,
        POLICIES[ApiKey.DESCRIBE_CLIENT_QUOTAS],
    ),
    ApiHandler(
        ApiKey.ALTER_CLIENT_QUOTAS,
        handle_alter_client_quotas,
        alter_client_quotas_error,
        POLICIES[ApiKey.ALTER_CLIENT_QUOTAS],
        refusal=Division(("entries", "entity"), ("entries", "entity")),
    ),
)
