"""Requests for the active controller, on the simulated network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

from kbroker.broker.node_to_controller import (
    BACKOFF_MAX_MS,
    BACKOFF_MS,
    FORWARDING,
    HEARTBEAT,
    MAX_CODES,
    MAX_IN_FLIGHT,
    MAX_PENDING_REQUESTS,
    POLL_MS,
    ActiveController,
    NodeToController,
)
from kbroker.client.channel.channel import Channel
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey, valid_versions
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kbroker.protocol.messages.cluster import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from tests.client.channel.peers import HANG_UP, SILENT, SimWorld, channel_of

TIMEOUT_MS = 500
LONG_MS = 8_000
KEY = ApiKey.BROKER_HEARTBEAT
ANSWER = BrokerHeartbeatResponse(is_caught_up=True)
REFUSAL = BrokerHeartbeatResponse(error_code=ErrorCode.NOT_CONTROLLER)


class World:
    """Two controllers, of which a node believes one to lead."""

    def __init__(self) -> None:
        self.world = SimWorld()
        self.peers = {number: self.world.peer(number) for number in (1, 2)}
        for peer in self.peers.values():
            for key in (KEY, ApiKey.CREATE_TOPICS):
                peer.versions[int(key)] = valid_versions(key)
        self.epoch = 7
        self.leader_id = 1
        self.finds: list[int] = []
        self.opened = 0
        self.channel = NodeToController(
            self.open, self.find, self.world.timers, request_timeout_ms=TIMEOUT_MS
        )

    def open(self) -> Channel:
        self.opened += 1
        return channel_of(self.world)

    def find(self) -> ActiveController | None:
        self.finds.append(self.now_ms)
        if self.leader_id < 0:
            return None
        return ActiveController(self.epoch, self.world.address(self.leader_id))

    @property
    def now_ms(self) -> int:
        return self.world.timers.monotonic_ms()

    def elect(self, node_id: int) -> None:
        """The quorum has another leader."""
        self.epoch += 1
        self.leader_id = node_id

    def start(
        self, epoch: int = 0, *, retry_ms: int = LONG_MS, purpose: str = FORWARDING
    ) -> Deferred[BrokerHeartbeatResponse]:
        request = BrokerHeartbeatRequest(broker_epoch=epoch)
        return self.channel.send(
            request, BrokerHeartbeatResponse, retry_ms=retry_ms, purpose=purpose
        )

    def outcome(
        self, answer: Deferred[BrokerHeartbeatResponse]
    ) -> BrokerHeartbeatResponse | ErrorCode:
        self.world.until(lambda: answer.done)
        return answer.value if answer.error is None else answer.error.code

    def send(self, *, retry_ms: int = LONG_MS) -> BrokerHeartbeatResponse | ErrorCode:
        return self.outcome(self.start(retry_ms=retry_ms))

    def script(self, number: int, *answers: object) -> None:
        self.peers[number].script(KEY, *answers)

    def epochs(self, number: int) -> list[int]:
        """The broker epochs of the heartbeats that a controller got, in order."""
        requests = [request for _, _, request in self.peers[number].requests]
        return [each.broker_epoch for each in requests if isinstance(each, BrokerHeartbeatRequest)]


@pytest.fixture
def world() -> World:
    return World()


def test_requests_follow_the_leader(world: World) -> None:
    assert not world.opened
    world.script(1, ANSWER)
    world.script(2, ANSWER)
    assert world.send() == ANSWER
    world.elect(2)
    assert world.send() == ANSWER
    assert (len(world.epochs(1)), len(world.epochs(2)), world.opened) == (1, 1, 1)


def test_a_request_waits_for_a_leader(world: World) -> None:
    world.leader_id = -1
    answer = world.start()
    began_ms = world.now_ms
    world.world.heap.advance(3 * POLL_MS + 50)
    assert not answer.done
    assert [at - began_ms for at in world.finds] == [0, 100, 200, 300]
    world.elect(2)
    world.script(2, ANSWER)
    assert world.outcome(answer) == ANSWER


def test_a_new_leader_is_not_waited_for_until_the_next_poll(world: World) -> None:
    world.leader_id = -1
    answer = world.start()
    world.elect(2)
    world.script(2, ANSWER)
    world.channel.leader_changed()
    began_ms = world.now_ms
    assert world.outcome(answer) == ANSWER
    assert world.now_ms - began_ms < POLL_MS


def test_no_leader_for_too_long_fails_the_request(world: World) -> None:
    world.leader_id = -1
    began_ms = world.now_ms
    assert world.send(retry_ms=1_000) is ErrorCode.REQUEST_TIMED_OUT
    assert world.now_ms - began_ms == 1_000
    assert not world.opened


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(REFUSAL, id="not the controller"),
        pytest.param(HANG_UP, id="disconnected"),
        pytest.param(SILENT, id="no response"),
    ],
)
def test_a_request_is_sent_again(world: World, answer: object) -> None:
    world.script(1, answer, ANSWER)
    assert world.send() == ANSWER
    assert len(world.epochs(1)) == 2


def test_a_dead_controller_is_left_for_its_successor(world: World) -> None:
    world.world.stop(1)
    answer = world.start()
    world.world.heap.advance(700)
    assert not answer.done
    world.elect(2)
    world.script(2, ANSWER)
    world.channel.leader_changed()
    began_ms = world.now_ms
    assert world.outcome(answer) == ANSWER
    assert world.now_ms - began_ms < BACKOFF_MAX_MS / 4


def test_a_controller_that_hangs_is_left_for_its_successor(world: World) -> None:
    world.script(1, SILENT, SILENT)
    answers = [world.start(number) for number in range(2)]
    world.world.until(lambda: len(world.epochs(1)) == 2)
    world.elect(2)
    world.script(2, *[ANSWER] * 3)
    began_ms = world.now_ms
    answers.append(world.start(2))  # the election is noticed with this one
    assert [world.outcome(answer) for answer in answers] == [ANSWER] * 3
    assert world.now_ms - began_ms < TIMEOUT_MS / 4
    assert world.epochs(2) == [0, 1, 2]


def test_requests_beyond_the_bound_follow_those_that_expire_in_flight(world: World) -> None:
    world.leader_id = -1
    for number in range(MAX_IN_FLIGHT):
        world.start(number, retry_ms=300)
    last = world.start(MAX_IN_FLIGHT)
    world.elect(1)
    world.channel.leader_changed()
    world.world.heap.advance(250)
    assert len(world.epochs(1)) == MAX_IN_FLIGHT
    world.script(1, ANSWER)
    assert world.outcome(last) == ANSWER
    assert world.epochs(1)[MAX_IN_FLIGHT:] == [MAX_IN_FLIGHT]


def test_pauses_between_refusals_grow_up_to_a_bound(world: World) -> None:
    world.script(1, *[REFUSAL] * 8, ANSWER)
    answer = world.start()
    times: list[int] = []

    def seen() -> bool:
        if len(world.epochs(1)) > len(times):
            times.append(world.now_ms)
        return answer.done

    world.world.until(seen)
    assert answer.value == ANSWER
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert BACKOFF_MS <= pauses[0] < 2 * BACKOFF_MS
    assert pauses[:5] == sorted(pauses[:5])
    assert len(pauses[5:]) == 3
    assert all(BACKOFF_MAX_MS <= pause < BACKOFF_MAX_MS + BACKOFF_MS for pause in pauses[5:])


def test_order_is_kept_when_requests_are_sent_again(world: World) -> None:
    world.script(1, ANSWER, REFUSAL)  # the requests behind the refused one are not answered
    answers = [world.start(number) for number in range(5)]
    world.world.until(lambda: answers[0].done)
    world.elect(2)
    world.script(2, *[ANSWER] * 4)
    assert [world.outcome(answer) for answer in answers] == [ANSWER] * 5
    assert world.epochs(1)[0] == 0
    assert world.epochs(2) == [1, 2, 3, 4]


def test_a_refusal_in_one_item_of_a_response_counts(world: World) -> None:
    results = [CreateTopicsResponse.CreatableTopicResult(name="a", error_code=code) for code in (
        ErrorCode.NONE, ErrorCode.NOT_CONTROLLER)]  # fmt: skip
    good = CreateTopicsResponse(topics=results[:1])
    world.peers[1].script(ApiKey.CREATE_TOPICS, CreateTopicsResponse(topics=results), good)
    answer = world.channel.send(CreateTopicsRequest(), CreateTopicsResponse)
    world.world.until(lambda: answer.done)
    assert answer.value.topics[0].error_code == ErrorCode.NONE
    assert len(world.peers[1].asked(ApiKey.CREATE_TOPICS)) == 2


class Counted(list[CreateTopicsResponse.CreatableTopicResult]):
    """Counts how many of its items are looked at."""

    looked_at = 0

    def __iter__(self) -> Iterator[CreateTopicsResponse.CreatableTopicResult]:
        for item in super().__iter__():
            self.looked_at += 1
            yield item


def large_answer(world: World, error: ErrorCode) -> tuple[Deferred[CreateTopicsResponse], Counted]:
    """A request whose answer, of very many items with that error, is here."""
    results = Counted(
        CreateTopicsResponse.CreatableTopicResult(name="t", error_code=error)
        for _ in range(100 * MAX_CODES)
    )
    held: Deferred[CreateTopicsResponse] = Deferred()
    channel = HeldChannel(held)
    requests = NodeToController(
        lambda: channel,  # type: ignore[arg-type, return-value]  # the part of it that is used here
        world.find,
        world.world.timers,
        request_timeout_ms=TIMEOUT_MS,
    )
    answer = requests.send(CreateTopicsRequest(), CreateTopicsResponse)
    held.resolve(CreateTopicsResponse(topics=results))
    return answer, results


class HeldChannel:
    """A channel with one answer."""

    def __init__(self, answer: Deferred[CreateTopicsResponse]) -> None:
        self._answer = answer

    def send(self, *_: object, **__: object) -> Deferred[CreateTopicsResponse]:
        return self._answer

    def backoff_ms(self, _: int) -> int:
        return 0

    def disconnect_purpose(self, *_: object) -> None:
        """Nothing waits behind it."""


def test_a_large_response_is_looked_through_in_part(world: World) -> None:
    answer, results = large_answer(world, ErrorCode.NONE)
    assert answer.done and answer.value.topics is results
    assert results.looked_at == MAX_CODES


def test_a_large_refusal_is_seen_at_once(world: World) -> None:
    answer, results = large_answer(world, ErrorCode.NOT_CONTROLLER)
    assert not answer.done and results.looked_at == 1


def test_other_errors_are_the_senders(world: World) -> None:
    stale = BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    world.script(1, stale)
    assert world.send() == stale
    deleted = world.channel.send(DeleteTopicsRequest(), DeleteTopicsResponse)
    world.world.until(lambda: deleted.done)
    assert deleted.error is not None
    assert deleted.error.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_purpose_has_a_connection_of_its_own(world: World) -> None:
    world.script(1, SILENT, ANSWER)
    slow = world.start(1)
    world.world.until(lambda: world.epochs(1))
    assert world.outcome(world.start(2, purpose=HEARTBEAT)) == ANSWER
    assert not slow.done


def test_requests_in_flight_and_pending_are_bounded(world: World) -> None:
    answers = [world.start(number) for number in range(MAX_PENDING_REQUESTS)]
    assert world.send() is ErrorCode.REQUEST_TIMED_OUT  # one too many, at once
    world.world.heap.advance(TIMEOUT_MS // 2)
    assert len(world.epochs(1)) == MAX_IN_FLIGHT
    world.script(1, *[ANSWER] * MAX_PENDING_REQUESTS)
    assert {_name(world.outcome(answer)) for answer in answers} == {"response"}
    assert world.epochs(1)[MAX_IN_FLIGHT:] == list(range(MAX_PENDING_REQUESTS))


def test_a_heartbeat_is_sent_however_many_clients_wait(world: World) -> None:
    """Else the controller fences a broker whose clients ask for more than it can do."""
    world.script(1, *[SILENT] * MAX_IN_FLIGHT, ANSWER)
    answers = [world.start(number) for number in range(MAX_PENDING_REQUESTS)]
    world.world.until(lambda: len(world.epochs(1)) == MAX_IN_FLIGHT)
    assert world.outcome(world.start(-9, purpose=HEARTBEAT)) == ANSWER
    assert not any(answer.done for answer in answers)


def test_very_many_requests_that_the_controller_cannot_read_fail_one_by_one(world: World) -> None:
    """Each failure makes room for the next request, which fails at once."""
    del world.peers[1].versions[int(KEY)]
    world.leader_id = -1
    answers = [world.start(number) for number in range(MAX_PENDING_REQUESTS)]
    world.elect(1)
    world.channel.leader_changed()
    assert {world.outcome(answer) for answer in answers} == {ErrorCode.UNSUPPORTED_VERSION}


def test_every_pending_request_fails_at_the_end(world: World) -> None:
    answers: Sequence[Deferred[BrokerHeartbeatResponse]] = [world.start()]
    world.world.until(lambda: world.epochs(1))
    world.elect(-1)
    answers = [*answers, world.start()]
    world.channel.close()
    answers = [*answers, world.start()]
    assert [world.outcome(answer) for answer in answers] == [ErrorCode.BROKER_NOT_AVAILABLE] * 3
    world.world.heap.advance(LONG_MS)
    assert len(world.epochs(1)) == 1


def _name(outcome: BrokerHeartbeatResponse | ErrorCode) -> str:
    return outcome.name if isinstance(outcome, ErrorCode) else "response"


def test_a_request_that_is_given_up_is_sent_no_more(world: World) -> None:
    world.leader_id = -1
    waiting, other = world.start(1), world.start(2)
    waiting.cancel()
    world.elect(2)
    world.script(2, ANSWER)
    assert world.outcome(other) == ANSWER
    assert world.epochs(2) == [2]
    world.world.heap.advance(LONG_MS)
    assert not waiting.done


def test_a_request_that_is_given_up_in_flight_is_not_sent_again(world: World) -> None:
    given_up, other = world.start(1), world.start(2)
    world.world.until(lambda: len(world.epochs(1)) == 2)
    given_up.cancel()
    world.world.stop(1)
    world.elect(2)
    world.script(2, ANSWER)
    assert world.outcome(other) == ANSWER
    assert world.epochs(2) == [2]
    assert not given_up.done


def test_what_the_active_controller_serves_is_known_from_its_connection(world: World) -> None:
    assert world.channel.controller_api_versions() is None
    world.script(1, ANSWER)
    world.send()
    versions = world.channel.controller_api_versions()
    assert versions is not None
    assert versions.range_of(KEY) == valid_versions(KEY)
    assert versions.range_of(ApiKey.DELETE_TOPICS) is None
    world.elect(2)
    assert world.channel.controller_api_versions() is None, "it has not been asked yet"
    world.leader_id = -1
    assert world.channel.controller_api_versions() is None


def test_a_refusal_of_one_purpose_repeats_no_request_of_another(world: World) -> None:
    """A controller that has just become active may have refused a heartbeat before it carried out
    a request that is still to be answered.
    """
    world.peers[1].script(ApiKey.CREATE_TOPICS, SILENT, HANG_UP)
    creation = world.channel.send(CreateTopicsRequest(), CreateTopicsResponse)
    world.world.until(lambda: world.peers[1].asked(ApiKey.CREATE_TOPICS))
    world.script(1, REFUSAL, ANSWER)
    assert world.outcome(world.start(purpose=HEARTBEAT)) == ANSWER
    world.world.heap.advance(TIMEOUT_MS // 4)
    assert not creation.done
    assert len(world.peers[1].asked(ApiKey.CREATE_TOPICS)) == 1
