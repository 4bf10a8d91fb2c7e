"""The channel, in two worlds: each test runs on sockets and on the simulated network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.client.channel.channel import MAX_REQUESTS_PER_CONNECTION, Channel
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from tests.client.channel.peers import (
    CUT_SHORT,
    HANG_UP,
    SILENT,
    Peer,
    SimWorld,
    World,
    channel_of,
    worlds,
)
from tests.sim.network import Conditions

LONG_MS = 8_000


@pytest.fixture(params=["simulated", "sockets"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    yield from worlds(request.param)


class Caller:
    """Sends Metadata requests and keeps their outcomes."""

    def __init__(self, world: World, channel: Channel) -> None:
        self.world = world
        self.channel = channel

    def send(
        self, node_id: int, name: str = "x", *, purpose: str = "tests", timeout_ms: int = LONG_MS
    ) -> Deferred[MetadataResponse]:
        return self.channel.send(
            self.world.address(node_id),
            purpose,
            MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)]),
            MetadataResponse,
            timeout_ms=timeout_ms,
        )

    def outcome(self, answer: Deferred[MetadataResponse]) -> str | ErrorCode | None:
        """The name in the response, or the code of the failure, once there is one."""
        self.world.until(lambda: answer.done)
        return answer.value.cluster_id if answer.error is None else answer.error.code

    def reconnected(self, node_id: int) -> str | ErrorCode | None:
        """The outcome of a request after the back-off."""
        self.world.until(lambda: not self.channel.backoff_ms(node_id))
        return self.outcome(self.send(node_id, "again"))


@pytest.fixture
def caller(world: World) -> Iterator[Caller]:
    caller = Caller(world, channel_of(world))
    yield caller
    caller.channel.close()


@pytest.fixture
def patient(world: World) -> Iterator[Caller]:
    """Its back-offs are still there when a busy machine comes to look at them."""
    caller = Caller(world, channel_of(world, backoff_ms=150, backoff_max_ms=750))
    yield caller
    caller.channel.close()


# -- requests and responses ------------------------------------------------------------------------


def test_the_versions_are_learnt_once_and_the_highest_both_have_is_used(
    world: World, caller: Caller
) -> None:
    peer = world.peer(1)
    peer.versions[ApiKey.METADATA] = (0, 9)
    assert caller.outcome(caller.send(1, "a")) == "a"
    assert caller.outcome(caller.send(1, "b")) == "b"
    assert peer.asked(ApiKey.METADATA) == [(0, 9), (0, 9)]
    assert len(peer.asked(ApiKey.API_VERSIONS)) == 1


@pytest.mark.parametrize("highest", [0, 2, 3])
def test_an_older_peer_is_asked_for_its_versions_again(
    world: World, caller: Caller, highest: int
) -> None:
    peer = world.peer(1)
    peer.versions[ApiKey.API_VERSIONS] = (0, highest)
    assert caller.outcome(caller.send(1, "a")) == "a"
    assert peer.asked(ApiKey.API_VERSIONS) == [(0, highest)]


@pytest.mark.parametrize("theirs", [(0, 2), (90, 99), None])
def test_a_request_without_a_version_in_common_fails_and_the_connection_stays(
    world: World, caller: Caller, theirs: tuple[int, int] | None
) -> None:
    peer = world.peer(1)
    if theirs is None:
        del peer.versions[ApiKey.FETCH]
    else:
        peer.versions[ApiKey.FETCH] = theirs
    answer = caller.channel.send(
        world.address(1), "tests", FetchRequest(topics=[]), FetchResponse, timeout_ms=LONG_MS
    )
    world.until(lambda: answer.done)
    assert answer.error is not None and answer.error.code is ErrorCode.UNSUPPORTED_VERSION
    assert caller.outcome(caller.send(1, "a")) == "a" and len(peer.connections) == 1


def test_many_requests_are_under_way_at_once(world: World, caller: Caller) -> None:
    world.peer(1)
    answers = [caller.send(1, f"name-{number}") for number in range(50)]
    assert [caller.outcome(answer) for answer in answers] == [f"name-{n}" for n in range(50)]


def test_responses_may_arrive_byte_by_byte(world: World, caller: Caller) -> None:
    world.peer(1).is_trickling = True
    assert caller.outcome(caller.send(1, "a")) == "a"


def test_each_node_and_purpose_has_its_own_connection(world: World, caller: Caller) -> None:
    one, two = world.peer(1), world.peer(2)
    one.script(ApiKey.METADATA, SILENT)
    waiting = caller.send(1, purpose="fetch")
    world.until(lambda: one.asked(ApiKey.METADATA))
    assert caller.outcome(caller.send(1, "a", purpose="vote")) == "a"
    assert caller.outcome(caller.send(2, "b", purpose="vote")) == "b"
    assert not waiting.done
    assert (len(one.connections), len(two.connections)) == (2, 1)


def test_the_wrong_response_type_is_a_mistake_of_the_caller(world: World, caller: Caller) -> None:
    with pytest.raises(TypeError):
        caller.channel.send(
            world.address(1), "tests", MetadataRequest(), ProduceResponse, timeout_ms=1
        )
    assert ProduceRequest.API_KEY == ProduceResponse.API_KEY


# -- failures --------------------------------------------------------------------------------------


def test_a_peer_that_never_answers_loses_its_connection(world: World, patient: Caller) -> None:
    peer = world.peer(1)
    # On a busy machine 60 ms may pass before a new connection can take the request.
    assert patient.outcome(patient.send(1, "first")) == "first"
    peer.script(ApiKey.METADATA, SILENT)
    late = patient.send(1, timeout_ms=60)
    world.until(lambda: len(peer.asked(ApiKey.METADATA)) == 2)
    peer.script(ApiKey.METADATA, SILENT)
    behind = patient.send(1)
    assert patient.outcome(late) is ErrorCode.REQUEST_TIMED_OUT
    assert patient.outcome(behind) is ErrorCode.NETWORK_EXCEPTION
    assert patient.channel.backoff_ms(1) > 0
    assert patient.outcome(patient.send(1)) is ErrorCode.NETWORK_EXCEPTION
    assert patient.reconnected(1) == "again" and len(peer.connections) == 2
    world.until(lambda: peer.connections[0].lost is not None)


def test_a_peer_that_accepts_and_says_nothing(world: World) -> None:
    peer = world.peer(1)
    peer.script(ApiKey.API_VERSIONS, SILENT)
    caller = Caller(world, channel_of(world, connect_timeout_ms=60))
    early, late = caller.send(1, timeout_ms=10), caller.send(1)
    assert caller.outcome(early) is ErrorCode.REQUEST_TIMED_OUT
    assert not late.done, "a request that was not sent yet does not end the connection"
    assert caller.outcome(late) is ErrorCode.NETWORK_EXCEPTION
    assert caller.reconnected(1) == "again"
    caller.channel.close()


HOSTILE = [
    pytest.param(b"\x7f\xff\xff\xff", id="a response of 2 GB"),
    pytest.param(b"\xff\xff\xff\xff", id="a negative length"),
    pytest.param(b"\x00\x00\x00\x03\x00\x00\x00", id="a length without a correlation id"),
    pytest.param(b"\x00\x00\x00\x04\x00\x00\x03\xe7", id="an unknown correlation id"),
    pytest.param(b"\x00\x00\x00\x04\x00\x00\x00\x01", id="a response cut short"),
    pytest.param(b"HTTP/1.1 400 Bad Request\r\n", id="not a Kafka broker"),
    pytest.param(HANG_UP, id="the connection is closed"),
    pytest.param(CUT_SHORT, id="the connection is closed within a response"),
]


@pytest.mark.parametrize("api_key", [ApiKey.METADATA, ApiKey.API_VERSIONS])
@pytest.mark.parametrize("answer", HOSTILE)
def test_a_hostile_answer_fails_what_is_in_flight_and_a_later_connection_works(
    world: World, caller: Caller, answer: object, api_key: ApiKey
) -> None:
    peer = world.peer(1)
    peer.script(api_key, answer)
    answers = [caller.send(1), caller.send(1)]
    outcomes = {caller.outcome(each) for each in answers}
    assert outcomes == {ErrorCode.NETWORK_EXCEPTION}
    assert caller.reconnected(1) == "again"


def test_a_peer_that_refuses_to_tell_its_versions(world: World, caller: Caller) -> None:
    peer = world.peer(1)
    peer.script(ApiKey.API_VERSIONS, peer.api_versions(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert caller.outcome(caller.send(1)) is ErrorCode.NETWORK_EXCEPTION
    assert caller.reconnected(1) == "again"


def test_a_peer_that_is_stopped_and_comes_back(world: World, caller: Caller) -> None:
    peer = world.peer(1)
    peer.script(ApiKey.METADATA, SILENT)
    waiting = caller.send(1)
    world.until(lambda: peer.asked(ApiKey.METADATA))
    world.stop(1)
    assert caller.outcome(waiting) is ErrorCode.NETWORK_EXCEPTION
    assert caller.reconnected(1) is ErrorCode.NETWORK_EXCEPTION
    world.peer(1)
    assert caller.reconnected(1) == "again"


def test_the_back_off_of_a_node_grows_up_to_its_bound_and_leaves_others_alone(
    world: World, patient: Caller
) -> None:
    world.peer(2)
    delays_ms = []
    for _ in range(6):
        assert patient.reconnected(1) is ErrorCode.NETWORK_EXCEPTION
        delays_ms.append(patient.channel.backoff_ms(1))
        assert patient.outcome(patient.send(2, "b")) == "b" and not patient.channel.backoff_ms(2)
    assert delays_ms[0] <= 180 and max(delays_ms) <= 900 and delays_ms[-1] >= 450
    world.peer(1)
    assert patient.reconnected(1) == "again"
    world.stop(1)
    world.until(lambda: patient.channel.backoff_ms(1))
    assert patient.channel.backoff_ms(1) <= 180, "a connection that was ready begins anew"


def test_close_fails_what_is_in_flight_and_every_later_request(
    world: World, caller: Caller
) -> None:
    peer = world.peer(1)
    peer.script(ApiKey.METADATA, SILENT)
    sent = caller.send(1)
    world.until(lambda: peer.asked(ApiKey.METADATA))
    connecting = caller.send(1, purpose="another")
    caller.channel.close()
    for answer in (sent, connecting, caller.send(1)):
        assert caller.outcome(answer) is ErrorCode.NETWORK_EXCEPTION
    world.until(lambda: peer.connections[0].lost is not None)


def test_a_node_that_listens_elsewhere_is_connected_to_at_once(
    world: World, caller: Caller
) -> None:
    old, new = world.peer(1), world.peer(2)
    old.script(ApiKey.METADATA, SILENT)
    waiting = caller.send(1)
    world.until(lambda: old.asked(ApiKey.METADATA))
    moved = world.address(2)._replace(node_id=1)
    answer = caller.channel.send(
        moved, "tests", MetadataRequest(topics=[]), MetadataResponse, timeout_ms=LONG_MS
    )
    assert caller.outcome(waiting) is ErrorCode.NETWORK_EXCEPTION
    assert caller.outcome(answer) == "nothing" and len(new.connections) == 1


def test_disconnect_forgets_a_node(world: World, patient: Caller) -> None:
    assert patient.outcome(patient.send(1)) is ErrorCode.NETWORK_EXCEPTION
    assert patient.channel.backoff_ms(1)
    patient.channel.disconnect(1)
    assert not patient.channel.backoff_ms(1)


def test_a_connection_has_a_bound_on_its_requests(world: World, caller: Caller) -> None:
    peer = world.peer(1)
    answers = [caller.send(1) for _ in range(MAX_REQUESTS_PER_CONNECTION + 1)]
    assert caller.outcome(answers[-1]) is ErrorCode.NETWORK_EXCEPTION
    assert caller.outcome(answers[-2]) == "x" and len(peer.connections) == 1


def test_a_caller_may_send_again_from_within_a_failure(world: World, caller: Caller) -> None:
    peer = world.peer(1)
    peer.script(ApiKey.METADATA, HANG_UP)
    again: list[Deferred[MetadataResponse]] = []
    first = caller.send(1)
    first.on_done(print, lambda error: again.append(caller.send(1)))
    assert caller.outcome(first) is ErrorCode.NETWORK_EXCEPTION
    assert caller.outcome(again[0]) is ErrorCode.NETWORK_EXCEPTION, "during the back-off"
    assert caller.reconnected(1) == "again"


# -- the simulated network alone -------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_every_request_has_one_outcome_by_its_deadline(seed: int) -> None:
    world = SimWorld(seed)
    random = world.random
    world.network.conditions = Conditions(max_delay_ms=40, late=0.1, late_ms=800)
    peers: list[Peer] = [world.peer(node_id) for node_id in (1, 2)]
    caller = Caller(world, channel_of(world))
    outcomes: list[str | ErrorCode] = []
    late: list[str] = []

    def send() -> None:
        timeout_ms = random.choice((50, 400, 3_000))
        due_ms = world.heap.time_ms + timeout_ms
        node_id, purpose = random.choice((1, 2)), random.choice(("a", "b"))
        name = f"{node_id}-{len(outcomes)}-{random.random()}"
        answer = caller.send(node_id, name, purpose=purpose, timeout_ms=timeout_ms)

        def done(outcome: str | ErrorCode) -> None:
            outcomes.append(outcome)
            if world.heap.time_ms > due_ms + 1:
                late.append(name)

        answer.on_done(lambda value: done("right" if value.cluster_id == name else "wrong"),
                       lambda error: done(error.code))  # fmt: skip

    for _ in range(200):
        send()
        fault = random.random()
        if fault < 0.05:
            world.network.break_connections(0, random.choice((1, 2)))
        elif fault < 0.1:
            random.choice(peers).script(
                ApiKey.METADATA, random.choice((SILENT, HANG_UP, b"\xff" * 9))
            )
        elif fault < 0.13:
            world.network.cut(*random.choice(((0, 1), (1, 0), (2, 0))))
        elif fault < 0.2:
            world.network.heal_all()
        world.heap.advance(random.randrange(60))
    world.heap.advance(5_000)
    assert len(outcomes) == 200 and not late
    assert outcomes.count("right") > 30 and "wrong" not in outcomes
    assert len(set(outcomes)) >= 3, "the faults had effects"


def test_what_a_node_serves_is_known_while_a_connection_is_open(world: World) -> None:
    peer = world.peer(1)
    caller = Caller(world, channel_of(world))
    address = world.address(1)
    assert caller.channel.api_versions_of(address) is None
    assert caller.outcome(caller.send(1)) == "x"
    versions = caller.channel.api_versions_of(address)
    assert versions is not None
    assert versions.range_of(ApiKey.METADATA) == peer.versions[ApiKey.METADATA]
    assert versions.range_of(ApiKey.PRODUCE) is None
    assert caller.channel.api_versions_of(address._replace(port=address.port + 1)) is None
    caller.channel.disconnect(1)
    assert caller.channel.api_versions_of(address) is None
