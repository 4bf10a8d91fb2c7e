"""UpdateFeatures v0-2: the cluster's finalized feature levels (KIP-584, KIP-778).

v1: the kind of each update instead of a flag (which Kafka no longer reads: v0 can only raise a
level), validate_only. v2: one outcome for the whole request. The response goes out when the records
are committed and this broker has acted on them, so a client sees the new levels after the response.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from copy import copy
from typing import Final

from kbroker.metadata.features import SUPPORTED_FEATURES
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse
from kbroker.replication.time_slices import Pace, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.administration import FEATURES as POLICIES
from kbroker.server.requests import LARGE_REQUEST_BYTES, RequestContext
from kbroker.server.services import NodeServices
from kbroker.server.slicing.sliced import CHEAP_ITEMS, sliced

MIN_UPDATE_BYTES: Final = 5
"""Of an update on the wire."""


def update_features_error(
    request: UpdateFeaturesRequest, code: ErrorCode, message: str
) -> UpdateFeaturesResponse:
    """No feature is updated."""
    del request
    return UpdateFeaturesResponse(error_code=code, error_message=message or None)


@sliced
def handle_update_features(
    services: NodeServices, context: RequestContext, request: UpdateFeaturesRequest
) -> Steps[UpdateFeaturesResponse]:
    """Hand to the controller what decides the request, and answer a line per update up to v1."""
    is_small = len(request.feature_updates) * MIN_UPDATE_BYTES <= LARGE_REQUEST_BYTES
    pace = Pace(sys.maxsize if is_small else CHEAP_ITEMS)
    decisive = yield from _decisive(request, pace)
    deferred = services.controller.update_features(decisive, api_version=context.api_version)
    yield deferred
    response = deferred.value
    if len(decisive.feature_updates) < len(request.feature_updates) and response.results:
        line = response.results[0]
        response.results = []
        for update in request.feature_updates:
            if pace.is_due():
                yield None
            response.results.append(
                UpdateFeaturesResponse.UpdatableFeatureResult(
                    feature=update.feature,
                    error_code=line.error_code,
                    error_message=line.error_message,
                )
            )
    return response


def _decisive(
    request: UpdateFeaturesRequest, pace: Pace
) -> Generator[None, None, UpdateFeaturesRequest]:
    """The request with the last update of each name, in the place of its first one, and of the
    names that are not supported only the first: the request is refused for that one at the latest.
    """
    found: dict[str, UpdateFeaturesRequest.FeatureUpdateKey] = {}
    unsupported: str | None = None
    for update in request.feature_updates:
        if pace.is_due():
            yield
        name = update.feature
        if name not in SUPPORTED_FEATURES:
            if unsupported is None:
                unsupported = name
            elif name != unsupported:
                continue
        found[name] = update
    decisive = copy(request)
    decisive.feature_updates = list(found.values())
    return decisive


HANDLERS: tuple[ApiHandler[NodeServices], ...] = (
    ApiHandler(
        ApiKey.UPDATE_FEATURES,
        handle_update_features,
        update_features_error,
        POLICIES[ApiKey.UPDATE_FEATURES],
    ),
)
