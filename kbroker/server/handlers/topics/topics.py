"""CreateTopics, DeleteTopics and CreatePartitions.

CreateTopics 0-7: v1 brings validate_only and error messages; v4 lets partitions and replicas be -1,
the broker's defaults (KIP-464); v5 is flexible and answers with the topic's partitions, replicas
and settings (KIP-525); v6 may be throttled (KIP-599); v7 answers with the topic id (KIP-516).
DeleteTopics 0-6: v3 says TOPIC_DELETION_DISABLED (before: INVALID_REQUEST); v4 is flexible; v5 has
error messages; v6 deletes by id too. CreatePartitions 0-3 (KIP-195): v2 is flexible; v3 may be
throttled (KIP-599).

Each topic has its own outcome. The response goes out when the records are committed and this broker
has acted on them, so a client that is answered can produce at once. A controller that loses
leadership meanwhile fails the request with NOT_CONTROLLER, and one that is busy for longer than
timeout_ms with REQUEST_TIMED_OUT, without a change. Deviations: timeout_ms is not waited out once
the change is appended, since the controller answers or fails; Kafka shuffles DeleteTopics' results,
here they keep the order of the request; a name that collides with another one of the same request
is refused as well; a request of more than 32 topics is decided on in parts, between which the loop
has its turn, so its topics are not created or deleted in one batch of records, and names that
collide with one another are seen only within a part if the request only validates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Final, TypeVar

from kbroker.controller.partitions.topics import (
    MAX_PARTITIONS_PER_REQUEST,
    TOO_MANY_PARTITIONS,
    wanted_partitions,
)
from kbroker.controller.result import (
    MAX_RECORDS_PER_OPERATION,
    TOO_MANY_RECORDS,
    free_of_charge,
)
from kbroker.model import ZERO_UUID, Uuid
from kbroker.ports import Deferred, at_once
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kbroker.replication.time_slices import Pace, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.administration import TOPICS as POLICIES
from kbroker.server.quotas.client_quotas import MutationCharge
from kbroker.server.requests import Outcome, RequestContext
from kbroker.server.services import NodeServices
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import CHEAP_ITEMS, once_each, sliced

TOPICS_PER_PART: Final = 32
PARTITIONS_PER_PART: Final = 128
STATES_SINCE: Final = 6
"""DeleteTopics by name or id."""

STRICT_CREATION_SINCE: Final = 6
STRICT_DELETION_SINCE: Final = 5
STRICT_GROWTH_SINCE: Final = 3
"""Of these versions on, what exceeds the quota of controller mutations is refused."""

T = TypeVar("T")
M = TypeVar("M", CreateTopicsResponse, DeleteTopicsResponse, CreatePartitionsResponse)

_Created = CreateTopicsResponse.CreatableTopicResult
_State = DeleteTopicsRequest.DeleteTopicState


def create_topics(
    services: NodeServices, context: RequestContext, request: CreateTopicsRequest
) -> Outcome:
    """Hand the request to the controller; one of very many topics in parts."""
    if len(request.topics) > TOPICS_PER_PART:
        return _create_in_parts(services, context, request)
    quota = mutation_quota(services, context, strict_since=STRICT_CREATION_SINCE)
    created = services.controller.create_topics(request, charge=quota or free_of_charge)
    return _as_outcome(created if quota is None else created.then(partial(_throttled, quota)))


def delete_topics(
    services: NodeServices, context: RequestContext, request: DeleteTopicsRequest
) -> Outcome:
    """Hand the request to the controller; one of very many topics in parts."""
    if len(request.topic_names) + len(request.topics) > TOPICS_PER_PART:
        return _delete_in_parts(services, context, request)
    quota = mutation_quota(services, context, strict_since=STRICT_DELETION_SINCE)
    deleted = services.controller.delete_topics(
        request, api_version=context.api_version, charge=quota or free_of_charge
    )
    return _as_outcome(deleted if quota is None else deleted.then(partial(_throttled, quota)))


def mutation_quota(
    services: NodeServices, context: RequestContext, *, strict_since: int
) -> MutationCharge | None:
    """What a request is charged to; None if the client has no quota. strict_since: the version from
    which on what exceeds the quota is refused (KIP-599).
    """
    return services.quotas.mutation.of_request(
        context.session.user,
        context.client_id or "",
        services.timers.monotonic_ms,
        is_strict=context.api_version >= strict_since,
    )


def _throttled(quota: MutationCharge, response: M) -> M:
    """The response with its throttle time, on which the connection is muted."""
    response.throttle_time_ms = quota.throttle_ms()
    return response


def create_partitions(
    services: NodeServices, context: RequestContext, request: CreatePartitionsRequest
) -> Outcome:
    """Hand the request to the controller, unless it names nothing."""
    if not request.topics:
        return CreatePartitionsResponse()
    quota = mutation_quota(services, context, strict_since=STRICT_GROWTH_SINCE)
    grown = services.controller.create_partitions(request, charge=quota or free_of_charge)
    return _as_outcome(grown if quota is None else grown.then(partial(_throttled, quota)))


def _as_outcome(
    deferred: Deferred[CreateTopicsResponse]
    | Deferred[DeleteTopicsResponse]
    | Deferred[CreatePartitionsResponse],
) -> Outcome:
    """The response itself if the Deferred is done: the request has no stage two then."""
    return deferred.value if deferred.done else deferred


def create_topics_error(
    request: CreateTopicsRequest, code: ErrorCode, message: str
) -> CreateTopicsResponse:
    """The error for every topic of the request."""
    return at_once(_refuse_creation(request, code, message))


def _refuse_creation(
    request: CreateTopicsRequest, code: ErrorCode, message: str
) -> Generator[None, None, CreateTopicsResponse]:
    names = yield from once_each(topic.name for topic in request.topics)
    return (yield from _not_created(names, code, message))


def _not_created(
    names: Iterable[str], code: ErrorCode, message: str
) -> Generator[None, None, CreateTopicsResponse]:
    response = CreateTopicsResponse()
    pace = Pace(CHEAP_ITEMS)
    for name in names:
        if pace.is_due():
            yield None
        response.topics.append(_Created(name=name, error_code=code, error_message=message or None))
    return response


def delete_topics_error(
    request: DeleteTopicsRequest, code: ErrorCode, message: str
) -> DeleteTopicsResponse:
    """The error for every topic of the request, by name or id as in the request."""
    return at_once(_refuse_deletion(request, code, message))


def _refuse_deletion(
    request: DeleteTopicsRequest, code: ErrorCode, message: str
) -> Generator[None, None, DeleteTopicsResponse]:
    result = DeleteTopicsResponse.DeletableTopicResult
    response = DeleteTopicsResponse()
    pace = Pace(CHEAP_ITEMS)
    for name, topic_id in _named(request):
        if pace.is_due():
            yield None
        response.responses.append(
            result(name=name, topic_id=topic_id, error_code=code, error_message=message or None)
        )
    return response


def create_partitions_error(
    request: CreatePartitionsRequest, code: ErrorCode, message: str
) -> CreatePartitionsResponse:
    """The error for every topic of the request."""
    result = CreatePartitionsResponse.CreatePartitionsTopicResult
    return CreatePartitionsResponse(
        results=[
            result(name=topic.name, error_code=code, error_message=message or None)
            for topic in request.topics
        ]
    )


def _named(request: DeleteTopicsRequest) -> Iterator[tuple[str | None, Uuid]]:
    """The name and id of each entry, whichever list of the request it is in."""
    yield from ((name, ZERO_UUID) for name in request.topic_names)
    yield from ((topic.name, topic.topic_id) for topic in request.topics)


# Very many topics


@sliced
def _create_in_parts(
    services: NodeServices, context: RequestContext, request: CreateTopicsRequest
) -> Steps[CreateTopicsResponse]:
    """Create very many topics. The limits apply to the whole request."""
    default_count = services.config.get_int("num.partitions")
    pace = Pace(CHEAP_ITEMS)
    counts: Counter[str] = Counter()
    partitions = records = 0
    for topic in request.topics:
        if pace.is_due():
            yield None
        counts[topic.name] += 1
        wanted = wanted_partitions(topic, default_count)
        partitions += wanted
        records += wanted + len(topic.configs) + 1
    refusal = TOO_MANY_PARTITIONS if partitions > MAX_PARTITIONS_PER_REQUEST else None
    if refusal is None and records > MAX_RECORDS_PER_OPERATION:
        refusal = TOO_MANY_RECORDS
    if refusal is not None:
        return (yield from _not_created(counts, ErrorCode.POLICY_VIOLATION, refusal))
    quota = mutation_quota(services, context, strict_since=STRICT_CREATION_SINCE)
    response = CreateTopicsResponse()
    once = [topic for topic in request.topics if counts[topic.name] == 1]
    asked: list[tuple[CreateTopicsRequest, Deferred[CreateTopicsResponse]]] = []
    for part in _parts(once, lambda topic: wanted_partitions(topic, default_count)):
        some = CreateTopicsRequest(
            topics=part, timeout_ms=request.timeout_ms, validate_only=request.validate_only
        )
        asked.append(
            (some, services.controller.create_topics(some, charge=quota or free_of_charge))
        )
        yield None
    for _, deferred in asked:
        if not deferred.done:
            yield deferred
        response.topics += deferred.value.topics
    if quota is not None:
        _throttled(quota, response)
    response.topics += [
        _Created(
            name=name,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="Duplicate topic name.",
        )
        for name, count in counts.items()
        if count > 1
    ]
    return response


@sliced
def _delete_in_parts(
    services: NodeServices, context: RequestContext, request: DeleteTopicsRequest
) -> Steps[DeleteTopicsResponse]:
    """Delete very many topics. Entries that name the same topic are decided together, last. An
    entry with a name and an id, which is refused, is decided alone.
    """
    image = services.image
    pace = Pace(CHEAP_ITEMS)
    named: dict[Uuid | str | tuple[str, Uuid], list[tuple[str | None, Uuid]]] = {}
    key: Uuid | str | tuple[str, Uuid]
    for name, topic_id in _named(request):
        if pace.is_due():
            yield None
        if topic_id != ZERO_UUID:
            key = topic_id if name is None else (name, topic_id)
        else:
            known = image.topics.get(name or "")
            key = name or "" if known is None else known.topic_id
        same = named.setdefault(key, [])
        if same.count((name, topic_id)) < 2:  # the second one makes it a duplicate
            same.append((name, topic_id))
        if len(named) > MAX_RECORDS_PER_OPERATION:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, TOO_MANY_RECORDS)
    by_state = context.api_version >= STATES_SINCE
    quota = mutation_quota(services, context, strict_since=STRICT_DELETION_SINCE)
    response = DeleteTopicsResponse()
    asked: list[Deferred[DeleteTopicsResponse]] = []
    once = [same[0] for same in named.values() if len(same) == 1]
    together = [same for same in named.values() if len(same) > 1]
    parts = chain(
        _parts(once, lambda entry: 1),
        ([each for same in part for each in same] for part in _parts(together, len)),
    )
    for part in parts:
        some = DeleteTopicsRequest(timeout_ms=request.timeout_ms)
        if by_state:
            some.topics = [_State(name=name, topic_id=topic_id) for name, topic_id in part]
        else:
            some.topic_names = [name for name, _ in part if name is not None]
        asked.append(
            services.controller.delete_topics(
                some, api_version=context.api_version, charge=quota or free_of_charge
            )
        )
        yield None
    for deferred in asked:
        if not deferred.done:
            yield deferred
        response.responses += deferred.value.responses
    if quota is not None:
        _throttled(quota, response)
    return response


def _parts(items: Iterable[T], weight: Callable[[T], int]) -> Iterator[list[T]]:
    """Lists of at most so many items, or of a single one that weighs more than a whole list."""
    part: list[T] = []
    weighs = 0
    for item in items:
        if part and (len(part) >= TOPICS_PER_PART or weighs + weight(item) > PARTITIONS_PER_PART):
            yield part
            part, weighs = [], 0
        part.append(item)
        weighs += weight(item)
    if part:
        yield part


HANDLERS: tuple[ApiHandler[NodeServices], ...] = (
    ApiHandler(
        ApiKey.CREATE_TOPICS,
        create_topics,
        create_topics_error,
        POLICIES[ApiKey.CREATE_TOPICS],
        refusal=_refuse_creation,
    ),
    ApiHandler(
        ApiKey.DELETE_TOPICS,
        delete_topics,
        delete_topics_error,
        POLICIES[ApiKey.DELETE_TOPICS],
        refusal=_refuse_deletion,
    ),
    ApiHandler(
        ApiKey.CREATE_PARTITIONS,
        create_partitions,
        create_partitions_error,
        POLICIES[ApiKey.CREATE_PARTITIONS],
        refusal=Division(("topics",), ("results",)),
    ),
)
