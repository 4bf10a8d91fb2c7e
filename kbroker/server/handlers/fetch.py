"""Fetch v4-18: what consumers, and later followers, read.

v4: isolation level and aborted transactions (KIP-98). v5: log start offset. v7: sessions (KIP-227).
v9: current leader epoch (KIP-320). v10: zstd (KIP-110), which earlier versions read all the same if
a topic holds it. v11: rack (KIP-392). v12: flexible, diverging epoch (KIP-595). v13: topic ids
(KIP-516). v14: KIP-405. v15: replica state (KIP-903). v16: node endpoints with the current leader
(KIP-951). v17: directory id (KIP-853). v18: high watermark of a follower (KIP-1166).

Records leave as file ranges; a partition without any has empty records, never null, which
librdkafka and Java refuse from v12 on. The preferred read replica is always -1: the leader serves
everybody, whatever the rack. Waiting, limits and sessions are in `kbroker.replication`.
"""

from __future__ import annotations

from typing import Final

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.server.dispatch import ApiHandler, Outcome, RequestContext
from kbroker.server.services import Services

TOPIC_IDS_SINCE: Final = 13
LEADER_HINT_SINCE: Final = 16
SESSIONS_SINCE: Final = 7

_HINTED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def handle_fetch(services: Services, context: RequestContext, request: FetchRequest) -> Outcome:
    """Answer at once if there is enough to send; else wait on the partitions."""
    outcome = services.replicas.fetch(
        request, api_version=context.api_version, now_ms=services.timers.monotonic_ms()
    )
    if context.api_version < LEADER_HINT_SINCE:
        return outcome
    if isinstance(outcome, FetchResponse):
        _add_leaders(services, context, outcome)
    else:
        outcome.on_done(lambda response: _add_leaders(services, context, response))
    return outcome


def _add_leaders(services: Services, context: RequestContext, response: FetchResponse) -> None:
    """Say who leads what is not led here (KIP-951)."""
    for topic in response.responses:
        for data in topic.partitions:
            if data.error_code and data.error_code in _HINTED:
                _add_leader(services, context, response, topic.topic_id, data)


def _add_leader(
    services: Services,
    context: RequestContext,
    response: FetchResponse,
    topic_id: bytes,
    data: FetchResponse.PartitionData,
) -> None:
    image = services.image
    topic = image.topics_by_id.get(topic_id)
    partition = None if topic is None else topic.partitions.get(data.partition_index)
    if partition is None:
        return
    data.current_leader = FetchResponse.LeaderIdAndEpoch(
        leader_id=partition.leader, leader_epoch=partition.leader_epoch
    )
    broker = image.brokers.get(partition.leader)
    endpoint = None if broker is None else broker.endpoints.get(context.listener_name)
    if broker is None or endpoint is None:
        return
    if all(known.node_id != broker.id for known in response.node_endpoints):
        response.node_endpoints.append(
            FetchResponse.NodeEndpoint(
                node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
            )
        )


def fetch_error(request: FetchRequest, code: ErrorCode, message: str) -> FetchResponse:
    """Every partition named in the request fails; those only the session knows are left out."""
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


HANDLERS: tuple[ApiHandler, ...] = (ApiHandler(ApiKey.FETCH, 4, 18, handle_fetch, fetch_error),)
