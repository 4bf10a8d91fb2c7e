"""UpdateFeatures v0-2: the cluster's finalized feature levels (KIP-584, KIP-778).

v1: the kind of each update instead of a flag (which Kafka no longer reads: v0 can only raise a
level), validate_only. v2: one outcome for the whole request. The answer goes out when the records
are committed and this broker has acted on them, so whoever is answered meets the new levels.
Deviation: kraft.version stays what it is (INVALID_UPDATE_VERSION).
"""

from __future__ import annotations

from kbroker.ports import Deferred
from kbroker.protocol.acl_operations import AclOperation, AclResource
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse
from kbroker.protocol.schema import Message
from kbroker.server.api_policy import Access, ApiPolicy, Extent, Forward, Versions
from kbroker.server.dispatch import ApiHandler, Outcome, RequestContext
from kbroker.server.services import Services


def handle_update_features(
    services: Services, context: RequestContext, request: UpdateFeaturesRequest
) -> Outcome:
    """Hand the request to the controller."""
    deferred = services.controller.update_features(request, api_version=context.api_version)
    if deferred.done:
        return deferred.value
    later: Deferred[Message] = Deferred()
    deferred.on_done(later.resolve)
    return later


def update_features_error(
    request: UpdateFeaturesRequest, code: ErrorCode, message: str
) -> UpdateFeaturesResponse:
    """None of them."""
    del request
    return UpdateFeaturesResponse(error_code=code, error_message=message or None)


HANDLERS: tuple[ApiHandler, ...] = (
    ApiHandler(
        ApiKey.UPDATE_FEATURES,
        handle_update_features,
        update_features_error,
        ApiPolicy(
            Versions(0, 2),
            (Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.ALTER,)),),
            forward=Forward.TO_CONTROLLER,
        ),
    ),
)
