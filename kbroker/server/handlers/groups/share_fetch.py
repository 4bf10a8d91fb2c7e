"""ShareFetch v1-2, ShareAcknowledge v1-2: what members of share groups read, and say of it
(KIP-932).

v2: exact record limits (KIP-1206), renewed locks (KIP-1222). Sessions are begun with epoch 0,
counted on, and ended with -1; a session ends with its connection too, which gives back what its
member had acquired. Whether the member is one of the group is not asked, as in Kafka: the group's
state is. Deviation: what is acquired is named in longer pieces than Kafka's where neighbours were
delivered as often.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from kbroker.model import TopicIdPartition, Uuid
from kbroker.ports import Chained, Deferred, at_once
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.share_groups import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from kbroker.replication.time_slices import Pace, SlicedSteps, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.groups import SHARE_FETCH as POLICIES
from kbroker.server.requests import Outcome, RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.sliced import CHEAP_ITEMS
from kbroker.share.acknowledgement import Acknowledgement
from kbroker.share.delivery import PartitionData, ReadLimits
from kbroker.share.partitions import AcknowledgeOutcome
from kbroker.share.reader import Answer, Outcomes, ShareReader
from kbroker.share.session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    SessionKey,
    ShareSession,
)

STRICT_MODE: Final = 1
"""The acquire mode in which max_records is exact."""
LOCK_TIMEOUT_SINCE: Final = 2
"""From this ShareAcknowledge on the response tells how long a lock lasts."""

_Topic = ShareFetchResponse.ShareFetchableTopicResponse
_AcknowledgedTopic = ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse
_AcknowledgedPartition = ShareAcknowledgeResponse.PartitionData


def handle_share_fetch(
    services: Services, context: RequestContext, request: ShareFetchRequest
) -> Outcome:
    """Acknowledgements are persisted before records are read."""
    return at_once(_begin_fetch(services, context, request))


def share_fetch_in_steps(
    services: Services, context: RequestContext, request: ShareFetchRequest
) -> Steps[Message]:
    """The same for a request that may name very many partitions."""
    response = yield from _begin_fetch(services, context, request)
    yield response
    return response.value


def _begin_fetch(
    services: Services, context: RequestContext, request: ShareFetchRequest
) -> Generator[None, None, Deferred[Message]]:
    """Take the request over into its session, in steps. Raises KafkaError."""
    acknowledgements = yield from _acknowledgements(request.topics)
    epoch = request.share_session_epoch
    if epoch == INITIAL_EPOCH and acknowledgements:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    is_reading = request.max_records or request.max_bytes or request.min_bytes
    if request.is_renew_ack and (is_reading or request.max_wait_ms):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    reader = services.share_reader
    session = reader.session(
        _key(request.group_id, request.member_id), epoch, context.session.connection_id
    )
    with _releasing(reader, session, epoch):
        yield from reader.update(session, _places(request), _forgotten(request))
        kept = yield from reader.acknowledge(
            session, acknowledgements, may_renew=request.is_renew_ack
        )
    limits = ReadLimits(
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=min(request.max_bytes, services.config.get_int("fetch.max.bytes")),
        max_records=request.max_records,
        batch_size=max(request.batch_size, 1),
        is_strict=request.share_acquire_mode == STRICT_MODE,
    )
    is_full = epoch == INITIAL_EPOCH

    def answer(found: Answer, outcomes: Outcomes, *, is_full: bool = False) -> Deferred[Message]:
        response: Chained[Message] = Chained()

        def steps() -> SlicedSteps:
            made = yield from _answer(services, session, found, outcomes, is_full=is_full)
            response.resolve(made)

        reader.in_slices(steps(), response)
        return response

    def acknowledged(outcomes: Outcomes) -> Deferred[Message]:
        if epoch == FINAL_EPOCH:
            return reader.release(session).then(lambda _: answer({}, outcomes))
        if request.is_renew_ack:
            return answer({}, outcomes)
        return reader.fetch(session, limits).then(
            lambda found: answer(found, outcomes, is_full=is_full), cancels_source=True
        )

    return kept.then(acknowledged, cancels_source=epoch != FINAL_EPOCH)


def _answer(
    services: Services,
    session: ShareSession,
    found: Answer,
    outcomes: Outcomes,
    *,
    is_full: bool,
) -> Generator[None, None, ShareFetchResponse]:
    """In steps: partitions with records or errors; at the beginning of a session all of them."""
    config = services.share_reader.config_of(session.key[0])
    response = ShareFetchResponse(
        acquisition_lock_timeout_ms=config.group_share_record_lock_duration_ms
    )
    topics: dict[Uuid, list[PartitionData]] = {}
    places = dict.fromkeys([*(session.partitions if is_full else ()), *outcomes, *found])
    pace = Pace(CHEAP_ITEMS)
    for place in places:
        if pace.is_due():
            yield
        data = found.get(place) or PartitionData(partition_index=place[1], records=b"")
        outcome = outcomes.get(place)
        if outcome is not None and outcome.error is not ErrorCode.NONE:
            data.acknowledge_error_code = outcome.error
            data.acknowledge_error_message = outcome.message or None
        topics.setdefault(place[0], []).append(data)
    for topic_id, partitions in topics.items():
        if pace.is_due():
            yield
        response.responses.append(_Topic(topic_id=topic_id, partitions=partitions))
    return response


def share_fetch_error(
    request: ShareFetchRequest, error: ErrorCode, message: str
) -> ShareFetchResponse:
    """The error of the whole request."""
    return ShareFetchResponse(error_code=error, error_message=message or None)


def handle_share_acknowledge(
    services: Services, context: RequestContext, request: ShareAcknowledgeRequest
) -> Outcome:
    """The response leaves when all acknowledgements are persisted."""
    return at_once(_begin_acknowledge(services, context, request))


def share_acknowledge_in_steps(
    services: Services, context: RequestContext, request: ShareAcknowledgeRequest
) -> Steps[Message]:
    """The same for a request that may name very many partitions."""
    response = yield from _begin_acknowledge(services, context, request)
    yield response
    return response.value


def _begin_acknowledge(
    services: Services, context: RequestContext, request: ShareAcknowledgeRequest
) -> Generator[None, None, Deferred[Message]]:
    """Pass the acknowledgements on, in steps. Raises KafkaError."""
    reader = services.share_reader
    epoch = request.share_session_epoch
    if epoch == INITIAL_EPOCH:
        raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    session = reader.session(
        _key(request.group_id, request.member_id), epoch, context.session.connection_id
    )

    def answer(outcomes: Outcomes) -> Deferred[Message]:
        response: Deferred[Message] = Deferred()  # not cancelled: the end of the session follows

        def steps() -> SlicedSteps:
            made = yield from _acknowledged(services, context, session, outcomes)
            response.resolve(made)

        reader.in_slices(steps(), response)
        if epoch != FINAL_EPOCH:
            return response
        return response.then(lambda made: reader.release(session).then(lambda _: made))

    with _releasing(reader, session, epoch):
        acknowledgements = yield from _acknowledgements(request.topics)
        kept = yield from reader.acknowledge(
            session, acknowledgements, may_renew=request.is_renew_ack
        )
    return kept.then(answer)


def _acknowledged(
    services: Services,
    context: RequestContext,
    session: ShareSession,
    outcomes: Mapping[TopicIdPartition, AcknowledgeOutcome],
) -> Generator[None, None, ShareAcknowledgeResponse]:
    """In steps."""
    response = ShareAcknowledgeResponse()
    if context.api_version >= LOCK_TIMEOUT_SINCE:
        config = services.share_reader.config_of(session.key[0])
        response.acquisition_lock_timeout_ms = config.group_share_record_lock_duration_ms
    topics: dict[Uuid, list[_AcknowledgedPartition]] = {}
    pace = Pace(CHEAP_ITEMS)
    for (topic_id, index), outcome in outcomes.items():
        if pace.is_due():
            yield
        topics.setdefault(topic_id, []).append(
            _AcknowledgedPartition(
                partition_index=index,
                error_code=outcome.error,
                error_message=outcome.message or None,
            )
        )
    for topic_id, partitions in topics.items():
        if pace.is_due():
            yield
        response.responses.append(_AcknowledgedTopic(topic_id=topic_id, partitions=partitions))
    return response


def share_acknowledge_error(
    request: ShareAcknowledgeRequest, error: ErrorCode, message: str
) -> ShareAcknowledgeResponse:
    """The error of the whole request."""
    return ShareAcknowledgeResponse(error_code=error, error_message=message or None)


def _key(group_id: str | None, member_id: str | None) -> SessionKey:
    if not group_id or not member_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return group_id, member_id


@contextmanager
def _releasing(reader: ShareReader, session: ShareSession, epoch: int) -> Iterator[None]:
    """Steps of a request. Where its connection is closed during the session's last request, no
    later step releases what the member had acquired.
    """
    try:
        yield
    except GeneratorExit:
        if epoch == FINAL_EPOCH:
            reader.release(session)
        raise


def _places(request: ShareFetchRequest) -> Iterable[TopicIdPartition]:
    for topic in request.topics:
        topic_id = bytes(topic.topic_id)
        for partition in topic.partitions:
            yield topic_id, partition.partition_index


def _forgotten(request: ShareFetchRequest) -> Iterable[TopicIdPartition]:
    for topic in request.forgotten_topics_data:
        topic_id = bytes(topic.topic_id)
        for index in topic.partitions:
            yield topic_id, index


def _acknowledgements(
    topics: Sequence[ShareFetchRequest.FetchTopic]
    | Sequence[ShareAcknowledgeRequest.AcknowledgeTopic],
) -> Generator[None, None, dict[TopicIdPartition, list[Acknowledgement]]]:
    """The acknowledgements of a request by share partition, in steps. For a partition that is named
    twice the last entry counts.
    """
    found: dict[TopicIdPartition, list[Acknowledgement]] = {}
    pace = Pace(CHEAP_ITEMS)
    for topic in topics:
        if pace.is_due():
            yield
        topic_id = bytes(topic.topic_id)
        for partition in topic.partitions:
            if pace.is_due():
                yield
            if not partition.acknowledgement_batches:
                continue
            items = found[topic_id, partition.partition_index] = []
            for batch in partition.acknowledgement_batches:
                if pace.is_due():
                    yield
                items.append(
                    Acknowledgement(
                        batch.first_offset, batch.last_offset, list(batch.acknowledge_types)
                    )
                )
    return found


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.SHARE_FETCH,
        handle_share_fetch,
        share_fetch_error,
        POLICIES[ApiKey.SHARE_FETCH],
        steps=share_fetch_in_steps,
    ),
    ApiHandler(
        ApiKey.SHARE_ACKNOWLEDGE,
        handle_share_acknowledge,
        share_acknowledge_error,
        POLICIES[ApiKey.SHARE_ACKNOWLEDGE],
        steps=share_acknowledge_in_steps,
    ),
)
