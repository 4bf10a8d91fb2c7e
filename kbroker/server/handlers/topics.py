"""CreateTopics and DeleteTopics.

CreateTopics 0-7: v1 brings validate_only and error messages; v4 lets partitions and replicas be -1,
the broker's defaults (KIP-464); v5 is flexible and answers with the topic's partitions, replicas
and settings (KIP-525); v6 may be throttled (KIP-599); v7 answers with the topic id (KIP-516).
DeleteTopics 0-6: v3 says TOPIC_DELETION_DISABLED (before: INVALID_REQUEST); v4 is flexible; v5 has
error messages; v6 deletes by id too.

Each topic has its own outcome. The answer goes out when the records are committed and this broker
has acted on them, so whoever is answered can produce at once. Deviations: timeout_ms is not waited
out, since a single controller answers or stops; Kafka shuffles DeleteTopics' results, here they
keep the order of the request; a name that collides with another one of the same request is refused
as well.
"""

from __future__ import annotations

from kbroker.model import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kbroker.protocol.schema import Message
from kbroker.server.dispatch import ApiHandler, Outcome, RequestContext
from kbroker.server.services import Services


def create_topics(
    services: Services, context: RequestContext, request: CreateTopicsRequest
) -> Outcome:
    """Hand the request to the controller."""
    return _as_outcome(services.controller.create_topics(request))


def delete_topics(
    services: Services, context: RequestContext, request: DeleteTopicsRequest
) -> Outcome:
    """Hand the request to the controller."""
    deferred = services.controller.delete_topics(request, api_version=context.api_version)
    return _as_outcome(deferred)


def _as_outcome(
    deferred: Deferred[CreateTopicsResponse] | Deferred[DeleteTopicsResponse],
) -> Outcome:
    """The response itself if it is there already: no stage two then."""
    if deferred.done:
        return deferred.value
    later: Deferred[Message] = Deferred()
    deferred.on_done(later.resolve)
    return later


def create_topics_error(
    request: CreateTopicsRequest, code: ErrorCode, message: str
) -> CreateTopicsResponse:
    """That error for every topic of the request."""
    return CreateTopicsResponse(
        topics=[
            CreateTopicsResponse.CreatableTopicResult(
                name=name, error_code=code, error_message=message or None
            )
            for name in dict.fromkeys(topic.name for topic in request.topics)
        ]
    )


def delete_topics_error(
    request: DeleteTopicsRequest, code: ErrorCode, message: str
) -> DeleteTopicsResponse:
    """That error for every topic of the request, by name or id as it was asked for."""
    result = DeleteTopicsResponse.DeletableTopicResult
    responses = [
        result(name=name, error_code=code, error_message=message or None)
        for name in request.topic_names
    ]
    responses += [
        result(
            name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=message or None
        )
        for topic in request.topics
    ]
    return DeleteTopicsResponse(responses=responses)


HANDLERS: tuple[ApiHandler, ...] = (
    ApiHandler(ApiKey.CREATE_TOPICS, 0, 7, create_topics, create_topics_error),
    ApiHandler(ApiKey.DELETE_TOPICS, 0, 6, delete_topics, delete_topics_error),
)
