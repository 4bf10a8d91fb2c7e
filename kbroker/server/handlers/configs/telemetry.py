"""GetTelemetrySubscriptions v0, PushTelemetry v0 (KIP-714): clients are told which of their metrics
to push, and push them.

Served only where `kbroker.telemetry.receiver` names a receiver, as in Kafka. A push is unpacked and
handed on in a thread (`broker/telemetry/telemetry`); the rules are in
`broker/telemetry/client_telemetry`.
"""

from __future__ import annotations

from kbroker.broker.telemetry.client_telemetry import TelemetryClient
from kbroker.broker.telemetry.telemetry import Telemetry
from kbroker.model import InvariantError
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.data import TELEMETRY as POLICIES
from kbroker.server.requests import Outcome, RequestContext
from kbroker.server.services import Services


def handle_get_telemetry_subscriptions(
    services: Services, context: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> Outcome:
    """What the client is to push, and how often."""
    telemetry = _telemetry(services)
    return telemetry.subscriptions_for(request, _client(context), context.arrived_ms)


def get_telemetry_subscriptions_error(
    request: GetTelemetrySubscriptionsRequest, error: ErrorCode, message: str
) -> GetTelemetrySubscriptionsResponse:
    """The response that carries only the error."""
    return GetTelemetrySubscriptionsResponse(error_code=error)


def handle_push_telemetry(
    services: Services, context: RequestContext, request: PushTelemetryRequest
) -> Outcome:
    """Answered when the receiver has taken the metrics."""
    return _telemetry(services).push(request, _client(context), context.arrived_ms)


def push_telemetry_error(
    request: PushTelemetryRequest, error: ErrorCode, message: str
) -> PushTelemetryResponse:
    """The response that carries only the error."""
    return PushTelemetryResponse(error_code=error)


def _telemetry(services: Services) -> Telemetry:
    if services.telemetry is None:
        raise InvariantError("telemetry is served without a receiver")
    return services.telemetry


def _client(context: RequestContext) -> TelemetryClient:
    """The port is in the id of the connection: `here-there-number`, each with its port."""
    session = context.session
    peer = session.connection_id.rpartition("-")[0]
    return TelemetryClient(
        session.connection_id,
        context.client_id,
        session.client_software_name,
        session.client_software_version,
        session.client_host,
        peer.rpartition(":")[2],
    )


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
        handle_get_telemetry_subscriptions,
        get_telemetry_subscriptions_error,
        POLICIES[ApiKey.GET_TELEMETRY_SUBSCRIPTIONS],
    ),
    ApiHandler(
        ApiKey.PUSH_TELEMETRY,
        handle_push_telemetry,
        push_telemetry_error,
        POLICIES[ApiKey.PUSH_TELEMETRY],
    ),
)
