"""Which brokers lead partitions, and which have replicas of them: ElectLeaders v0-2,
AlterPartitionReassignments v0-1, ListPartitionReassignments v0.

ElectLeaders (KIP-183): v1 brings the type of the election, preferred or unclean, and a top-level
error code (KIP-460); v2 is flexible. Null for the partitions stands for all. Reassignments
(KIP-455): v1 may forbid that the replication factor changes (KIP-860). The active controller
decides, and answers once the change is committed, which is when a reassignment has begun, not when
it is complete. ElectLeaders v0 has no place for an error about all partitions.

Deviations: an election of all partitions names only topics with a partition that needed one; a
partition that is named again is elected or listed once, and not reassigned a second time
(INVALID_REQUEST); of more than 10,000 changes none is made (Kafka makes the first 10,000
reassignments, and UNKNOWN_SERVER_ERROR of the others); timeout_ms bounds the wait for the
controller's turn (REQUEST_TIMED_OUT), not that for the commit.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kbroker.replication.time_slices import Pace, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.administration import LEADERS_AND_REPLICAS as POLICIES
from kbroker.server.requests import Outcome, RequestContext
from kbroker.server.services import NodeServices
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import CHEAP_ITEMS, STRUCT_BYTES, TOO_LARGE, AnswerSize, sliced

RESULT_BYTES: Final = 256
"""About what the result for a partition takes in memory and on the wire, but for its topic's name,
which the error message may repeat.
"""


@sliced
def elect_leaders(
    services: NodeServices, context: RequestContext, request: ElectLeadersRequest
) -> Steps[ElectLeadersResponse]:
    """Hand the request to the controller, unless it names nothing."""
    asked = request.topic_partitions
    if asked is not None and not asked:
        return ElectLeadersResponse()
    with AnswerSize(services) as size:
        if asked is not None:
            yield from _charge_results(size, ((each.topic, len(each.partitions)) for each in asked))
        answer = services.controller.elect_leaders(request)
        if not answer.done:
            yield answer
        return answer.value


@sliced
def alter_reassignments(
    services: NodeServices, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> Steps[AlterPartitionReassignmentsResponse]:
    """Hand the request to the controller, unless it names nothing."""
    if not request.topics:
        return AlterPartitionReassignmentsResponse()
    with AnswerSize(services) as size:
        asked = ((each.name, len(each.partitions)) for each in request.topics)
        yield from _charge_results(size, asked)
        answer = services.controller.alter_reassignments(request)
        if not answer.done:
            yield answer
        return answer.value


def _charge_results(
    size: AnswerSize, topics: Iterable[tuple[str, int]]
) -> Generator[None, None, None]:
    """Charge a response with a result for each partition. topics: name and number of partitions.

    Raises KafkaError(POLICY_VIOLATION) if it would exceed kbroker.response.max.bytes: 250,000
    partitions of a topic with a long name are a request of 1 MB and an answer of gigabytes.
    """
    pace = Pace(CHEAP_ITEMS)
    for name, count in topics:
        if pace.is_due():
            yield
        if not size.add(STRUCT_BYTES + count * (RESULT_BYTES + 2 * len(name))):
            raise KafkaError(ErrorCode.POLICY_VIOLATION, TOO_LARGE)


def list_reassignments(
    services: NodeServices, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> Outcome:
    """Ask the controller, unless the request names nothing."""
    if request.topics is not None and not request.topics:
        return ListPartitionReassignmentsResponse(error_message=None)
    answer = services.controller.list_reassignments(request)
    return answer.value if answer.done else answer


def elect_leaders_error(
    request: ElectLeadersRequest, code: ErrorCode, message: str
) -> ElectLeadersResponse:
    """The error of the response, and for each partition of the request."""
    result = ElectLeadersResponse.PartitionResult
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ElectLeadersResponse.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    result(partition_id=index, error_code=code, error_message=message or None)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def alter_reassignments_error(
    request: AlterPartitionReassignmentsRequest, code: ErrorCode, message: str
) -> AlterPartitionReassignmentsResponse:
    """The error of the response, and for each partition of the request."""
    kind = AlterPartitionReassignmentsResponse
    return kind(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=code,
        error_message=message or None,
        responses=[
            kind.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    kind.ReassignablePartitionResponse(
                        partition_index=asked.partition_index,
                        error_code=code,
                        error_message=message or None,
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def list_reassignments_error(
    request: ListPartitionReassignmentsRequest, code: ErrorCode, message: str
) -> ListPartitionReassignmentsResponse:
    """The error of the response; Kafka names the partitions of the request, too."""
    kind = ListPartitionReassignmentsResponse
    return kind(
        error_code=code,
        error_message=message or None,
        topics=[
            kind.OngoingTopicReassignment(
                name=topic.name,
                partitions=[
                    kind.OngoingPartitionReassignment(partition_index=index)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ],
    )


HANDLERS: tuple[ApiHandler[NodeServices], ...] = (
    ApiHandler(
        ApiKey.ELECT_LEADERS,
        elect_leaders,
        elect_leaders_error,
        POLICIES[ApiKey.ELECT_LEADERS],
        refusal=Division(
            ("topic_partitions", "partitions"), ("replica_election_results", "partition_result")
        ),
    ),
    ApiHandler(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        alter_reassignments,
        alter_reassignments_error,
        POLICIES[ApiKey.ALTER_PARTITION_REASSIGNMENTS],
        refusal=Division(("topics", "partitions"), ("responses", "partitions")),
    ),
    ApiHandler(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        list_reassignments,
        list_reassignments_error,
        POLICIES[ApiKey.LIST_PARTITION_REASSIGNMENTS],
        refusal=Division(("topics", "partition_indexes"), ("topics", "partitions")),
    ),
)
