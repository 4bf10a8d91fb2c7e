"""Produce v0-13: batches into the partitions led here.

v0-2 bring message sets of magic 0 or 1, each of which becomes one record batch (docs/adr/0011). v1:
throttle time. v2: magic 1, the append time in the response (KIP-32). v3: transactional id, magic 2
only (KIP-98). v4: KAFKA_STORAGE_ERROR may come, in whose place earlier versions, whose clients do
not know it, get NOT_LEADER_OR_FOLLOWER (KIP-112; Kafka 4 does that for Fetch only). v5: log start
offset in the response. v7: zstd (KIP-110), which earlier versions get UNSUPPORTED_COMPRESSION_TYPE
for. v8: the refused records and a message (KIP-467). v9: flexible. v10: the current leader with
NOT_LEADER_OR_FOLLOWER (KIP-951). v12: transactions v2 (KIP-890). v13: topic ids (KIP-516).

Kafka 4 announces v0-2, for old librdkafka, but does not serve them; here they are. acks=0 gets no
response; if anything failed the connection ends, which is how such a producer learns of it. acks=1,
and acks=-1 with a single replica, are answered at once; otherwise the response waits for the last
partition. A client may not write to internal topics unless it calls itself `__admin_client`.

Transactional batches are appended only to partitions of the producer's open transaction
(`transactional_produce`); without a transactional id in the request they get
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, as in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from kbroker.broker.transaction_gate import (
    ADDS_ITSELF_SINCE,
    Verdicts,
    produce_error_of,
    produce_message_of,
)
from kbroker.broker.transactional_produce import (
    is_transactional,
    keep_records,
    reverify,
    verify_partitions,
)
from kbroker.log.validator import RECORD_ERROR_BYTES
from kbroker.log_lines import shown
from kbroker.metadata.internal_topics import INTERNAL_TOPICS
from kbroker.model import TopicPartition
from kbroker.ports import Chained, Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.replication.append import PartitionAppendResult
from kbroker.replication.hosting import HostedTopic
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.partition import Partition
from kbroker.server.api_handler import ApiHandler
from kbroker.server.api_policy import (
    WRITE_EACH_TOPIC,
    WRITE_TRANSACTIONAL_ID,
    ApiPolicy,
    MemoryClass,
    Quota,
    Versions,
)
from kbroker.server.handlers.leader_hints import LeaderHints
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.requests import CloseConnection, Outcome, RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division

logger = logging.getLogger(__name__)

STORAGE_ERROR_SINCE: Final = 4
TOPIC_IDS_SINCE: Final = 13
LEADER_HINT_SINCE: Final = 10
ADMIN_CLIENT_ID: Final = "__admin_client"

_Partition = ProduceResponse.PartitionProduceResponse
_Topic = ProduceResponse.TopicProduceResponse

_new: Final = object.__new__
_NO_RECORD_ERRORS: Final[list[ProduceResponse.BatchIndexAndErrorMessage]] = []
_NO_PARTITIONS: Final[Mapping[int, Partition]] = {}
_NO_LEADER: Final = ProduceResponse.LeaderIdAndEpoch()
"""Shared by all answers; never changed in place."""


def handle_produce(services: Services, context: RequestContext, request: ProduceRequest) -> Outcome:
    """Verify the transaction, if the request has one, and append."""
    if request.transactional_id is None:
        return _append_all(services, context, request, None)
    if request.acks == 0:
        raise CloseConnection("a transactional Produce request with acks=0")
    verdicts = verify_partitions(
        services.replicas, services.partition_gate, context.api_version, request
    )
    if not isinstance(verdicts, Deferred):
        return _append_all(services, context, request, verdicts)
    kept_bytes = keep_records(request)
    services.memory.charge(kept_bytes)

    def release(_: object) -> None:
        services.memory.release(kept_bytes)

    verdicts.on_done(release, release)
    answer = verdicts.then(lambda known: _append_all(services, context, request, known))
    return answer.recover(lambda error: produce_error(request, error.code, error.message))


def _append_all(
    services: Services,
    context: RequestContext,
    request: ProduceRequest,
    verdicts: Verdicts | None,
) -> Outcome:
    """Append every partition in the order of the request, then answer or wait for replicas.

    verdicts: the coordinator's on partitions with transactional batches; None: none may come.
    """
    acks = request.acks
    replicas = services.replicas
    version = context.api_version
    by_id = version >= TOPIC_IDS_SINCE
    may_write_internal = context.client_id == ADMIN_CLIENT_ID
    timeout_ms = request.timeout_ms
    append_to, append_next = replicas.append_to, replicas.append_next
    transaction_version = 2 if version >= ADDS_ITSELF_SINCE else 0
    now_ms = context.arrived_ms if verdicts is None else None
    plain_ms = now_ms if -1 <= acks <= 1 else None
    failures: list[tuple[str, _Partition]] | None = None
    waiting: list[tuple[_Partition, Deferred[PartitionAppendResult]]] | None = None
    topics: list[_Topic] = []
    for asked in request.topic_data:
        topic = replicas.topic_by_id(asked.topic_id) if by_id else replicas.topic(asked.name)
        answers: list[_Partition] = []
        topics.append(
            _Topic(topic_id=asked.topic_id, partition_responses=answers)
            if by_id
            else _Topic(name=asked.name, partition_responses=answers)
        )
        name = asked.name if topic is None else topic.name
        refused = name in INTERNAL_TOPICS and not may_write_internal
        found = _NO_PARTITIONS if topic is None or refused else topic.partitions
        for data in asked.partition_data:
            partition = found.get(data.index)
            records: memoryview = data.records  # type: ignore[assignment]  # as it was decoded
            if partition is None or not records:
                result = _refuse(replicas, topic, asked, data, by_id, refused)
            elif (
                plain_ms is not None
                and (base_offset := append_next(partition, records, version, plain_ms)) >= 0
            ):
                answers.append(_appended(data.index, base_offset, partition.log.log_start_offset))
                continue
            elif is_transactional(records) and (
                error := _transaction_error(verdicts, partition.topic_partition, version)
            ):
                result = PartitionAppendResult(error, error_message=produce_message_of(error))
            else:
                outcome = append_to(
                    partition,
                    records,
                    acks=acks,
                    timeout_ms=timeout_ms,
                    produce_version=version,
                    transaction_version=transaction_version,
                    admit=None
                    if verdicts is None
                    else reverify(services.partition_gate, version, request, partition, records),
                    now_ms=now_ms,
                )
                if isinstance(outcome, Deferred):
                    answer = _Partition(index=data.index)
                    answers.append(answer)
                    waiting = [] if waiting is None else waiting
                    waiting.append((answer, outcome))
                    continue
                result = outcome
            answer = _Partition(
                index=data.index,
                error_code=int(result.error),
                base_offset=result.base_offset,
                log_append_time_ms=result.log_append_time_ms,
                log_start_offset=result.log_start_offset,
                record_errors=_NO_RECORD_ERRORS,
                error_message=result.error_message,
                current_leader=_NO_LEADER,
            )
            answers.append(answer)
            if result.error:
                if result.record_errors:
                    _add_record_errors(answer, result)
                failures = [] if failures is None else failures
                failures.append((name, answer))
    if acks == 0:
        if failures is not None:
            raise CloseConnection(_describe(failures))
        return None
    response = ProduceResponse(responses=topics)
    if waiting is not None:
        return _Waiting(services.memory, waiting, lambda: _finish(services, context, response))
    return response if failures is None else _finish(services, context, response)


def _appended(index: int, base_offset: int, log_start_offset: int) -> _Partition:
    """The response for an appended batch, built without keyword arguments, which cost time."""
    answer: _Partition = _new(_Partition)
    answer.index = index
    answer.error_code = 0
    answer.base_offset = base_offset
    answer.log_append_time_ms = -1
    answer.log_start_offset = log_start_offset
    answer.record_errors = _NO_RECORD_ERRORS
    answer.error_message = None
    answer.current_leader = _NO_LEADER
    return answer


def _transaction_error(
    verdicts: Verdicts | None, partition: TopicPartition, version: int
) -> ErrorCode:
    """Whether a transactional batch may enter this partition."""
    if verdicts is None:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return produce_error_of(verdicts.get(partition, ErrorCode.NONE), version)


def _refuse(
    replicas: ReplicaManager,
    topic: HostedTopic | None,
    asked: ProduceRequest.TopicProduceData,
    data: ProduceRequest.PartitionProduceData,
    by_id: bool,
    refused: bool,
) -> PartitionAppendResult:
    """The error of a partition that gets no batch. refused: it belongs to an internal topic."""
    if refused:
        name = asked.name if topic is None else topic.name
        return PartitionAppendResult(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            error_message=f"Cannot append to internal topic {name}",
        )
    if topic is None or data.index not in topic.partitions:
        found = replicas.find(asked.topic_id if by_id else asked.name, data.index)
        return PartitionAppendResult(
            found if isinstance(found, ErrorCode) else ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
    return PartitionAppendResult(
        ErrorCode.INVALID_RECORD,
        error_message="Produce requests need one record batch per partition",
    )


def _add_record_errors(answer: _Partition, result: PartitionAppendResult) -> None:
    answer.record_errors = [
        ProduceResponse.BatchIndexAndErrorMessage(
            batch_index=error.batch_index, batch_index_error_message=error.message
        )
        for error in result.record_errors
    ]


def _describe(failures: list[tuple[str, _Partition]]) -> str:
    """The failures in one line, for the log."""
    name, first = failures[0]
    more = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
    error = ErrorCode(first.error_code).name
    return f"Produce with acks=0 failed: {shown(name)}-{first.index} {error}{more}"


class _Waiting(Chained[ProduceResponse]):
    """Resolves once every partition is answered. Refused records that are known by then are charged
    meanwhile. `cancel` ends the waits for replicas; what is to be appended is appended.
    """

    __slots__ = ("_charged_bytes", "_finish", "_left", "_memory", "_waiting")

    def __init__(
        self,
        memory: MemoryPool,
        waiting: list[tuple[_Partition, Deferred[PartitionAppendResult]]],
        finish: Callable[[], ProduceResponse],
    ) -> None:
        super().__init__()
        self._memory = memory
        self._finish = finish
        self._left = len(waiting)
        self._charged_bytes = 0
        self._waiting = [deferred for _, deferred in waiting]
        failed = self.fail
        for answer, deferred in waiting:
            deferred.on_done(partial(self._filled, answer), failed)

    def cancel(self) -> None:
        super().cancel()
        waiting, self._waiting = self._waiting, []
        for deferred in waiting:
            deferred.cancel()
        self._release()

    def _filled(self, answer: _Partition, result: PartitionAppendResult) -> None:
        if self.is_cancelled:
            return
        answer.error_code = int(result.error)
        answer.base_offset = result.base_offset
        answer.log_append_time_ms = result.log_append_time_ms
        answer.log_start_offset = result.log_start_offset
        answer.error_message = result.error_message
        if result.record_errors:
            _add_record_errors(answer, result)
            held_bytes = RECORD_ERROR_BYTES * len(result.record_errors)
            self._charged_bytes += held_bytes
            self._memory.charge(held_bytes)
        self._left -= 1
        if not self._left:
            self._waiting.clear()
            self.resolve(self._finish())
            self._release()

    def _release(self) -> None:
        charged_bytes, self._charged_bytes = self._charged_bytes, 0
        self._memory.release(charged_bytes)


def _finish(
    services: Services, context: RequestContext, response: ProduceResponse
) -> ProduceResponse:
    """Replace codes that the client does not know, and name the leaders of partitions that this
    broker does not lead (KIP-951).
    """
    if context.api_version < STORAGE_ERROR_SINCE:
        for topic in response.responses:
            for answer in topic.partition_responses:
                if answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                    answer.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if context.api_version < LEADER_HINT_SINCE:
        return response
    image = services.image
    hints = LeaderHints(
        image,
        context.session.listener_name,
        response.node_endpoints,
        ProduceResponse.LeaderIdAndEpoch,
        ProduceResponse.NodeEndpoint,
    )
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                continue
            found = (
                image.topics_by_id.get(topic.topic_id)
                if context.api_version >= TOPIC_IDS_SINCE
                else image.topics.get(topic.name)
            )
            leader = hints.leader_of(found, answer.index)
            if leader is not None:
                answer.current_leader = leader
    return response


def produce_error(request: ProduceRequest, code: ErrorCode, message: str) -> ProduceResponse:
    """Every partition fails in the same way. With acks=0 the connection ends instead."""
    if request.acks == 0:
        raise CloseConnection(f"Produce with acks=0 failed: {code.name}")
    return ProduceResponse(
        responses=[
            _Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    _Partition(
                        index=data.index,
                        error_code=int(code),
                        base_offset=-1,
                        error_message=message or None,
                    )
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


HANDLERS: tuple[ApiHandler, ...] = (
    ApiHandler(
        ApiKey.PRODUCE,
        handle_produce,
        produce_error,
        ApiPolicy(
            Versions(0, 13),
            (WRITE_TRANSACTIONAL_ID, WRITE_EACH_TOPIC),
            quota=Quota.PRODUCE,
            memory_class=MemoryClass.SMALL_RESPONSE,
        ),
        division=Division(("topic_data", "partition_data"), ("responses", "partition_responses")),
    ),
)
