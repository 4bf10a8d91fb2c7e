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
    keep_records,
    reverify,
    verify_partitions,
)
from kbroker.log.append_request import AppendRequest, is_transactional
from kbroker.log.results import Appended, Refused
from kbroker.log.validator import RECORD_ERROR_BYTES
from kbroker.log_lines import shown
from kbroker.metadata.internal_topics import INTERNAL_TOPICS
from kbroker.ports import Chained, Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.replication.appends.append import PartitionAppendResult
from kbroker.replication.hosting import HostedTopic
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.partition import Partition
from kbroker.server.api_handler import ApiHandler
from kbroker.server.handlers.records.leader_hints import LeaderHints
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.policies.data import PRODUCE as POLICIES
from kbroker.server.requests import CloseConnection, Outcome, RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division

logger = logging.getLogger(__name__)

STORAGE_ERROR_SINCE: Final = 4
TOPIC_IDS_SINCE: Final = 13
LEADER_HINT_SINCE: Final = 10
ADMIN_CLIENT_ID: Final = "__admin_client"

_TRANSACTION_VERSIONS: Final = (0,) * ADDS_ITSELF_SINCE + (2, 2)
"""Of the producer, by version of the request."""

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
    if verdicts.done:
        return _append_all(services, context, request, verdicts.value)
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
    replicas = services.replicas
    version = context.api_version
    by_id = version >= TOPIC_IDS_SINCE
    append = replicas.append_to
    shared = AppendRequest(
        request.acks,
        request.timeout_ms,
        context.arrived_ms if verdicts is None else services.timers.now_ms(),
        version,
        _TRANSACTION_VERSIONS[version],
        None if verdicts is None else partial(reverify, services.partition_gate, version),
    )
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
        if topic is None or (topic.name in INTERNAL_TOPICS and _may_not_write_internal(context)):
            found = _NO_PARTITIONS
        else:
            found = topic.partitions
        for data in asked.partition_data:
            partition = found.get(data.index)
            records: memoryview = data.records  # type: ignore[assignment]  # as it was decoded
            outcome: PartitionAppendResult | Deferred[PartitionAppendResult]
            if partition is None or not records:
                outcome = _refuse(replicas, topic, asked, data, context)
            elif verdicts is not None and (
                error := _transaction_error(verdicts, partition, records, version)
            ):
                outcome = Refused(error, produce_message_of(error))
            else:
                outcome = append(partition, records, shared)
            if isinstance(outcome, Appended):
                answers.append(_appended(data.index, outcome))
                continue
            answer = _Partition(index=data.index)
            answers.append(answer)
            if isinstance(outcome, Refused):
                _fill(answer, outcome)
                failures = [] if failures is None else failures
                failures.append((asked.name if topic is None else topic.name, answer))
            else:
                waiting = [] if waiting is None else waiting
                waiting.append((answer, outcome))
    if request.acks == 0:
        if failures is not None:
            raise CloseConnection(_describe(failures))
        return None
    response = ProduceResponse(responses=topics)
    if waiting is not None:
        return _Waiting(services.memory, waiting, partial(_finish, services, context, response))
    return response if failures is None else _finish(services, context, response)


def _may_not_write_internal(context: RequestContext) -> bool:
    return context.client_id != ADMIN_CLIENT_ID


def _appended(index: int, appended: Appended) -> _Partition:
    """The response for an appended batch, built without keyword arguments, which cost time."""
    answer: _Partition = _new(_Partition)
    answer.index = index
    answer.error_code = 0
    answer.base_offset = appended.base_offset
    answer.log_append_time_ms = appended.log_append_time_ms
    answer.log_start_offset = appended.log_start_offset
    answer.record_errors = _NO_RECORD_ERRORS
    answer.error_message = None
    answer.current_leader = _NO_LEADER
    return answer


def _fill(answer: _Partition, result: PartitionAppendResult) -> None:
    """Write the outcome of an append into the answer for its partition."""
    answer.error_code = int(result.error)
    answer.base_offset = result.base_offset
    answer.log_append_time_ms = result.log_append_time_ms
    answer.log_start_offset = result.log_start_offset
    answer.error_message = result.error_message
    if result.record_errors:
        answer.record_errors = [
            ProduceResponse.BatchIndexAndErrorMessage(
                batch_index=error.batch_index, batch_index_error_message=error.message
            )
            for error in result.record_errors
        ]


def _transaction_error(
    verdicts: Verdicts, partition: Partition, records: memoryview, version: int
) -> ErrorCode:
    """Why a transactional batch may not enter this partition; NONE for any other batch."""
    if not is_transactional(records):
        return ErrorCode.NONE
    return produce_error_of(verdicts.get(partition.topic_partition, ErrorCode.NONE), version)


def _refuse(
    replicas: ReplicaManager,
    topic: HostedTopic | None,
    asked: ProduceRequest.TopicProduceData,
    data: ProduceRequest.PartitionProduceData,
    context: RequestContext,
) -> Refused:
    """The error of a partition that gets no batch."""
    name = asked.name if topic is None else topic.name
    if name in INTERNAL_TOPICS and _may_not_write_internal(context):
        return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {name}")
    if topic is None or data.index not in topic.partitions:
        by_id = context.api_version >= TOPIC_IDS_SINCE
        found = replicas.find(asked.topic_id if by_id else asked.name, data.index)
        return Refused(found if isinstance(found, ErrorCode) else ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return Refused(ErrorCode.INVALID_RECORD, "Produce requests need one record batch per partition")


def _describe(failures: list[tuple[str, _Partition]]) -> str:
    """The failures in one line, for the log."""
    name, first = failures[0]
    more = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
    error = ErrorCode(first.error_code).name
    return f"Produce with acks=0 failed: {shown(name)}-{first.index} {error}{more}"


class _Waiting(Chained[ProduceResponse]):
    """Resolves once every partition is answered, or fails with the first failure. Refused records
    that are known by then are charged meanwhile. `cancel` ends the waits for replicas; what is to
    be appended is appended.

    It counts the outcomes itself: a chain of Deferreds for each of them took a tenth of what a
    Produce request costs.
    """

    __slots__ = ("_charged_bytes", "_finish", "_left", "_memory", "_outcomes")

    def __init__(
        self,
        memory: MemoryPool,
        waiting: list[tuple[_Partition, Deferred[PartitionAppendResult]]],
        finish: Callable[[], ProduceResponse],
    ) -> None:
        super().__init__()
        self._memory = memory
        self._charged_bytes = 0
        self._finish = finish
        self._left = len(waiting)
        self._outcomes = [outcome for _, outcome in waiting]
        for answer, outcome in waiting:
            outcome.on_done(partial(self._answered, answer), self._failed)

    def resolve(self, value: ProduceResponse) -> None:
        super().resolve(value)
        self._release()

    def fail(self, error: KafkaError) -> None:
        super().fail(error)
        self._release()

    def cancel(self) -> None:
        outcomes = self._outcomes
        super().cancel()
        self._release()
        for outcome in outcomes:
            outcome.cancel()

    def _answered(self, answer: _Partition, result: PartitionAppendResult) -> None:
        _fill(answer, result)
        if result.record_errors and not (self.done or self.is_cancelled):
            held_bytes = RECORD_ERROR_BYTES * len(result.record_errors)
            self._charged_bytes += held_bytes
            self._memory.charge(held_bytes)
        self._left -= 1
        if not self._left and not (self.done or self.is_cancelled):
            self.resolve(self._finish())

    def _failed(self, error: KafkaError) -> None:
        if not self.done:
            self.fail(error)

    def _release(self) -> None:
        self._outcomes = []  # leaves no reference cycle
        if self._charged_bytes:
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


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.PRODUCE,
        handle_produce,
        produce_error,
        POLICIES[ApiKey.PRODUCE],
        division=Division(("topic_data", "partition_data"), ("responses", "partition_responses")),
    ),
)
