"""InitializeShareGroupState v0, ReadShareGroupState v0, WriteShareGroupState v0-1,
DeleteShareGroupState v0, ReadShareGroupStateSummary v0-1: the states of share partitions, for
brokers (KIP-932).

The rules are in `coordinator/share_state/shard`. WriteShareGroupState and the summary v1: the
number of delivered records (KIP-1226). A request without a group gets an empty response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar, cast

from kbroker.coordinator.share_state.service import place_of
from kbroker.model import Uuid
from kbroker.ports import Deferred, gather
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.share_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from kbroker.protocol.share_partition_state import (
    BATCHES_PER_STEP,
    SharePlace,
    StateBatch,
    StateFound,
    StateSummary,
    StateWrite,
)
from kbroker.replication.time_slices import Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.groups import SHARE_STATE as POLICIES
from kbroker.server.requests import Outcome, RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import sliced

T = TypeVar("T")
Part = tuple[SharePlace, Deferred[T]]


def _when_all(
    group_id: str,
    parts: Iterable[Part[T]],
    add: Callable[[dict[Uuid, list[tuple[int, T]]]], Message],
) -> Deferred[Message]:
    """The response that `add` makes of (partition, result) by topic id, once all parts are done."""
    waiting = list(parts) if group_id else []

    def response(values: list[T]) -> Message:
        results: dict[Uuid, list[tuple[int, T]]] = {}
        for (key, _), value in zip(waiting, values, strict=True):
            results.setdefault(key.place[0], []).append((key.place[1], value))
        return add(results)

    return gather(deferred for _, deferred in waiting).then(response)


def handle_initialize(
    services: Services, context: RequestContext, request: InitializeShareGroupStateRequest
) -> Outcome:
    """Each partition on its own."""
    kind = InitializeShareGroupStateResponse
    coordinator = services.share_coordinator
    parts: list[Part[ErrorCode]] = []
    for topic in request.topics:
        for item in topic.partitions:
            key = SharePlace(request.group_id, place_of(topic.topic_id, item.partition))
            parts.append((key, coordinator.initialize(key, item.state_epoch, item.start_offset)))
    return _when_all(
        request.group_id,
        parts,
        lambda found: kind(
            results=[
                kind.InitializeStateResult(
                    topic_id=topic_id,
                    partitions=[
                        kind.PartitionResult(
                            partition=index, error_code=error, error_message=_words(error)
                        )
                        for index, error in results
                    ],
                )
                for topic_id, results in found.items()
            ]
        ),
    )


def handle_read(
    services: Services, context: RequestContext, request: ReadShareGroupStateRequest
) -> Outcome:
    """Each partition on its own."""
    kind = ReadShareGroupStateResponse
    coordinator = services.share_coordinator
    parts: list[Part[StateFound]] = []
    for topic in request.topics:
        for item in topic.partitions:
            key = SharePlace(request.group_id, place_of(topic.topic_id, item.partition))
            parts.append((key, coordinator.read(key, item.leader_epoch)))

    def result(index: int, found: StateFound) -> ReadShareGroupStateResponse.PartitionResult:
        if found.error is not ErrorCode.NONE:
            return kind.PartitionResult(
                partition=index, error_code=found.error, error_message=_words(found.error)
            )
        return kind.PartitionResult(
            partition=index,
            state_epoch=found.state_epoch,
            start_offset=found.start_offset,
            # as they are: the encoder asks for the fields' names only
            state_batches=cast(list[ReadShareGroupStateResponse.StateBatch], found.batches),
        )

    return _when_all(
        request.group_id,
        parts,
        lambda found: kind(
            results=[
                kind.ReadStateResult(
                    topic_id=topic_id, partitions=[result(*one) for one in results]
                )
                for topic_id, results in found.items()
            ]
        ),
    )


@sliced
def handle_write(
    services: Services, context: RequestContext, request: WriteShareGroupStateRequest
) -> Steps[Message]:
    """Each partition on its own."""
    kind = WriteShareGroupStateResponse
    coordinator = services.share_coordinator
    parts: list[Part[ErrorCode]] = []
    for topic in request.topics:
        for item in topic.partitions:
            key = SharePlace(request.group_id, place_of(topic.topic_id, item.partition))
            written: list[Deferred[ErrorCode]] = []
            for batches in _parts_of(item.state_batches):
                if written:
                    yield None
                write = StateWrite(
                    item.state_epoch,
                    item.leader_epoch,
                    item.start_offset,
                    item.delivery_complete_count,
                    batches,
                )
                written.append(coordinator.write(key, write))
            if len(written) == 1:
                parts.append((key, written[0]))
            else:
                parts.append((key, gather(written).then(_first_error)))
    answer = _when_all(
        request.group_id,
        parts,
        lambda found: kind(
            results=[
                kind.WriteStateResult(
                    topic_id=topic_id,
                    partitions=[
                        kind.PartitionResult(
                            partition=index, error_code=error, error_message=_words(error)
                        )
                        for index, error in results
                    ],
                )
                for topic_id, results in found.items()
            ]
        ),
    )
    yield answer
    return answer.value


def _parts_of(
    batches: Sequence[WriteShareGroupStateRequest.StateBatch],
) -> Iterator[list[StateBatch]]:
    """The batches of one partition, in parts that are written one after the other: each changes the
    state of its offsets. One part at least.
    """
    for start in range(0, max(len(batches), 1), BATCHES_PER_STEP):
        yield [
            StateBatch(
                batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count
            )
            for batch in batches[start : start + BATCHES_PER_STEP]
        ]


def _first_error(errors: list[ErrorCode]) -> ErrorCode:
    return next((error for error in errors if error), ErrorCode.NONE)


def handle_delete(
    services: Services, context: RequestContext, request: DeleteShareGroupStateRequest
) -> Outcome:
    """Each partition on its own."""
    kind = DeleteShareGroupStateResponse
    coordinator = services.share_coordinator
    parts: list[Part[ErrorCode]] = []
    for topic in request.topics:
        for item in topic.partitions:
            key = SharePlace(request.group_id, place_of(topic.topic_id, item.partition))
            parts.append((key, coordinator.delete(key)))
    return _when_all(
        request.group_id,
        parts,
        lambda found: kind(
            results=[
                kind.DeleteStateResult(
                    topic_id=topic_id,
                    partitions=[
                        kind.PartitionResult(
                            partition=index, error_code=error, error_message=_words(error)
                        )
                        for index, error in results
                    ],
                )
                for topic_id, results in found.items()
            ]
        ),
    )


def handle_summary(
    services: Services, context: RequestContext, request: ReadShareGroupStateSummaryRequest
) -> Outcome:
    """Each partition on its own."""
    kind = ReadShareGroupStateSummaryResponse
    coordinator = services.share_coordinator
    parts: list[Part[StateSummary]] = []
    for topic in request.topics:
        for item in topic.partitions:
            key = SharePlace(request.group_id, place_of(topic.topic_id, item.partition))
            parts.append((key, coordinator.summarize(key)))

    def result(
        index: int, found: StateSummary
    ) -> ReadShareGroupStateSummaryResponse.PartitionResult:
        if found.error is not ErrorCode.NONE:
            return kind.PartitionResult(
                partition=index, error_code=found.error, error_message=_words(found.error)
            )
        return kind.PartitionResult(
            partition=index,
            state_epoch=found.state_epoch,
            leader_epoch=found.leader_epoch,
            start_offset=found.start_offset,
            delivery_complete_count=found.delivery_complete_count,
        )

    return _when_all(
        request.group_id,
        parts,
        lambda found: kind(
            results=[
                kind.ReadStateSummaryResult(
                    topic_id=topic_id, partitions=[result(*one) for one in results]
                )
                for topic_id, results in found.items()
            ]
        ),
    )


def _words(error: ErrorCode) -> str | None:
    return None if error is ErrorCode.NONE else error.name


def _empty(kind: Callable[[], Message], request: object, error: ErrorCode, message: str) -> Message:
    """These answers have no error of the whole request."""
    return kind()


_DIVISION: Final = Division(("topics", "partitions"), ("results", "partitions"))

HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        handle_initialize,
        partial(_empty, InitializeShareGroupStateResponse),
        POLICIES[ApiKey.INITIALIZE_SHARE_GROUP_STATE],
        division=_DIVISION,
    ),
    ApiHandler(
        ApiKey.READ_SHARE_GROUP_STATE,
        handle_read,
        partial(_empty, ReadShareGroupStateResponse),
        POLICIES[ApiKey.READ_SHARE_GROUP_STATE],
        division=_DIVISION,
    ),
    ApiHandler(
        ApiKey.WRITE_SHARE_GROUP_STATE,
        handle_write,
        partial(_empty, WriteShareGroupStateResponse),
        POLICIES[ApiKey.WRITE_SHARE_GROUP_STATE],
        division=_DIVISION,
    ),
    ApiHandler(
        ApiKey.DELETE_SHARE_GROUP_STATE,
        handle_delete,
        partial(_empty, DeleteShareGroupStateResponse),
        POLICIES[ApiKey.DELETE_SHARE_GROUP_STATE],
        division=_DIVISION,
    ),
    ApiHandler(
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
        handle_summary,
        partial(_empty, ReadShareGroupStateSummaryResponse),
        POLICIES[ApiKey.READ_SHARE_GROUP_STATE_SUMMARY],
        division=_DIVISION,
    ),
)
