"""The requests about states of share partitions: each partition's call and its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.errors import ErrorCode, KafkaError
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
    UNINITIALIZED,
    UNKNOWN_COUNT,
    SharePlace,
    StateBatch,
    StateFound,
    StateSummary,
    StateWrite,
)
from kbroker.server.handlers.groups import share_state
from kbroker.server.handlers.groups.share_state import HANDLERS
from kbroker.server.requests import RequestContext
from tests.server.slices import Sliced

FIRST, SECOND = bytes(15) + b"\x01", bytes(15) + b"\x02"
PLACES = [(FIRST, 0), (SECOND, 4), (FIRST, 1)]
"""Of the requests: the second topic stands between two entries of the first."""
RESULT_PLACES = [(FIRST, 0), (FIRST, 1), (SECOND, 4)]
"""Of the responses: by topic."""
BATCHES = [StateBatch(10, 14, 0, 1), StateBatch(15, 15, 2, 3)]
REFUSED = ErrorCode.FENCED_STATE_EPOCH

BY_KEY = {handler.api_key: handler for handler in HANDLERS}
KINDS: dict[ApiKey, tuple[Any, Any, str]] = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: (
        InitializeShareGroupStateRequest,
        InitializeShareGroupStateResponse,
        "InitializeStateData",
    ),
    ApiKey.READ_SHARE_GROUP_STATE: (
        ReadShareGroupStateRequest,
        ReadShareGroupStateResponse,
        "ReadStateData",
    ),
    ApiKey.WRITE_SHARE_GROUP_STATE: (
        WriteShareGroupStateRequest,
        WriteShareGroupStateResponse,
        "WriteStateData",
    ),
    ApiKey.DELETE_SHARE_GROUP_STATE: (
        DeleteShareGroupStateRequest,
        DeleteShareGroupStateResponse,
        "DeleteStateData",
    ),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: (
        ReadShareGroupStateSummaryRequest,
        ReadShareGroupStateSummaryResponse,
        "ReadStateSummaryData",
    ),
}
VERSIONS = [
    pytest.param(key, version, id=f"{key.name.lower()}-v{version}")
    for key, handler in BY_KEY.items()
    for version in range(handler.min_version, handler.max_version + 1)
]


class Coordinator:
    """Notes each call; it is answered when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, SharePlace, Any]] = []
        self.answers: list[Deferred[Any]] = []

    def _call(self, name: str, key: SharePlace, argument: Any) -> Deferred[Any]:
        self.calls.append((name, key, argument))
        self.answers.append(Deferred())
        return self.answers[-1]

    def initialize(self, key: SharePlace, state_epoch: int, start_offset: int) -> Deferred[Any]:
        return self._call("initialize", key, (state_epoch, start_offset))

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[Any]:
        return self._call("read", key, leader_epoch)

    def write(self, key: SharePlace, write: StateWrite) -> Deferred[Any]:
        return self._call("write", key, write)

    def delete(self, key: SharePlace) -> Deferred[Any]:
        return self._call("delete", key, None)

    def summarize(self, key: SharePlace) -> Deferred[Any]:
        return self._call("summarize", key, None)


class Request:
    """One request of three partitions on its way. fields: of each partition."""

    def __init__(self, key: ApiKey, version: int, *, group_id: str = "g", **fields: Any) -> None:
        self.handler, self.version = BY_KEY[key], version
        kind, self.response_kind, topic_name = KINDS[key]
        message = kind(
            group_id=group_id,
            topics=[
                getattr(kind, topic_name)(
                    topic_id=topic_id, partitions=[kind.PartitionData(partition=index, **fields)]
                )
                for topic_id, index in PLACES
            ],
        )
        received, _ = decode(kind, encode(message, version), version)
        self.coordinator = Coordinator()
        self.sliced = Sliced(share_coordinator=self.coordinator)
        context = RequestContext(key, version)
        self.outcome = self.handler.handle(self.sliced.services, context, received)

    def response(self) -> Any:
        response = self.sliced.answer(self.outcome)
        decoded, _ = decode(self.response_kind, encode(response, self.version), self.version)
        return decoded

    def results(self, *answers: Any) -> list[Any]:
        """The results of the partitions, once each call is answered."""
        for deferred, answer in zip(self.coordinator.answers, answers, strict=True):
            deferred.resolve(answer)
        results = self.response().results
        assert [topic.topic_id for topic in results] == [FIRST, SECOND]
        assert [
            (topic.topic_id, found.partition) for topic in results for found in topic.partitions
        ] == RESULT_PLACES
        return [found for topic in results for found in topic.partitions]

    def calls(self) -> list[tuple[str, Any]]:
        """Name and argument; the partitions are those of the request, in its order."""
        assert [key for _, key, _ in self.coordinator.calls] == [
            SharePlace("g", place) for place in PLACES
        ]
        return [(name, argument) for name, _, argument in self.coordinator.calls]


def test_each_api_has_its_handler() -> None:
    assert BY_KEY.keys() == KINDS.keys()


@pytest.mark.parametrize(
    ("key", "version", "fields", "call"),
    [
        pytest.param(
            ApiKey.INITIALIZE_SHARE_GROUP_STATE,
            0,
            {"state_epoch": 3, "start_offset": 70},
            ("initialize", (3, 70)),
            id="initialize",
        ),
        pytest.param(
            ApiKey.WRITE_SHARE_GROUP_STATE,
            0,
            {"state_epoch": 3, "leader_epoch": 2, "start_offset": 10},
            ("write", StateWrite(3, 2, 10, UNKNOWN_COUNT, [])),
            id="write",
        ),
        pytest.param(ApiKey.DELETE_SHARE_GROUP_STATE, 0, {}, ("delete", None), id="delete"),
    ],
)
def test_changes_have_an_error_for_each_partition(
    key: ApiKey, version: int, fields: dict[str, Any], call: tuple[str, Any]
) -> None:
    request = Request(key, version, **fields)
    assert request.calls() == [call] * 3
    results = request.results(ErrorCode.NONE, REFUSED, ErrorCode.NOT_COORDINATOR)
    assert [(found.error_code, found.error_message) for found in results] == [
        (ErrorCode.NONE, None),
        (ErrorCode.NOT_COORDINATOR, "NOT_COORDINATOR"),
        (REFUSED, REFUSED.name),
    ]


def test_a_write_has_its_batches_and_from_v1_on_a_count() -> None:
    kind = WriteShareGroupStateRequest.StateBatch
    for version, count in ((0, UNKNOWN_COUNT), (1, 5)):
        request = Request(
            ApiKey.WRITE_SHARE_GROUP_STATE,
            version,
            state_epoch=3,
            leader_epoch=2,
            start_offset=10,
            delivery_complete_count=5,
            state_batches=[
                kind(
                    first_offset=batch.first_offset,
                    last_offset=batch.last_offset,
                    delivery_state=batch.delivery_state,
                    delivery_count=batch.delivery_count,
                )
                for batch in BATCHES
            ],
        )
        assert request.calls() == [("write", StateWrite(3, 2, 10, count, BATCHES))] * 3


def test_a_write_of_many_batches_is_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part in a step of its own; the partition's result is that of the first part refused."""
    monkeypatch.setattr(share_state, "BATCHES_PER_STEP", 2)
    kind = WriteShareGroupStateRequest.StateBatch
    offsets = range(20)
    batches = [kind(first_offset=offset, last_offset=offset) for offset in offsets]
    request = Request(ApiKey.WRITE_SHARE_GROUP_STATE, 1, state_epoch=3, state_batches=batches)
    written, most = len(request.coordinator.calls), 0
    assert request.sliced.turns.due
    while request.sliced.turns.due:
        request.sliced.turns.turn()
        most = max(most, len(request.coordinator.calls) - written)
        written = len(request.coordinator.calls)
    assert most < 10
    writes = [write for _, _, write in request.coordinator.calls]
    for part in (writes[:10], writes[10:20], writes[20:]):
        assert all(write[:4] == (3, 0, 0, UNKNOWN_COUNT) for write in part)
        assert [list(write.batches) for write in part] == [
            [StateBatch(offset, offset, 0, 0), StateBatch(offset + 1, offset + 1, 0, 0)]
            for offset in offsets[::2]
        ]
    for number, answer in enumerate(request.coordinator.answers):
        answer.resolve(REFUSED if number in (13, 14) else ErrorCode.NONE)
    response = request.sliced.answer(request.outcome)
    codes = [result.error_code for topic in response.results for result in topic.partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, REFUSED]


def test_a_read_state() -> None:
    request = Request(ApiKey.READ_SHARE_GROUP_STATE, 0, leader_epoch=6)
    assert request.calls() == [("read", 6)] * 3
    state = StateFound(ErrorCode.NONE, 3, 10, BATCHES)
    read, empty, refused = request.results(state, StateFound(REFUSED), StateFound(ErrorCode.NONE))
    kind = ReadShareGroupStateResponse
    response = kind(results=[kind.ReadStateResult(partitions=[read])])
    received, _ = decode(kind, encode(response, 0), 0)
    assert received.results[0].partitions[0] == kind.PartitionResult(
        partition=0,
        state_epoch=3,
        start_offset=10,
        state_batches=[
            kind.StateBatch(
                first_offset=batch.first_offset,
                last_offset=batch.last_offset,
                delivery_state=batch.delivery_state,
                delivery_count=batch.delivery_count,
            )
            for batch in BATCHES
        ],
    )
    assert empty == kind.PartitionResult(partition=1, start_offset=UNINITIALIZED)
    assert refused == kind.PartitionResult(
        partition=4, error_code=REFUSED, error_message=REFUSED.name
    )


@pytest.mark.parametrize(("version", "count"), [(0, UNKNOWN_COUNT), (1, 5)])
def test_a_summary(version: int, count: int) -> None:
    request = Request(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, version, leader_epoch=6)
    assert request.calls() == [("summarize", None)] * 3
    known, empty, refused = request.results(
        StateSummary(ErrorCode.NONE, 10, 2, 5, 3),
        StateSummary(REFUSED, 10, 2, 5, 3),
        StateSummary(ErrorCode.NONE),
    )
    kind = ReadShareGroupStateSummaryResponse
    assert known == kind.PartitionResult(
        partition=0, state_epoch=3, leader_epoch=2, start_offset=10, delivery_complete_count=count
    )
    assert empty == kind.PartitionResult(partition=1, start_offset=UNINITIALIZED)
    assert refused == kind.PartitionResult(
        partition=4, error_code=REFUSED, error_message=REFUSED.name
    )


ANSWERS: dict[ApiKey, Callable[[ErrorCode], Any]] = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: lambda error: error,
    ApiKey.READ_SHARE_GROUP_STATE: StateFound,
    ApiKey.WRITE_SHARE_GROUP_STATE: lambda error: error,
    ApiKey.DELETE_SHARE_GROUP_STATE: lambda error: error,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: StateSummary,
}


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_the_response_waits_for_every_partition(key: ApiKey, version: int) -> None:
    request = Request(key, version)
    while request.sliced.turns.due:
        request.sliced.turns.turn()
    first, *others = request.coordinator.answers
    for deferred in others:
        deferred.resolve(ANSWERS[key](ErrorCode.NONE))
    assert not request.outcome.done
    first.resolve(ANSWERS[key](REFUSED))
    while request.sliced.turns.due:
        request.sliced.turns.turn()
    errors = [
        found.error_code for topic in request.response().results for found in topic.partitions
    ]
    assert errors == [REFUSED, 0, 0]


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_a_failure_of_one_partition_is_that_of_the_request(key: ApiKey, version: int) -> None:
    request = Request(key, version)
    request.coordinator.answers[1].fail(KafkaError(ErrorCode.NOT_COORDINATOR))
    while request.sliced.turns.due:
        request.sliced.turns.turn()
    assert request.outcome.done and request.outcome.error is not None
    assert request.outcome.error.code is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_a_request_without_a_group_has_no_results(key: ApiKey, version: int) -> None:
    assert Request(key, version, group_id="").response().results == []


@pytest.mark.parametrize("key", KINDS)
def test_an_error_of_the_whole_request_has_no_results(key: ApiKey) -> None:
    handler = BY_KEY[key]
    request = KINDS[key][0](group_id="g")
    response: Any = handler.error_response(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "")
    assert isinstance(response, KINDS[key][1]) and response.results == []
