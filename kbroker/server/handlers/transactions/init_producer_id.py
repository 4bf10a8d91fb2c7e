"""InitProducerId v0-5: a producer id for an idempotent or transactional producer.

v2: flexible. v3: the producer's present id and epoch, to raise the epoch instead of taking a new id
(KIP-360). v4: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH. v5: transactions v2 (KIP-890). v6
(KIP-939) is unstable in Kafka 4.3 and refused there as here.

Without a transactional id every request gets a fresh id with epoch 0, also one that names its
present id: as in Kafka, only the transaction coordinator raises epochs
(`coordinator/transaction/shard`). With one, the id's former producer is fenced and its open
transaction is aborted; CONCURRENT_TRANSACTIONS meanwhile.
"""

from __future__ import annotations

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.groups import INIT_PRODUCER_ID as POLICIES
from kbroker.server.requests import Outcome, RequestContext
from kbroker.server.services import Services

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
FENCED_SINCE = 4


def handle_init_producer_id(
    services: Services, context: RequestContext, request: InitProducerIdRequest
) -> Outcome:
    """Answer at once while the broker has ids left, else when its next block comes."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return init_producer_id_error(request, ErrorCode.INVALID_REQUEST, "")
    if request.transactional_id is not None:
        if not request.transactional_id:
            return init_producer_id_error(request, ErrorCode.INVALID_REQUEST, "")
        outcome = services.transactions.init_producer_id(request)
        if context.api_version < FENCED_SINCE:
            return outcome.then(_without_fenced)
        return outcome
    return services.producer_ids.next_id().then(_granted)


def _without_fenced(response: InitProducerIdResponse) -> InitProducerIdResponse:
    """With the error that stood for PRODUCER_FENCED before it was known."""
    if response.error_code == ErrorCode.PRODUCER_FENCED:
        response.error_code = ErrorCode.INVALID_PRODUCER_EPOCH
    return response


def _granted(producer_id: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def init_producer_id_error(
    request: InitProducerIdRequest, code: ErrorCode, message: str
) -> InitProducerIdResponse:
    """The error, without a producer id."""
    del request, message
    return InitProducerIdResponse(
        error_code=int(code), producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.INIT_PRODUCER_ID,
        handle_init_producer_id,
        init_producer_id_error,
        POLICIES[ApiKey.INIT_PRODUCER_ID],
    ),
)
