"""Fetch v0-18: what consumers and followers read.

v0-1 answer with messages of magic 0, v2-3 of magic 1: stored batches are converted off the loop
(`down_conversion`, docs/adr/0011). v1: throttle time. v3: max_bytes of the whole response (KIP-74);
here a first batch larger than all limits comes with v0-2 too. v4: isolation level and aborted
transactions (KIP-98). v5: log start offset. v6: KAFKA_STORAGE_ERROR may come, instead of which
earlier versions get NOT_LEADER_OR_FOLLOWER (KIP-112). v7: sessions (KIP-227). v9: leader epoch
(KIP-320). v10: zstd (KIP-110): earlier versions get UNSUPPORTED_COMPRESSION_TYPE from a topic with
compression.type=zstd, as in Kafka; a zstd batch of a producer's own choice comes with v4-9 all the
same, with v0-3 it is refused. v11: rack (KIP-392): a consumer may read from followers, and the
leader names the closest one to a consumer with a rack (replica.selector.class). v12: flexible,
diverging epoch (KIP-595). v13: topic ids (KIP-516). v14: KIP-405. v15: replica state (KIP-903).
v16: node endpoints with the current leader (KIP-951). v17: directory id (KIP-853). v18: high
watermark of a follower (KIP-1166).

Records leave as file ranges; a partition without any has empty records, never null, which
librdkafka and Java refuse from v12 on. Waiting, limits, sessions and the choice of a replica are in
`kbroker.replication`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeAlias

from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.pieces import pieces
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.replication.time_slices import Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.down_conversion import DownConversion, share_of
from kbroker.server.handlers.records.leader_hints import LeaderHints
from kbroker.server.policies.data import FETCH as POLICIES
from kbroker.server.requests import Outcome, RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import CHEAP_ITEMS
from kbroker.settings.views.log_config import max_unpacked_bytes
from kbroker.settings.views.network import MEMORY_LIMIT

TIMESTAMPS_SINCE: Final = 2
BATCHES_SINCE: Final = 4
STORAGE_ERROR_SINCE: Final = 6
ZSTD_SINCE: Final = 10
TOPIC_IDS_SINCE: Final = 13
LEADER_HINT_SINCE: Final = 16
COMPRESSION_TYPE: Final = "compression.type"

_Hints: TypeAlias = LeaderHints[FetchResponse.LeaderIdAndEpoch, FetchResponse.NodeEndpoint]

_HINTED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def handle_fetch(services: Services, context: RequestContext, request: FetchRequest) -> Outcome:
    """Answer at once if there is enough to send; else wait on the partitions."""
    version = context.api_version
    if version < BATCHES_SINCE:
        return _fetch_messages(services, version, request)
    outcome = services.replicas.fetch(
        request,
        api_version=version,
        now_ms=services.timers.monotonic_ms(),
        listener_name=context.session.listener_name,
    )
    if version < ZSTD_SINCE:
        if isinstance(outcome, FetchResponse):
            _for_older_clients(services, version, outcome)
        else:
            outcome.on_done(lambda response: _for_older_clients(services, version, response))
        return outcome
    if version < LEADER_HINT_SINCE:
        return outcome
    if isinstance(outcome, FetchResponse):
        _add_leaders(services, context, outcome)
    else:
        outcome.on_done(lambda response: _add_leaders(services, context, response))
    return outcome


def _fetch_messages(services: Services, version: int, request: FetchRequest) -> Outcome:
    """The response to a client that does not know record batches."""
    conversion = _conversion(
        services,
        version,
        request,
        on_read=partial(_refuse_zstd, services),
        on_converted=_without_storage_errors,
    )
    now_ms = services.timers.monotonic_ms()
    return conversion.follow(services.replicas.fetch(request, api_version=version, now_ms=now_ms))


def _conversion(
    services: Services,
    version: int,
    request: FetchRequest,
    *,
    on_read: Callable[[FetchResponse], None] = lambda response: None,
    on_converted: Callable[[FetchResponse], None] = lambda response: None,
) -> DownConversion:
    """For the response to a request, which may read no more afterwards than is converted
    at once.
    """
    request.max_bytes = min(request.max_bytes, share_of(services.memory))
    replicas, now_ms = services.replicas, services.timers.monotonic_ms()

    def read_on(following: FetchRequest) -> FetchResponse:
        found = replicas.fetch(following, api_version=version, now_ms=now_ms)
        return found if isinstance(found, FetchResponse) else FetchResponse()

    def storage_failed(key: tuple[str, int], error: OSError) -> None:
        partition = replicas.partition(TopicPartition(*key))
        if partition is not None:
            replicas.hosting.read_failed(partition, error)

    return DownConversion(
        request,
        magic=1 if version >= TIMESTAMPS_SINCE else 0,
        timers=services.timers,
        offload=services.offload,
        memory=services.memory,
        unpacking=services.replicas.unpacking,
        max_unpacked_bytes=max_unpacked_bytes(services.config.get_int(MEMORY_LIMIT)),
        read_on=read_on,
        on_storage_error=storage_failed,
        on_read=on_read,
        on_converted=on_converted,
    )


def _for_older_clients(services: Services, version: int, response: FetchResponse) -> None:
    _refuse_zstd(services, response)
    if version < STORAGE_ERROR_SINCE:
        _without_storage_errors(response)


def _without_storage_errors(response: FetchResponse) -> None:
    """Replace the code, which the client does not know and fails on, by one that makes it refresh
    its metadata.
    """
    for topic in response.responses:
        for data in topic.partitions:
            if data.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                data.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _refuse_zstd(services: Services, response: FetchResponse) -> None:
    """Refuse topics with compression.type=zstd to clients that do not know zstd."""
    image = services.image
    for topic in response.responses:
        codec = image.topic_configs(topic.topic).get(COMPRESSION_TYPE)
        if (codec or services.config.get_string(COMPRESSION_TYPE)) != "zstd":
            continue
        for data in topic.partitions:
            if not data.error_code:
                data.error_code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
                data.high_watermark = -1
                data.records = b""


def _hints(services: Services, context: RequestContext, response: FetchResponse) -> _Hints:
    return LeaderHints(
        services.image,
        context.session.listener_name,
        response.node_endpoints,
        FetchResponse.LeaderIdAndEpoch,
        FetchResponse.NodeEndpoint,
    )


def _add_leaders(
    services: Services,
    context: RequestContext,
    response: FetchResponse,
    hints: _Hints | None = None,
) -> None:
    """Name the leaders of partitions that this broker does not lead (KIP-951). hints: of the whole
    response, for a piece of it.
    """
    for topic in response.responses:
        for data in topic.partitions:
            if data.error_code and data.error_code in _HINTED:
                hints = hints or _hints(services, context, response)
                leader = hints.leader_of(
                    services.image.topics_by_id.get(topic.topic_id), data.partition_index
                )
                if leader is not None:
                    data.current_leader = leader


def fetch_error(request: FetchRequest, code: ErrorCode, message: str) -> FetchResponse:
    """Every partition named in the request fails; other partitions of the session are left out."""
    del message
    return FetchResponse(
        error_code=int(code),
        responses=[
            FetchResponse.FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    FetchResponse.PartitionData(
                        partition_index=asked.partition,
                        error_code=int(code),
                        high_watermark=-1,
                        records=b"",
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def fetch_in_steps(
    services: Services, context: RequestContext, request: FetchRequest
) -> Steps[FetchResponse]:
    """As `handle_fetch`, in steps, for a request that may name very many partitions."""
    version = context.api_version
    conversion = _conversion(services, version, request) if version < BATCHES_SINCE else None
    response = yield from services.replicas.fetch_in_steps(
        request,
        api_version=version,
        now_ms=services.timers.monotonic_ms(),
        listener_name=context.session.listener_name,
    )
    if version < ZSTD_SINCE:
        for piece in _pieces(response):
            _refuse_zstd(services, piece)
            yield None
    if conversion is not None:
        response = yield from conversion.follow_in_steps(response)
    if version < STORAGE_ERROR_SINCE:
        for piece in _pieces(response):
            _without_storage_errors(piece)
            yield None
    if version >= LEADER_HINT_SINCE:
        hints = _hints(services, context, response)
        for piece in _pieces(response):
            _add_leaders(services, context, piece, hints)
            yield None
    return response


def _pieces(response: FetchResponse) -> Iterator[FetchResponse]:
    """Its partitions, some in each piece: what changes there changes in the response."""
    for piece, _ in pieces(response, ("responses", "partitions"), CHEAP_ITEMS):
        yield piece


def limit_fetch(services: Services, context: RequestContext, request: FetchRequest) -> None:
    """Ask for no more than the client's quota admits at once. Followers have no quota."""
    session = context.session
    if request.replica_id >= 0 or request.replica_state.replica_id >= 0:
        session.is_follower = True
        return
    most = services.quotas.fetch.max_in_window(session.user, context.client_id or "")
    if most is not None:
        request.max_bytes = min(request.max_bytes, int(most))
        request.min_bytes = min(request.min_bytes, request.max_bytes)


def withdraw_fetch(services: Services, response: FetchResponse) -> FetchResponse:
    """The empty response (KIP-219). The session reads the partitions again; one that the response
    would have begun is closed, so the client begins it anew.
    """
    session_id = services.replicas.sessions.withdraw(response)
    return FetchResponse(error_code=response.error_code, session_id=session_id)


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.FETCH,
        handle_fetch,
        fetch_error,
        POLICIES[ApiKey.FETCH],
        steps=fetch_in_steps,
        refusal=Division(("topics", "partitions"), ("responses", "partitions")),
        limit=limit_fetch,
        withdraw=withdraw_fetch,
    ),
)
