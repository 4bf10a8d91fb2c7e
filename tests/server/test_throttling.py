"""Requests and responses charged to client quotas: who is muted, and what the client is told."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.metadata.image import QuotaEntity
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey, response_class
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.codecs.schema import Message, Request
from kbroker.protocol.errors import ErrorCode, MalformedRequest
from kbroker.protocol.framing import decode_response_header, encode_request_frame
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.coordinators.groups import HeartbeatRequest, HeartbeatResponse
from kbroker.protocol.messages.coordinators.share_groups import (
    ShareFetchRequest,
    ShareFetchResponse,
)
from kbroker.protocol.messages.coordinators.transactions import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.replication.time_slices import FairSlices, SlicedAnswer, SlicedSteps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.api_policy import NO_AUTHORISATION, ApiPolicy, Quota, Versions
from kbroker.server.dispatch import Dispatcher
from kbroker.server.handlers.records.fetch import limit_fetch
from kbroker.server.quotas.client_quotas import ClientQuotas
from kbroker.server.requests import Outcome, PendingResponse, RequestContext, WrittenResponse
from kbroker.server.services import Services
from kbroker.server.session import Session
from kbroker.server.throttling import ThrottlingDispatcher
from tests.sim.timers import SimTimers

USER = "User:alice"
ALICE: QuotaEntity = (("user", "alice"),)
SECOND_NS = 1_000_000_000
NOW_MS = 1_000_000
WARM_UP_S = 22
MEASURED_S = 143
"""Eleven windows of eleven seconds, after two."""


class Harness:
    """The handlers answer what the test sets; each takes `takes_ns` of the loop."""

    def __init__(self, **keys: float) -> None:
        self.timers = SimTimers()
        self.quotas = ClientQuotas()
        services = SimpleNamespace(node_id=1, quotas=self.quotas)
        self.outcome: Outcome = None
        self.begin: Callable[[], Outcome] | None = None
        self.requests: list[Any] = []
        self.withdrawn: list[Message] = []
        self.takes_ns = 0
        self.now_ns = 0
        handlers = [
            self.handler(ApiKey.PRODUCE, Quota.PRODUCE, 12),
            self.handler(ApiKey.FETCH, Quota.FETCH, 17),
            self.handler(ApiKey.SHARE_FETCH, Quota.FETCH, 1),
            self.handler(ApiKey.HEARTBEAT, Quota.REQUEST, 4),
            self.handler(ApiKey.CREATE_TOPICS, Quota.CONTROLLER_MUTATION, 7),
            self.handler(ApiKey.WRITE_TXN_MARKERS, Quota.EXEMPT, 1),
        ]
        self.inner = Dispatcher(handlers, cast(Services, services))
        self.inner.limit_responses(to_quotas=True)
        self.dispatcher = ThrottlingDispatcher(
            self.inner, self.quotas, self.timers, clock=lambda: self.now_ns
        )
        self.muted: list[int] = []
        self.session = Session("c", principal=USER, mute=self.muted.append)
        self.quotas.change({ALICE: keys})

    def handler(self, api_key: ApiKey, quota: Quota, version: int) -> ApiHandler[Services]:
        policy = ApiPolicy(Versions(0, version), NO_AUTHORISATION, quota=quota)
        is_fetch = api_key is ApiKey.FETCH
        return ApiHandler(
            api_key,
            self.handle,
            lambda request, code, message: HeartbeatResponse(error_code=code),
            policy,
            limit=limit_fetch if is_fetch else None,
            withdraw=self.withdraw if is_fetch else None,
        )

    def handle(self, services: Services, context: RequestContext, request: Any) -> Outcome:
        self.requests.append(request)
        self.now_ns += self.takes_ns
        return self.outcome if self.begin is None else self.begin()

    def withdraw(self, services: Services, response: Message) -> FetchResponse:
        self.withdrawn.append(response)
        return FetchResponse(session_id=9)

    def dispatch(
        self, request: Request, version: int, client_id: str = "app"
    ) -> PendingResponse | None:
        parts = encode_request_frame(request, version, 7, client_id)
        frame = bytearray(b"".join(cast(list[bytes], parts))[4:])
        return self.dispatcher.dispatch(self.session, memoryview(frame), NOW_MS)

    def answer(self, request: Request, version: int, outcome: Message) -> Any:
        """The response as it leaves."""
        self.outcome = outcome
        pending = self.dispatch(request, version)
        assert pending is not None
        return self.rendered(pending, version)

    def rendered(self, pending: PendingResponse, version: int) -> Any:
        raw = b"".join(cast(list[bytes], self.dispatcher.render(pending)))[4:]
        _, position = decode_response_header(raw, ApiKey(pending.api_key), version)
        return decode(response_class(ApiKey(pending.api_key)), raw, version, position)[0]


def produce(size: int) -> ProduceRequest:
    data = ProduceRequest.PartitionProduceData(index=0, records=bytes(size))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    return ProduceRequest(acks=1, topic_data=[topic])


def fetched(size: int, **fields: Any) -> FetchResponse:
    data = FetchResponse.PartitionData(partition_index=0, records=bytes(size))
    topic = FetchResponse.FetchableTopicResponse(topic_id=bytes(16), partitions=[data])
    return FetchResponse(session_id=5, responses=[topic], **fields)


def measured_percent(harness: Harness) -> float:
    """What is charged to alice, of the loop's time."""
    quota = harness.quotas.request
    applied = quota.applied("alice", "app")
    assert applied is not None
    return quota._counter(applied.shared_by).measure(harness.timers.monotonic_ms())


def test_a_producer_above_its_rate_is_muted_and_told() -> None:
    harness = Harness(producer_byte_rate=1000.0)
    assert harness.answer(produce(5000), 12, ProduceResponse()).throttle_time_ms == 0
    assert not harness.muted
    response = harness.answer(produce(10_000), 12, ProduceResponse())
    (muted_ms,) = harness.muted
    assert 5000 < muted_ms < 6000
    assert response.throttle_time_ms == muted_ms


def test_a_producer_without_acknowledgements_is_muted_too() -> None:
    harness = Harness(producer_byte_rate=1000.0, request_percentage=0.001)
    harness.takes_ns = SECOND_NS
    assert harness.dispatch(produce(20_000), 12) is None
    (muted_ms,) = harness.muted
    assert muted_ms > 1000, "the request quota has no part in it"


def test_a_client_without_a_quota_is_not_charged() -> None:
    harness = Harness(producer_byte_rate=1.0)
    harness.session.principal = "User:bob"
    assert harness.answer(produce(20_000), 12, ProduceResponse()).throttle_time_ms == 0
    assert not harness.muted


def test_the_client_id_of_the_request_counts() -> None:
    harness = Harness()
    harness.quotas.change({(("client-id", "app"),): {"producer_byte_rate": 1.0}})
    harness.outcome = ProduceResponse()
    harness.dispatch(produce(20_000), 12, client_id="other")
    assert not harness.muted
    harness.dispatch(produce(20_000), 12)
    assert harness.muted


def test_a_consumer_above_its_rate_gets_an_empty_response_at_no_charge() -> None:
    harness = Harness(consumer_byte_rate=1000.0)
    response = harness.answer(FetchRequest(), 17, fetched(9000))
    assert len(response.responses[0].partitions[0].records) == 9000
    assert not harness.muted
    over = fetched(3000)
    response = harness.answer(FetchRequest(), 17, over)
    assert harness.withdrawn == [over]
    assert (response.session_id, response.responses) == (9, [])
    assert harness.muted == [response.throttle_time_ms]
    response = harness.answer(FetchRequest(), 17, fetched(500))
    assert response.throttle_time_ms == 0, "what was withdrawn does not count"


def test_a_batch_larger_than_a_window_admits_reaches_the_consumer() -> None:
    harness = Harness(consumer_byte_rate=10.0)
    response = harness.answer(FetchRequest(), 17, fetched(5000))
    assert len(response.responses[0].partitions[0].records) == 5000
    assert harness.muted == [response.throttle_time_ms]
    assert response.throttle_time_ms > 400_000
    assert harness.answer(FetchRequest(), 17, fetched(5000)).responses == []


def test_a_consumer_asks_for_no_more_than_its_window_admits() -> None:
    harness = Harness(consumer_byte_rate=1000.0)
    harness.answer(FetchRequest(max_bytes=1 << 20, min_bytes=1 << 16), 17, fetched(1))
    (request,) = harness.requests
    assert (request.max_bytes, request.min_bytes) == (10_000, 10_000)


@pytest.mark.parametrize("version", [12, 17])
def test_followers_have_no_quota(version: int) -> None:
    harness = Harness(consumer_byte_rate=1.0, request_percentage=0.001)
    harness.takes_ns = SECOND_NS
    request = FetchRequest(max_bytes=1 << 20)
    if version >= 15:
        request.replica_state = FetchRequest.ReplicaState(replica_id=2)
    else:
        request.replica_id = 2
    response = harness.answer(request, version, fetched(50_000))
    assert len(response.responses[0].partitions[0].records) == 50_000
    assert harness.requests[0].max_bytes == 1 << 20
    assert not harness.muted


def test_the_records_of_a_share_fetch_are_sent_since_they_are_acquired() -> None:
    harness = Harness(consumer_byte_rate=10.0)
    data = ShareFetchResponse.PartitionData(records=bytes(5000))
    topic = ShareFetchResponse.ShareFetchableTopicResponse(partitions=[data])
    response = harness.answer(ShareFetchRequest(), 1, ShareFetchResponse(responses=[topic]))
    assert len(response.responses[0].partitions[0].records) == 5000
    assert harness.muted == [response.throttle_time_ms]


def test_request_time_is_charged_and_bounded() -> None:
    harness = Harness(request_percentage=1.0)
    harness.takes_ns = SECOND_NS // 20  # half of what a second of the window admits
    assert harness.answer(HeartbeatRequest(), 4, HeartbeatResponse()).throttle_time_ms == 0
    harness.takes_ns = SECOND_NS
    assert harness.answer(HeartbeatRequest(), 4, HeartbeatResponse()).throttle_time_ms == 1000
    assert harness.muted == [1000]


def test_what_a_request_takes_in_later_slices_is_charged_with_its_response() -> None:
    """A request that describes everything takes seconds, of which the first slice is 5 ms."""
    harness = Harness(request_percentage=1.0)
    turns = harness.timers
    slices = FairSlices(turns, seconds=0.005, clock=lambda: harness.now_ns / SECOND_NS)
    answer: SlicedAnswer[Message] = SlicedAnswer()

    def steps() -> SlicedSteps:
        for _ in range(50):
            harness.now_ns += SECOND_NS // 100
            yield None

    def begin() -> Outcome:
        answer.work = slices.begin(steps(), lambda failure: answer.resolve(HeartbeatResponse()))
        return answer

    harness.begin = begin
    pending = harness.dispatch(HeartbeatRequest(), 4)
    assert pending is not None and not answer.done
    assert not harness.muted, "10 ms of the 100 that the window admits"
    turns.advance(1)
    assert answer.done
    pending.message = answer.value
    response = harness.rendered(pending, 4)
    assert response.throttle_time_ms == 1000
    assert harness.muted == [1000]
    assert measured_percent(harness) == pytest.approx(5.0, rel=1e-3), "half a second of ten"


def test_a_large_request_is_charged_from_when_it_begins() -> None:
    """One that waits for others to end has no slice yet when it is dispatched."""
    harness = Harness(request_percentage=1.0)
    answer: SlicedAnswer[Message] = SlicedAnswer()
    harness.begin = lambda: answer
    pending = harness.dispatch(HeartbeatRequest(), 4)
    assert pending is not None
    slices = FairSlices(harness.timers)

    def steps() -> SlicedSteps:
        harness.now_ns += SECOND_NS
        yield None

    answer.work = slices.begin(steps(), lambda failure: None, answer.meter)
    pending.message = HeartbeatResponse()
    assert harness.rendered(pending, 4).throttle_time_ms == 1000
    assert measured_percent(harness) == pytest.approx(10.0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("percent", [1.0, 4.0, 20.0])
def test_a_client_is_held_to_its_percentage_for_minutes(percent: float, seed: int) -> None:
    """It sends its next request as soon as it may. Of 200 requests one takes 30 ms, as on a machine
    whose processors others use too; another client is not held.
    """
    harness, random = Harness(request_percentage=percent), Random(seed)
    started_ms, used_ns, sent = harness.timers.time_ms, 0, 0
    while harness.now_ns < MEASURED_S * SECOND_NS:
        is_slow = random.random() < 0.005
        harness.takes_ns = 30_000_000 if is_slow else int(random.lognormvariate(13.5, 0.5))
        harness.muted.clear()
        harness.answer(HeartbeatRequest(), 4, HeartbeatResponse())
        if harness.now_ns > WARM_UP_S * SECOND_NS:
            used_ns += harness.takes_ns
        sent += 1
        harness.now_ns += 1_000_000 * (1 + max(harness.muted, default=0))
        harness.timers.time_ms = started_ms + harness.now_ns // 1_000_000
        harness.session.principal = "User:bob"
        harness.muted.clear()
        harness.answer(HeartbeatRequest(), 4, HeartbeatResponse())
        assert not harness.muted
        harness.session.principal = USER
    held = 100 * used_ns / ((MEASURED_S - WARM_UP_S) * SECOND_NS)
    assert held == pytest.approx(percent, rel=0.1)
    assert sent > 1000


def test_a_response_that_a_handler_keeps_is_not_changed() -> None:
    harness = Harness(request_percentage=0.1)
    harness.takes_ns = SECOND_NS
    kept = HeartbeatResponse()
    assert harness.answer(HeartbeatRequest(), 4, kept).throttle_time_ms == 1000
    assert kept.throttle_time_ms == 0


def test_the_throttle_time_of_controller_mutations_mutes() -> None:
    """It is the handler's, at the time of the response; the larger of two is told."""
    harness = Harness(controller_mutation_rate=1.0, request_percentage=0.1)
    response = harness.answer(CreateTopicsRequest(), 7, CreateTopicsResponse(throttle_time_ms=5000))
    assert response.throttle_time_ms == 5000
    assert harness.muted == [5000]
    harness.takes_ns = SECOND_NS
    response = harness.answer(CreateTopicsRequest(), 7, CreateTopicsResponse(throttle_time_ms=50))
    assert response.throttle_time_ms == 1000


def test_the_throttle_time_in_an_encoded_response_mutes_too() -> None:
    """As the active controller on another node wrote it."""
    harness = Harness(controller_mutation_rate=1.0)
    for version, expected in ((1, []), (7, [5000])):
        encoded = encode(CreateTopicsResponse(throttle_time_ms=5000), version)
        written = cast(Message, WrittenResponse([memoryview(encoded)]))
        response = harness.answer(CreateTopicsRequest(), version, written)
        assert isinstance(response, CreateTopicsResponse)
        assert harness.muted == expected


def test_apis_between_brokers_are_exempt() -> None:
    harness = Harness(request_percentage=0.001)
    harness.takes_ns = SECOND_NS
    harness.answer(WriteTxnMarkersRequest(), 1, WriteTxnMarkersResponse())
    assert not harness.muted


def test_a_response_that_comes_later_has_the_throttle_time_of_its_request() -> None:
    harness = Harness(producer_byte_rate=1000.0)
    later: Deferred[Message] = Deferred()
    harness.outcome = later
    pending = harness.dispatch(produce(20_000), 12)
    assert pending is not None
    (muted_ms,) = harness.muted
    pending.message = ProduceResponse()
    assert harness.rendered(pending, 12).throttle_time_ms == muted_ms


def test_an_error_response_has_the_throttle_time_too() -> None:
    harness = Harness(request_percentage=0.001)
    harness.takes_ns = SECOND_NS
    error = HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR)
    assert harness.answer(HeartbeatRequest(), 4, error).throttle_time_ms == 1000


def test_requests_that_began_without_quotas_are_answered() -> None:
    harness = Harness()
    pending = PendingResponse(int(ApiKey.HEARTBEAT), 4, 7)
    pending.message = HeartbeatResponse()
    assert harness.rendered(pending, 4).throttle_time_ms == 0


def test_bytes_that_are_no_request_are_the_inner_dispatchers() -> None:
    harness = Harness(producer_byte_rate=1.0)
    with pytest.raises(MalformedRequest):
        harness.dispatcher.dispatch(harness.session, memoryview(bytearray(3)), NOW_MS)
    with pytest.raises(MalformedRequest):
        harness.dispatcher.dispatch(harness.session, memoryview(bytearray(b"\x7f" * 20)), NOW_MS)


def test_without_quotas_no_check_is_made() -> None:
    harness = Harness()
    harness.inner.limit_responses(to_quotas=False)
    assert all(route.checks == route.base_checks for route in harness.inner._routes.values())
